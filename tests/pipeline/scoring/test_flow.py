"""The streaming plan: a unit stays whole, and closing the iterator stops the work."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray.data
from job_cases import job_keys, tiny_bundle, write_shards

from pipeline.config.job import JobConfig
from pipeline.errors import ResumableError
from pipeline.planning.plan import make_plan
from pipeline.publishing.folder import claim
from pipeline.publishing.records import Outcome, OutputLayout, UnitRecord
from pipeline.scoring import flow
from pipeline.scoring.flow import stream_outcomes
from pipeline.sizing.job_sizes import choose_sizes
from pipeline.sizing.machine import cluster_machine
from pipeline.sizing.memory_fit import CPU_READS
from pipeline.sizing.sizes import work_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]


def stream(folder: Path, unit_rows: int, **sizes_too: Any) -> Generator[Outcome, None, None]:
    plan = make_plan(JobConfig.model_validate(job_keys(folder, unit_rows=unit_rows)))
    attempt, _ = claim(OutputLayout(plan.config.output), plan)
    sizes = choose_sizes(cluster_machine(), work_of(plan, plan.units), plan.config)
    sizes = replace(sizes, **sizes_too)
    return stream_outcomes(plan, plan.units, sizes, attempt)


def test_a_unit_is_one_block_however_small_blocks_should_be(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 2, 5000, 19)
    context = ray.data.DataContext.get_current().copy()
    context.target_max_block_size = 1000

    with ray.data.DataContext.current(context):
        records = [r for r in stream(tmp_path, 4000) if isinstance(r, UnitRecord)]

    assert sorted(record.rows for record in records) == [1010, 1010, 3990, 3990]
    assert context.target_max_block_size == 1000


def test_closing_the_iterator_stops_the_plan(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 2, 5000, 20)
    outcomes = stream(tmp_path, 20)
    assert isinstance(next(outcomes), UnitRecord)

    outcomes.close()

    units = OutputLayout(tmp_path / "output").units
    published = len(list(units.iterdir()))
    time.sleep(1)
    assert len(list(units.iterdir())) <= published + CPU_READS  # those that were in hand
    assert published < 500


def test_a_cluster_without_room_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 1, 100, 20)
    monkeypatch.setattr(flow, "STALL_SECONDS", 3.0)

    with pytest.raises(ResumableError, match="nothing moved for 3 s: the cluster may have no room"):
        list(stream(tmp_path, 20, scorer_cpus=1000.0))
