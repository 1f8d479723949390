"""Jobs end to end on Ray: every row once, resumed, refused, replaced, and each fault's error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_cases import (
    encoded_table,
    job_keys,
    outcomes,
    read_scores,
    reference_scores,
    score_here,
    stamps,
    tiny_bundle,
    write_shards,
)

from dpiframe_core import CTRModel
from pipeline.cluster.signals import StopSignals
from pipeline.config.job import JobConfig
from pipeline.errors import ConfigError, ContractError, DpiframeError, ResumableError
from pipeline.planning.plan import make_plan
from pipeline.publishing.folder import claim
from pipeline.publishing.records import OutputLayout
from pipeline.publishing.verify import verify_output
from pipeline.scoring.dry_run import describe_plan, output_state
from pipeline.scoring.job import Job, JobResult, run_job

pytestmark = pytest.mark.usefixtures("ray_session")


class Case:
    """A folder with a model and 3 shards of 111 rows; `run` scores it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output = folder, folder / "output"
        self.model: CTRModel = tiny_bundle(folder / "bundle")
        self.table = write_shards(folder / "input", 3, 111, 19)

    def config(self, **keys: Any) -> JobConfig:
        return JobConfig.model_validate(job_keys(self.folder, unit_rows=40) | keys)

    def run(self, **keys: Any) -> JobResult:
        return run_job(self.config(**keys))

    def finish(self) -> None:
        """Leave the output as a finished job leaves it."""
        score_here(self.folder, unit_rows=40)

    def start(self, units: int) -> None:
        """Leave the output as a job leaves it that was killed after so many units."""
        for done, _ in enumerate(outcomes(make_plan(self.config())), start=1):
            if done == units:
                return


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_every_row_is_scored_once_and_in_order(case: Case) -> None:
    result = case.run()

    found = read_scores(case.output)
    assert (result.rows, result.scored, result.units) == (333, 333, 9)
    assert found.column("row_id").equals(case.table.column("row_id"))
    expected = reference_scores(case.model, case.table)
    np.testing.assert_allclose(found.column("score").to_numpy(), expected, atol=1e-5)
    assert verify_output(case.output).problems == []
    names = {path.name for path in case.output.iterdir() if not path.name.startswith("part-")}
    assert names == {"_SUCCESS", "_config.yaml", "_identity.json", "_manifest.json"}


def test_a_finished_job_rewrites_nothing(case: Case) -> None:
    case.finish()
    before = {path: path.stat().st_mtime_ns for path in case.output.iterdir()}

    result = case.run()

    assert result.status == "complete before"
    assert {path: path.stat().st_mtime_ns for path in case.output.iterdir()} == before


def test_a_started_job_goes_on(case: Case) -> None:
    case.start(units=4)
    before = stamps(case.output)
    (case.output / ".part-x.parquet.dpiframe-tmp-0").write_bytes(b"half")

    result = case.run()

    assert (result.units, result.resumed_units) == (9, 4)
    assert {name: stamps(case.output)[name] for name in before} == before
    assert read_scores(case.output).column("row_id").equals(case.table.column("row_id"))
    assert verify_output(case.output).problems == []
    assert not list(case.output.glob(".*"))


@pytest.mark.slow
def test_a_unit_whose_part_is_lost_is_scored_again(case: Case) -> None:
    case.start(units=9)
    next(case.output.glob("part-u000003-*")).unlink()

    assert case.run().resumed_units == 8
    assert verify_output(case.output).problems == []


def remove(part: Path) -> None:
    part.unlink()


def cut(part: Path) -> None:
    part.write_bytes(part.read_bytes()[:-9])


def lose_unit(part: Path) -> None:
    path = part.with_name("_manifest.json")
    manifest = json.loads(path.read_text())
    manifest["units"] = [unit for unit in manifest["units"] if unit["part"] != part.name]
    path.write_text(json.dumps(manifest))


@pytest.mark.slow
@pytest.mark.parametrize("damage", [remove, cut, lose_unit])
def test_a_finished_job_that_lost_a_part_scores_that_unit_again(
    case: Case, damage: Callable[[Path], None]
) -> None:
    case.finish()
    lost = next(case.output.glob("part-u000003-*"))
    before = {name: stamp for name, stamp in stamps(case.output).items() if name != lost.name}
    damage(lost)
    plan = make_plan(case.config())
    described = describe_plan(plan, output_state(plan))

    result = case.run()

    assert (result.status, result.resumed_units) == ("scored", 8)
    assert {name: stamps(case.output)[name] for name in before} == before
    assert verify_output(case.output).problems == []
    assert "8 of 9 units are done" in described


