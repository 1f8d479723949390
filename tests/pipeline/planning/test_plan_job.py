from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from job_cases import job_keys, score_here, tiny_bundle, write_shards
from plan_jobs import (
    encoded_spec,
    encoded_table,
    job,
    raw_schema,
    raw_spec,
    raw_table,
    save,
    snapshot,
    write,
)

from pipeline.config.job import JobConfig
from pipeline.errors import ConfigError, ContractError, DpiframeError
from pipeline.planning import plan as planning
from pipeline.planning.job_plan import JobPlan
from pipeline.planning.plan import make_plan
from pipeline.publishing.records import IdentityFile, OutputLayout, write_json
from pipeline.scoring.dry_run import describe_plan, output_state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle and two files: 111 rows in row groups of 19, and 19 rows."""
    save(tmp_path / "bundle", encoded_spec())
    write(tmp_path / "input/a.parquet", encoded_table(111))
    write(tmp_path / "input/b.parquet", encoded_table(19))
    return tmp_path


def claim(plan: JobPlan, done: int, **changes: Any) -> OutputLayout:
    """Leave what a stopped run of `plan` leaves, with `done` units finished."""
    layout = OutputLayout(plan.config.output)
    layout.units.mkdir(parents=True)
    owner = IdentityFile(
        identity=plan.identity,
        attempt="1",
        bundle_digest=plan.bundle_digest,
        config=plan.config.model_dump(mode="json"),
        units=len(plan.units),
        rows=plan.total_rows,
    )
    write_json(layout.identity, owner.model_copy(update=changes))
    for unit in plan.units[:done]:
        layout.record(unit.name).write_text("{}")
    return layout


def test_a_plan_settles_everything_and_writes_nothing(folder: Path) -> None:
    before = snapshot(folder)
    plan = make_plan(job(folder, unit_rows=40))
    assert snapshot(folder) == before
    assert [unit.rows for unit in plan.units] == [38, 38, 35, 19]
    assert (plan.total_rows, plan.columns.form, plan.config.form) == (130, "encoded", "encoded")
    assert plan.total_bytes == sum(p.stat().st_size for p in (folder / "input").iterdir())
    assert plan.bundle_digest == make_plan(job(folder)).bundle_digest


def test_the_unit_size_that_was_chosen_is_the_same_as_one_that_was_given(folder: Path) -> None:
    chosen = make_plan(job(folder, unit_rows="auto"))
    assert chosen.config.unit_rows == 114
    given = make_plan(job(folder, unit_rows=114))
    assert (given.identity, given.units) == (chosen.identity, chosen.units)


def test_too_many_units_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MAX_UNITS", 3)
    with pytest.raises(ConfigError, match=r"makes 4 units of up to 40 rows, at most 3 .* higher"):
        make_plan(job(folder, unit_rows=40))


def test_the_same_job_has_the_same_plan_wherever_it_is_started(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = make_plan(job(folder, unit_rows=40))
    monkeypatch.chdir(folder)
    there = make_plan(job(Path(), unit_rows=40, form="encoded", num_scorers=3, max_batch=19))
    assert there.identity == here.identity
    assert there.units == here.units


def test_keys_of_the_schema_are_as_good_as_given_ones(tmp_path: Path) -> None:
    save(tmp_path / "bundle", raw_spec(), raw_schema())
    write(tmp_path / "input/a.parquet", raw_table())
    given, default = make_plan(job(tmp_path)), make_plan(job(tmp_path, key_columns=[]))
    assert default.identity == given.identity
    assert default.config.key_columns == ["row_id"]


def test_other_rows_or_another_model_are_another_job(folder: Path) -> None:
    identities = {make_plan(job(folder)).identity}
    write(folder / "input/b.parquet", encoded_table(20))
    identities.add(make_plan(job(folder)).identity)
    other = save(folder / "other", encoded_spec(), seed=1)
    identities.add(make_plan(job(folder, bundle=str(other))).identity)
    assert len(identities) == 3


@pytest.mark.parametrize("item", ["", "input", "input/deep/er"])
def test_an_output_in_an_input_folder_is_refused(folder: Path, item: str) -> None:
    with pytest.raises(ConfigError, match="lies in the input folder"):
        make_plan(job(folder, input=str(folder), output=str(folder / item)))


def test_input_in_the_output_is_refused_and_stays(folder: Path) -> None:
    part = folder / "input/part-u000000-0123abcd.parquet"
    (folder / "input/a.parquet").rename(part)
    keys = {"input": str(folder / "input/*.parquet"), "output": str(folder / "input")}

    with pytest.raises(ConfigError, match="where only scores may be"):
        make_plan(job(folder, overwrite=True, **keys))

    assert part.exists()


@pytest.mark.parametrize("damage", ["missing", "tampered", "cut"])
def test_a_bad_bundle_is_a_configuration_error(folder: Path, damage: str) -> None:
    weights = folder / "bundle" / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    if damage == "missing":
        weights.unlink()
    else:
        weights.write_bytes(content if damage == "tampered" else content[:-3])
    with pytest.raises(ConfigError, match=r"the bundle cannot be used: .*weights\.safetensors"):
        make_plan(job(folder))


def described(plan: JobPlan) -> str:
    before = snapshot(Path(plan.config.output).parent)
    text = describe_plan(plan, output_state(plan))
    assert snapshot(Path(plan.config.output).parent) == before
    return text


def test_the_description_tells_what_would_be_done(folder: Path) -> None:
    plan = make_plan(job(folder, unit_rows=40, carry_columns=["label"]))
    text = described(plan)
    for told in (
        plan.identity,
        plan.bundle_digest,
        "2 files, 130 rows",
        "a.parquet (111 rows, 6 row groups)",
        "encoded",
        "row_id",
        "label",
        "C1, C2, I1",
        "4 of about 40 rows",
        f"{plan.units[0].name}: 38 rows, row groups 0 to 1 of",
        f"{plan.units[-1].name}: 19 rows",
        "does not exist yet or is empty: all units would be scored",
    ):
        assert told in text, told


def test_the_description_tells_what_is_left_out_and_what_comes_twice(folder: Path) -> None:
    write(folder / "input/empty.parquet", encoded_table(0))
    (folder / "input/z.parquet").touch()
    twice = [str(folder / "input"), str(folder / "input/a.parquet")]
    plan = make_plan(job(folder, input=twice, on_corrupt_file="quarantine"))
    text = described(plan)
    assert "1 file without rows, left out" in text
    assert "1 file listed again, scored again" in text
    assert f"quarantined: {folder / 'input/z.parquet'}: the file is empty (0 bytes)" in text
    assert plan.total_rows == 111 + 111 + 19


def test_only_files_without_rows_make_a_plan_of_one_unit_without_rows(folder: Path) -> None:
    write(folder / "input2/a.parquet", encoded_table(0))
    write(folder / "input2/b.parquet", encoded_table(0))
    plan = make_plan(job(folder, input=str(folder / "input2"), min_rows=0))
    assert [unit.rows for unit in plan.units] == [plan.total_rows] == [0]
    assert "u000000-" in described(plan)


def test_a_stopped_output_would_be_resumed(folder: Path) -> None:
    plan = make_plan(job(folder, unit_rows=40))
    layout = claim(plan, done=3)
    layout.record("u000000-00000000").write_text("{}")  # of no unit: not counted
    assert "3 of 4 units are done: the others would be scored" in described(plan)


def test_a_finished_output_needs_nothing(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 1, 19, 5)
    score_here(tmp_path)
    plan = make_plan(JobConfig.model_validate(job_keys(tmp_path)))
    assert "is complete: nothing would be scored" in described(plan)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"config": {}}, "form, key_columns"),
        ({"bundle_digest": "0"}, "contents of the bundle"),
        ({}, "contents of the input"),
    ],
)
def test_an_output_of_another_job_would_be_refused(
    folder: Path, changes: dict[str, Any], told: str
) -> None:
    plan = make_plan(job(folder))
    claim(plan, done=1, identity="f" * 64, **changes)
    text = described(plan)
    assert f"belongs to job {'f' * 12}, which differs in: {told}" in text
    assert "would be refused, unless overwrite is true" in text
    assert "its scores would be replaced" in described(make_plan(job(folder, overwrite=True)))


def test_an_output_with_files_of_unknown_origin_would_be_refused(folder: Path) -> None:
    plan = make_plan(job(folder))
    layout = OutputLayout(plan.config.output)
    layout.root.mkdir()
    (layout.root / "notes.txt").touch()
    assert "holds no scores: all units would be scored" in described(plan)
    layout.part(plan.units[0].name).touch()
    assert "would be refused, unless overwrite" in described(plan)
    (layout.root / "part-0.parquet").touch()
    assert "holds part-0.parquet, which no job wrote: would be refused" in described(plan)


def test_a_broken_identity_file_is_told(folder: Path) -> None:
    plan = make_plan(job(folder))
    OutputLayout(plan.config.output).root.mkdir()
    OutputLayout(plan.config.output).identity.write_text("{")
    assert "_identity.json" in described(plan)


def _missing(folder: Path) -> None:
    write(folder / "input/a.parquet", encoded_table(C1=None))


def _wrong_type(folder: Path) -> None:
    write(folder / "input/a.parquet", encoded_table(19, C1=["a"] * 19))


def _null_key(folder: Path) -> None:
    write(folder / "input/a.parquet", encoded_table(2, row_id=pa.array([0, None], pa.int64())))


def _out_of_range(folder: Path) -> None:
    write(folder / "input/a.parquet", encoded_table(1, C2=pa.array([19], pa.int32())))


def _truncated(folder: Path) -> None:
    path = folder / "input/a.parquet"
    path.write_bytes(path.read_bytes()[:-9])


def _empty(folder: Path) -> None:
    (folder / "input/a.parquet").write_bytes(b"")


FAULTS = {
    "column C1: missing": _missing,
    "column C1: type is string": _wrong_type,
    "column row_id is a key and holds 1 null": _null_key,
    "column C2 holds id 19, outside its table": _out_of_range,
    "truncated": _truncated,
    "the file is empty (0 bytes)": _empty,
}


@pytest.mark.parametrize("told", FAULTS)
def test_a_fault_of_the_input_stops_the_job_before_it_starts(folder: Path, told: str) -> None:
    FAULTS[told](folder)
    before = snapshot(folder)
    with pytest.raises(ContractError) as caught:
        make_plan(job(folder))
    assert told in str(caught.value)
    assert str(folder / "input/a.parquet") in str(caught.value)
    assert caught.value.exit_code == 3
    assert snapshot(folder) == before


def test_errors_of_planning_are_errors_of_the_job(folder: Path) -> None:
    with pytest.raises(DpiframeError, match="does not exist"):
        make_plan(job(folder, input=str(folder / "none")))
