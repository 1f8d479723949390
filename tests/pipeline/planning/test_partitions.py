"""Partition columns are those of pyarrow.dataset; what a job makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from job_cases import encoded_table as encoded
from job_cases import job_keys, read_scores, score_here, tiny_bundle
from plan_jobs import encoded_spec, encoded_table, job, save, write

from pipeline.config.job import JobConfig
from pipeline.errors import ConfigError, ContractError
from pipeline.planning.inputs import scan_inputs
from pipeline.planning.partitions import partition_folder, partition_texts
from pipeline.planning.plan import make_plan

# Values of a folder name, and together with another one.
VALUES = ["1", "05", "-1", "-0", "+1", "0x1F", "0Xffffffff", "0x1FFFFFFFF", "-0x1", "2147483647"]
VALUES += ["2147483648", "-2147483648", "-2147483649", "1_0", " 1", "1.5", "true", "x y", "%20"]
VALUES += ["x%2Fy%3D", "%C3%BC", "ü", "%zz", "a=b", "0x", "00000000000012", "2026-11-19", "%31"]


def as_pyarrow(folder: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    dataset = pads.dataset(folder, format="parquet", partitioning="hive")
    types = {field.name: str(field.type) for field in dataset.schema if field.name != "x"}
    table = dataset.to_table().sort_by("x").to_pylist()
    return types, [{k: v for k, v in row.items() if k != "x"} for row in table]


def scanned(folder: Path, **keys: Any) -> tuple[dict[str, str], list[dict[str, Any]]]:
    scan = scan_inputs(job(folder.parent, **({"input": str(folder)} | keys)))
    files = sorted(scan.files, key=lambda file: pq.read_table(file.path)["x"][0].as_py())
    return dict(scan.partitions), [file.partitions for file in files]


def make_files(folder: Path, *names: str) -> Path:
    for i, name in enumerate(names):
        write(folder / "input" / name / "f.parquet", pa.table({"x": [i]}))
    return folder / "input"


@pytest.mark.parametrize("value", VALUES)
def test_values_are_typed_as_pyarrow_types_them(tmp_path: Path, value: str) -> None:
    folder = make_files(tmp_path, f"a={value}", f"a={value}/b=3")
    assert scanned(folder) == as_pyarrow(folder)


@pytest.mark.parametrize(
    "names",
    [
        ["a=1", "a=x"],
        ["a=1", "a=__HIVE_DEFAULT_PARTITION__"],
        ["a=x", "a=__HIVE_DEFAULT_PARTITION__"],
        ["a=", "a=3"],
        ["a=1/b=2", "a=3"],
        ["a=1/a=2"],
        ["a=1/none/b=2", "c/a=4"],
        ["a%20b=1"],
        ["plain", "more/plain"],
    ],
)
def test_columns_are_those_of_pyarrow(tmp_path: Path, names: list[str]) -> None:
    folder = make_files(tmp_path, *names)
    assert scanned(folder) == as_pyarrow(folder)


@pytest.mark.parametrize("value", [3, -3, "x", "x y/%=ü", "", None])
def test_a_folder_says_what_was_written(value: Any) -> None:
    folder = partition_folder({"a b": value, "c": 1})
    text = None if value is None else str(value)
    assert partition_texts(f"{folder}/file") == {"a b": text, "c": "1"}


def test_where_chooses_files_before_their_footers_are_read(tmp_path: Path) -> None:
    folder = make_files(
        tmp_path, *(f"date=2026-11-{d}/hour=0{h}" for d in (18, 19) for h in (5, 6))
    )
    (folder / "date=2026-11-18/hour=05/f.parquet").write_bytes(b"broken")
    where = "date = 2026-11-19 and hour < 6"
    assert scanned(folder, where=where) == (
        {"date": "string", "hour": "int32"},
        [{"date": "2026-11-19", "hour": 5}],
    )
    with pytest.raises(ConfigError, match="leaves none of 4 files"):
        scanned(folder, where="hour = 7")
    with pytest.raises(ConfigError, match="day is no partition column"):
        scanned(folder, where="day = 7")


@pytest.mark.parametrize(
    ("entry", "columns"),
    [
        ("input", {"a": 1, "b": 2}),
        ("input/a=1", {"b": 2}),
        ("input/*/b=2", {"a": 1, "b": 2}),
        ("input/a=1/*/*.parquet", {"b": 2}),
        ("input/a=1/b=2/f.parquet", {}),
    ],
)
def test_columns_begin_below_the_entry_or_the_base(
    tmp_path: Path, entry: str, columns: dict[str, int]
) -> None:
    folder = make_files(tmp_path, "a=1/b=2")
    entry = str(tmp_path / entry)
    assert scanned(folder, input=entry)[1] == [columns]
    base = str(tmp_path / "input")
    assert scanned(folder, input=entry, partition_base=base)[1] == [{"a": 1, "b": 2}]
    with pytest.raises(ConfigError, match="is not below partition_base"):
        scanned(folder, input=entry, partition_base=str(tmp_path / "inp"))


def test_links_keep_the_names_under_which_they_lie(tmp_path: Path) -> None:
    folder = make_files(tmp_path, "a=1")
    (folder / "a=2").mkdir()
    target = write(tmp_path / "elsewhere/g.parquet", pa.table({"x": [7]}))
    (folder / "a=2/g.parquet").symlink_to(target)
    assert scanned(folder)[1] == [{"a": 1}, {"a": 2}]


@pytest.fixture
def partitioned(tmp_path: Path) -> Path:
    save(tmp_path / "bundle", encoded_spec())
    for hour in ("05", "06"):
        path = tmp_path / f"input/date=2026-11-19/hour={hour}/f.parquet"
        write(path, encoded_table(19, label=None))
    return tmp_path


def test_partition_columns_are_keys_and_carried(partitioned: Path) -> None:
    keys = {"key_columns": ["hour", "row_id"], "carry_columns": ["date"]}
    plan = make_plan(job(partitioned, **keys))
    assert plan.columns.partitions == {"hour": "int32", "date": "string"}
    assert plan.columns.read_columns == ["row_id", "C1", "C2", "I1"]
    assert [unit.partitions["hour"] for unit in plan.units] == [5, 6]


def test_what_counts_in_the_identity(partitioned: Path) -> None:
    carried = {"carry_columns": ["hour"]}
    half = {"where": "hour = 5"}
    plain = make_plan(job(partitioned)).identity
    found = [make_plan(job(partitioned, **keys)).identity for keys in (carried, half)]
    assert len({plain, *found}) == 3
    day = str(partitioned / "input/date=2026-11-19")
    assert make_plan(job(partitioned, input=day)).identity == plain  # the same files, none used
    base = str(partitioned / "input")
    assert (
        make_plan(job(partitioned, input=day, partition_base=base, **carried)).identity
        == (found[0])
    )


def test_a_column_of_folder_and_of_every_file_is_that_of_the_file(tmp_path: Path) -> None:
    """As Polars writes partitions, and others if they are asked to."""
    tiny_bundle(tmp_path / "bundle")
    table = encoded(40).append_column("hour", pa.array([5] * 20 + [6] * 20, pa.int64()))
    for hour, rows in ((5, table.slice(0, 20)), (6, table.slice(20))):
        write(tmp_path / f"input/hour={hour}/f.parquet", rows)
    write(tmp_path / "input/hour=7/empty.parquet", table.slice(0, 0).drop_columns(["hour"]))

    keys = {"key_columns": ["hour", "row_id"], "where": "hour in (6, 7)"}
    plan = make_plan(JobConfig.model_validate(job_keys(tmp_path, **keys)))
    assert plan.columns.partitions == {} and [unit.rows for unit in plan.units] == [20]
    score_here(tmp_path, **keys)
    scored = read_scores(tmp_path / "output")
    assert scored.column("hour").to_pylist() == [6] * 20
    assert scored.column("row_id").to_pylist() == list(range(20, 40))


def test_a_column_of_folder_and_of_some_files_is_refused_if_used(partitioned: Path) -> None:
    write(partitioned / "input/date=2026-11-19/hour=07/f.parquet", encoded_table(hour=[7] * 111))
    config = job(partitioned)
    assert make_plan(config).total_rows == 19 + 19 + 111  # it is not used
    with pytest.raises(ContractError, match="column hour: there are 2 of this name"):
        make_plan(job(partitioned, carry_columns=["hour"]))
