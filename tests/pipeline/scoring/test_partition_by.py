"""One job, an output a partition; scored in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from job_cases import encoded_table, job_keys, reference_scores, stamps, tiny_bundle
from s3_server import BUCKET, s3_server

from dpiframe_core import CTRModel
from pipeline.config.job import JobConfig
from pipeline.errors import ConfigError, ContractError, LockedError, ResumableError
from pipeline.planning.plan import make_plan
from pipeline.publishing.output import open_output
from pipeline.publishing.partitioned import PartitionedOutput
from pipeline.publishing.scores import open_scores
from pipeline.publishing.verify import verify_output
from pipeline.schedule.status import status_of
from pipeline.scoring.dry_run import output_state
from pipeline.scoring.job import JobResult, run_job
from pipeline.storage.object_store import ObjectStore

pytestmark = pytest.mark.slow
HOURS, ROWS = 3, 38


def write_hour(folder: Path, hour: int, seed: int) -> pa.Table:
    table = encoded_table(ROWS, first_key=ROWS * hour, seed=seed)
    label = table.schema.get_field_index("label")
    table = table.set_column(label, "label", pa.array(np.arange(ROWS, dtype=np.int8) % 2))
    path = folder / f"input/date=2026-11-19/hour={hour:02d}/x.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=19)
    return table


@pytest.fixture
def case(tmp_path: Path) -> tuple[Path, CTRModel, list[pa.Table]]:
    model = tiny_bundle(tmp_path / "bundle")
    return tmp_path, model, [write_hour(tmp_path, hour, hour) for hour in range(HOURS)]


def config(folder: Path, **keys: Any) -> JobConfig:
    more: dict[str, Any] = {"runner": "local", "partition_by": ["date", "hour"], "unit_rows": 19}
    return JobConfig.model_validate(job_keys(folder, **(more | keys)))


def run(folder: Path, **keys: Any) -> JobResult:
    return run_job(config(folder, **keys))


def output(folder: Path, hour: int) -> Path:
    return folder / f"output/date=2026-11-19/hour={hour}"


def check_scores(folder: Path, model: CTRModel, tables: list[pa.Table]) -> None:
    found = open_scores(folder / "output").to_table().sort_by("row_id")
    assert found.column("row_id").to_pylist() == list(range(HOURS * ROWS))
    assert found.column("hour").to_pylist() == [h for h in range(HOURS) for _ in range(ROWS)]
    assert set(found.column("date").to_pylist()) == {"2026-11-19"}
    expected = reference_scores(model, pa.concat_tables(tables))
    np.testing.assert_allclose(found.column("score").to_numpy(), expected, atol=1e-5)


def test_every_partition_is_a_whole_output(case: Any) -> None:
    folder, model, tables = case
    result = run(folder)
    assert (result.rows, result.units, result.status) == (HOURS * ROWS, 2 * HOURS, "scored")
    for hour in range(HOURS):
        assert verify_output(output(folder, hour)).problems == []
        assert verify_output(output(folder, hour)).rows == ROWS
    whole = verify_output(folder / "output")
    assert (whole.problems, whole.rows) == ([], HOURS * ROWS)
    check_scores(folder, model, tables)
    assert [each.state for each in status_of(str(folder / "output"))] == ["done"] * HOURS
    as_hive = pads.dataset(folder / "output", format="parquet", partitioning="hive")
    assert as_hive.to_table().num_rows == HOURS * ROWS
    assert run(folder).status == "complete before"
    assert "3 partitions, 3 of them published" in output_state(make_plan(config(folder))).text


def test_one_partition_is_replaced_without_touching_another(case: Any) -> None:
    folder, model, tables = case
    run(folder)
    before = {hour: stamps(output(folder, hour)) for hour in range(HOURS)}
    tables[1] = write_hour(folder, 1, seed=19)
    with pytest.raises(ConfigError, match="hour=1 belongs to another job"):
        run(folder)
    assert run(folder, overwrite=True).status == "scored"
    after = {hour: stamps(output(folder, hour)) for hour in range(HOURS)}
    assert [after[hour] == before[hour] for hour in range(HOURS)] == [True, False, True]
    check_scores(folder, model, tables)


def test_partitions_may_be_scored_apart_and_added_later(case: Any) -> None:
    folder, model, tables = case
    run(folder, where="hour = 1")
    first = stamps(output(folder, 1))
    assert not output(folder, 0).exists()
    assert open_scores(folder / "output").to_table().num_rows == ROWS
    run(folder)
    assert stamps(output(folder, 1)) == first
    check_scores(folder, model, tables)


def test_what_a_crash_after_the_end_of_a_partition_left_is_written_later(case: Any) -> None:
    folder, _, _ = case
    with s3_server():
        place = f"s3://{BUCKET}/output"
        run(folder, output=place, where="hour in (0, 1)")
        store = ObjectStore(f"{place}/date=2026-11-19/hour=1")
        store.delete(["_SUCCESS", "_manifest.json"])
        assert verify_output(place).problems
        run(folder, output=place)
        assert (verify_output(place).problems, verify_output(place).rows) == ([], HOURS * ROWS)


def test_scores_are_evaluated_over_all_finished_partitions(case: Any) -> None:
    folder, model, tables = case
    for keys, rows in ({"where": "hour = 1"}, ROWS), ({}, HOURS * ROWS):
        found = run(folder, label_column="label", **keys).evaluation
        assert found["labelled_rows"] == rows
    tables[1] = write_hour(folder, 1, seed=19)
    again = run(folder, label_column="label", overwrite=True).evaluation
    assert again["auc"] != found["auc"]
    labels = np.concatenate([table.column("label").to_numpy() for table in tables])
    scores = reference_scores(model, pa.concat_tables(tables))
    above = scores[labels == 1][:, None] - scores[labels == 0]
    assert again["auc"] == pytest.approx((above > 0).mean(), abs=1e-9)
    assert run(folder, label_column="label").evaluation == again


def test_a_stopped_job_has_finished_what_was_complete(
    case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model, tables = case
    done: list[str] = []
    finish = PartitionedOutput.unit_done

    def stop_after_three(self: PartitionedOutput, unit: str) -> None:
        finish(self, unit)
        done.append(unit)
        if len(done) == 3:
            raise OSError(5, "the storage is gone")

    with monkeypatch.context() as patched:
        patched.setattr(PartitionedOutput, "unit_done", stop_after_three)
        with pytest.raises(ResumableError):
            run(folder, num_scorers=1)
    states = {each.output[-1]: each.state for each in status_of(str(folder / "output"))}
    assert sorted(states.values()) in (["done", "failed", "failed"], ["failed"] * 3)
    result = run(folder)
    assert result.resumed_units >= 3
    check_scores(folder, model, tables)
    assert not list((folder / "output").rglob("_error.json"))
    assert not list((folder / "output").rglob("_lock"))


def test_a_locked_partition_stops_the_job_before_anything_is_touched(case: Any) -> None:
    folder, *_ = case
    with open_output(output(folder, 1)).lock(), pytest.raises(LockedError, match="hour=1"):
        run(folder)
    assert not output(folder, 0).exists()


def test_what_cannot_be_partitioned(case: Any) -> None:
    folder, *_ = case
    with pytest.raises(ConfigError, match=r"partition_by names day, .*has: date, hour"):
        run(folder, partition_by=["day"])
    with pytest.raises(ContractError, match="hour=0 has 38 rows, fewer than min_rows 39"):
        run(folder, min_rows=39)
    with pytest.raises(ValueError, match="partition_by names a column twice"):
        config(folder, partition_by=["date", "date"])
    assert not (folder / "output").exists()


def test_an_hour_without_rows_is_an_output_without_rows(case: Any) -> None:
    folder, *_ = case
    write_hour(folder, 1, 1)
    path = folder / "input/date=2026-11-19/hour=01/x.parquet"
    pq.write_table(encoded_table(0), path)
    assert run(folder, min_rows=0).rows == 2 * ROWS
    assert verify_output(output(folder, 1)).problems == []
    assert open_scores(folder / "output").to_table().num_rows == 2 * ROWS
