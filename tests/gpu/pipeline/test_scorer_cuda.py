"""The scorer beside a GPU: which units the GPU unpacks, and what becomes of those it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_cases import (
    damage,
    encoded_table,
    job_keys,
    read_scores,
    reference_scores,
    scorer_of,
    tiny_bundle,
    tiny_spec,
    with_value,
)
from model_zoo import random_model

from dpiframe_core import FieldSpec, save_bundle
from dpiframe_core.features.datasets import criteo_schema
from dpiframe_core.model.builtin import Deep, Features, deepfm
from pipeline.config.job import JobConfig
from pipeline.data.synth import SynthOptions, synth
from pipeline.planning.plan import make_plan
from pipeline.publishing.folder import claim
from pipeline.publishing.records import Outcome, OutputLayout, UnitRecord
from pipeline.scoring.engine_thread import EngineThread
from pipeline.scoring.transport import outcomes_from_table, units_to_table


def write(folder: Path, table: pa.Table) -> None:
    (folder / "input").mkdir(exist_ok=True)
    path = folder / "input/a.parquet"
    pq.write_table(table, path, row_group_size=1000, compression="zstd", write_statistics=False)


def score(folder: Path, **keys: Any) -> list[Outcome]:
    """Outcomes of the units of `folder`/input, by a scorer beside a GPU."""
    config = JobConfig.model_validate(job_keys(folder, unit_rows=1000, **keys))
    plan = make_plan(config)
    attempt, _ = claim(OutputLayout(plan.config.output), plan)
    return list(outcomes_from_table(scorer_of(plan, attempt, "cuda")(units_to_table(plan.units))))


def readers(found: list[Outcome]) -> list[str]:
    assert all(isinstance(outcome, UnitRecord) for outcome in found), found
    return [outcome.read_by for outcome in found if isinstance(outcome, UnitRecord)]


def test_units_are_unpacked_by_the_gpu(tmp_path: Path) -> None:
    model, table = tiny_bundle(tmp_path / "bundle"), encoded_table(4321)
    write(tmp_path, table)

    found = score(tmp_path)

    assert readers(found) == ["gpu"] * 5
    assert all(unit.unpack_s > 0 and unit.score_s > 0 for unit in found)  # type: ignore[union-attr]
    scores = read_scores(tmp_path / "output")
    assert scores.column("row_id").equals(table.column("row_id"))
    assert scores.column("label").equals(table.column("label"))
    np.testing.assert_allclose(
        scores.column("score").to_numpy(), reference_scores(model, table), atol=1e-5
    )


def test_a_unit_with_a_bad_row_is_read_again(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path, with_value(encoded_table(3000), "C2", 1234, 7))

    found = score(tmp_path, on_bad_row="reject")

    assert readers(found) == ["gpu", "cpu", "gpu"]
    rejected = pq.read_table(next((tmp_path / "output/_rejected").glob("*.parquet")))
    assert rejected.column("reason")[0].as_py().startswith("id outside its table of 7 rows")
    assert rejected.column("row").to_pylist() == [234]  # of the unit
    assert read_scores(tmp_path / "output").column("score").null_count == 1


def test_ids_that_score_as_others_are_counted(tmp_path: Path) -> None:
    spec = tiny_spec()
    fields = tuple(field.model_copy(update={"oov_row": 0}) for field in spec.fields)
    model = random_model(spec.model_copy(update={"fields": fields}))
    save_bundle(tmp_path / "bundle", model.spec, model.state_dict())
    write(tmp_path, with_value(encoded_table(1000), "C2", 5, 7))

    (found,) = score(tmp_path, on_bad_id="oov")

    assert isinstance(found, UnitRecord)
    assert (found.read_by, found.bad_ids) == ("gpu", {"C2": 1})


def test_raw_units_score_as_those_that_the_cpu_encodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synth(SynthOptions(dataset="criteo", output=tmp_path / "input", rows=3000, row_group_rows=1000))
    schema = criteo_schema("buckets", "hash", modulus=1000)
    fields = [FieldSpec(name=each.name, rows=each.rows, dim=4) for each in schema.fields]
    model = random_model(deepfm(Features(fields, [], "field"), Deep(hidden=(19, 5))))
    save_bundle(tmp_path / "bundle", model.spec, model.state_dict(), schema)
    keys = {"key_columns": ["row_id"], "carry_columns": []}

    assert readers(score(tmp_path, **keys)) == ["gpu"] * 3
    monkeypatch.setattr(EngineThread, "takes_pages", False)
    assert readers(score(tmp_path, output=str(tmp_path / "again"), **keys)) == ["cpu"] * 3

    assert read_scores(tmp_path / "output").equals(read_scores(tmp_path / "again"))


def test_a_damaged_page_is_told_by_the_host(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path, encoded_table(2000))
    damage(tmp_path / "input/a.parquet", group=1, column=3)

    first, second = score(tmp_path)

    assert isinstance(first, UnitRecord)
    assert not isinstance(second, UnitRecord)
    assert second.kind == "corrupt"