def test_a_lost_part_takes_its_record_along(case: Case) -> None:
    case.start(units=9)
    lost = next(case.output.glob("part-u000003-*"))
    lost.unlink()

    claim(OutputLayout(case.output), make_plan(case.config()))

    assert len(list((case.output / "_units").iterdir())) == 8
    assert not (case.output / "_units" / f"{lost.stem.removeprefix('part-')}.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("finished", [True, False])
def test_another_job_is_refused_and_may_overwrite(case: Case, finished: bool) -> None:
    case.finish() if finished else case.start(units=4)
    before = stamps(case.output)
    (case.output / "notes.txt").write_text("mine")

    with pytest.raises(ConfigError, match="unit_rows is 40, this one's 60"):
        case.run(unit_rows=60)
    assert stamps(case.output) == before

    assert case.run(unit_rows=60, overwrite=True).units == 6
    assert verify_output(case.output).problems == []
    assert (case.output / "notes.txt").read_text() == "mine"


@pytest.mark.slow
def test_a_job_that_published_nothing_does_not_hold_the_output(case: Case) -> None:
    claim(OutputLayout(case.output), make_plan(case.config()))

    assert case.run(unit_rows=60).units == 6
    assert verify_output(case.output).problems == []


def test_a_changed_model_is_refused_on_an_old_output(case: Case) -> None:
    case.finish()
    tiny_bundle(case.folder / "other", seed=1)

    with pytest.raises(ConfigError, match="its bundle is"):
        case.run(bundle=str(case.folder / "other"))

    assert verify_output(case.output).problems == []


def test_part_files_of_others_are_never_removed(case: Case) -> None:
    case.output.mkdir()
    (case.output / "part-0.parquet").write_text("foreign")

    with pytest.raises(ConfigError, match=r"part-0\.parquet"):
        case.run(overwrite=True)

    assert (case.output / "part-0.parquet").read_text() == "foreign"


def test_an_output_that_is_a_file_is_a_config_error(case: Case) -> None:
    case.output.write_text("")

    with pytest.raises(ConfigError):
        case.run()


def planned(case: Case, **keys: Any) -> Job:
    return Job(make_plan(case.config(**keys)), StopSignals(), verbose=False)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["removed", "changed", "truncated"])
def test_a_file_that_changes_after_planning_stops_the_job(case: Case, fault: str) -> None:
    job = planned(case)
    shard = case.folder / "input/shard-001.parquet"
    content = shard.read_bytes()
    if fault == "truncated":
        shard.write_bytes(content[:-100])
    else:
        shard.unlink()
    if fault == "changed":
        pq.write_table(encoded_table(111, seed=7), shard, row_group_size=19)

    with pytest.raises(ContractError, match=rf"{shard} .*after planning"):
        job.run()

    assert not (case.output / "_SUCCESS").exists()
    done = len(list(OutputLayout(case.output).units.glob("*.json")))
    assert done <= 6


def corrupt_page(path: Path) -> None:
    start = pq.read_metadata(path).row_group(2).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 40] = b"\xff" * 40
    path.write_bytes(content)


@pytest.mark.slow
def test_a_corrupt_page_stops_the_job_or_is_quarantined(case: Case) -> None:
    corrupt_page(case.folder / "input/shard-001.parquet")

    with pytest.raises(ContractError, match=r"corrupt parquet: .*shard-001.*row groups 2 to 3"):
        case.run()

    result = case.run(on_corrupt_file="quarantine", overwrite=True)
    assert (result.rows, result.quarantined) == (333 - 38, 1)
    assert verify_output(case.output).problems == []


def replace_column(case: Case, name: str, values: pa.Array) -> None:
    """Give the last shard other values in one column."""
    shard = case.folder / "input/shard-002.parquet"
    table = pq.read_table(shard)
    index = table.schema.get_field_index(name)
    pq.write_table(table.set_column(index, name, values), shard, row_group_size=19)


@pytest.mark.slow
def test_too_many_rejected_rows_fail_the_job_until_allowed(case: Case) -> None:
    replace_column(case, "C2", pa.array(np.where(np.arange(111) % 19 == 0, 7, 0), pa.int32()))

    with pytest.raises(ContractError, match=r"\d of 333 rows are rejected"):
        case.run(on_bad_row="reject")
    assert not (case.output / "_SUCCESS").exists()

    result = case.run(on_bad_row="reject", max_rejected_fraction=0.02)
    assert (result.scored, result.rejected) == (327, 6)
    assert verify_output(case.output).problems == []


def test_all_rows_of_a_unit_may_be_rejected(case: Case) -> None:
    """Counters of Ray refuse to count nothing."""
    replace_column(case, "C2", pa.array([7] * 111, pa.int32()))
    result = case.run(on_bad_row="reject", max_rejected_fraction=0.5)
    assert (result.scored, result.rejected) == (222, 111)


@pytest.mark.slow
def test_a_bad_row_stops_the_job_by_default(case: Case) -> None:
    replace_column(case, "I1", pa.array([float("nan")] * 111, pa.float32()))

    with pytest.raises(ContractError, match=r"row \d+ of the file: column 'I1' holds 'nan'"):
        case.run()


def test_records_that_lie_are_not_published(case: Case) -> None:
    case.start(units=9)
    record = next(OutputLayout(case.output).units.glob("u000003-*"))
    record.write_text(record.read_text().replace('"scored":38', '"scored":37'))

    with pytest.raises(ResumableError, match="37 scored"):
        case.run()


def test_errors_carry_their_exit_codes() -> None:
    codes = [e.exit_code for e in (DpiframeError, ConfigError, ContractError, ResumableError)]
    assert codes == [1, 2, 3, 4]
