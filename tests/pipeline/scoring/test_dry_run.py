"""`--dry-run`: sizes with reasons and the expected time, without starting anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
from job_cases import job_keys, tiny_bundle, write_shards

from pipeline.config.job import JobConfig
from pipeline.errors import ConfigError
from pipeline.planning.plan import make_plan
from pipeline.scoring.dry_run import dry_run
from pipeline.sizing.job_sizes import KEYS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 2, 111, 19)
    return tmp_path


def described(folder: Path, **keys: Any) -> str:
    config = JobConfig.model_validate(job_keys(folder, **keys))
    text = dry_run(make_plan(config), config.unit_rows)
    assert not (folder / "output").exists()
    return text


def test_every_size_has_a_reason(folder: Path) -> None:
    started_before = ray.is_initialized()
    text = described(folder, max_read_tasks=1)
    assert ray.is_initialized() == started_before
    assert "unit_rows  114, auto" in text
    for key in KEYS:
        (line,) = [line for line in text.splitlines() if f" {key} " in line]
        assert len(line.split(maxsplit=3)) == 4 or "sizes" in line
    assert "threads             1 a scorer   as configured" in text
    assert "max_read_tasks      1 at a time  as configured" in text
    assert "expected   about" in text and "(estimate)" in text


def test_a_unit_size_that_was_given_is_told_so(folder: Path) -> None:
    assert "unit_rows  40, as configured" in described(folder, unit_rows=40)


def test_a_cluster_settles_its_own_sizes(folder: Path) -> None:
    address = "ray://10.0.0.1:10001"
    text = described(folder, ray_address=address)
    assert f"settled by the Ray cluster at {address}" in text
    assert "expected" not in text


def test_a_cluster_that_does_not_answer_is_told(folder: Path) -> None:
    assert "nothing answers there" in described(folder, ray_address="127.0.0.1:1")


def test_what_cannot_run_here_is_an_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match="num_scorers is 60000, too many"):
        described(folder, num_scorers=60000, device="cpu")
