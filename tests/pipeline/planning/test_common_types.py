"""Published columns that files store in several types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_cases import encoded_table, job_keys, read_scores, score_here, tiny_bundle

from pipeline.config.job import JobConfig
from pipeline.errors import ContractError
from pipeline.planning.common_types import common_type
from pipeline.planning.plan import make_plan

TEXTS = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize(
    ("kinds", "common"),
    [
        ([pa.int32(), pa.int64(), pa.int8()], pa.int64()),
        ([pa.uint8(), pa.uint32()], pa.uint32()),
        ([pa.uint8(), pa.int8()], pa.int16()),
        ([pa.uint32(), pa.int8()], pa.int64()),
        ([pa.uint64(), pa.int8()], None),
        ([pa.float32(), pa.float64()], pa.float64()),
        ([pa.int8(), pa.float64()], pa.float64()),
        ([pa.int32(), pa.float32()], pa.float64()),
        ([pa.int64(), pa.float64()], None),
        ([pa.null(), pa.int8(), pa.int32()], pa.int32()),
        ([pa.null(), pa.null()], pa.null()),
        ([pa.null(), pa.list_(pa.int64())], pa.list_(pa.int64())),
        ([pa.large_string(), TEXTS], pa.large_string()),
        ([pa.int64(), pa.string()], None),
        ([pa.int8(), pa.bool_()], None),
        ([pa.timestamp("us"), pa.timestamp("ns")], None),
        ([pa.date32(), pa.timestamp("us")], None),
        ([pa.decimal128(9, 2), pa.decimal128(18, 2)], None),
    ],
)
def test_the_type_that_holds_all(kinds: list[pa.DataType], common: pa.DataType | None) -> None:
    assert common_type(kinds) == common
    assert common_type(kinds[::-1]) in (common, *([TEXTS] if TEXTS in kinds else []))


def write_each(folder: Path, name: str, columns: list[pa.Array], files: int = 1) -> None:
    """Files of 19 rows, with one column in the types of these, for each so many files."""
    (folder / "input").mkdir()
    for i, values in enumerate(column for column in columns for _ in range(files)):
        table = encoded_table(19, first_key=19 * i)
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, values) if at >= 0 else table.append_column(name, values)
        pq.write_table(table, folder / f"input/{i:03}.parquet")


@pytest.mark.parametrize("files", [1, 40])  # 40: units of several files
def test_parts_have_one_type(tmp_path: Path, files: int) -> None:
    tiny_bundle(tmp_path / "bundle")
    values = list(range(-1, 18))
    columns = [pa.array(values, pa.int8()), pa.nulls(19), pa.array([None, *values[1:]], "f8")]
    write_each(tmp_path, "label", columns, files)
    score_here(tmp_path)
    found = read_scores(tmp_path / "output").sort_by("row_id").column("label")
    assert found.type == pa.float64()
    each = [column.to_pylist() for column in columns for _ in range(files)]
    assert found.to_pylist() == [value for column in each for value in column]


def test_keys_have_one_type_also_beside_columns_that_pyarrow_reads(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    keys = [pa.array(range(19), pa.int32()), pa.array(range(19, 38), pa.int64())]
    write_each(tmp_path, "row_id", keys)
    for path, dense in zip(sorted((tmp_path / "input").iterdir()), ("f2", "f8"), strict=True):
        table = pq.read_table(path)
        at = table.schema.get_field_index("I1")
        pq.write_table(table.set_column(at, "I1", table.column("I1").cast(dense)), path)
    score_here(tmp_path)
    found = read_scores(tmp_path / "output").column("row_id")
    assert found.equals(pa.chunked_array([range(38)], pa.int64()))


@pytest.mark.parametrize(
    "columns",
    [
        [pa.array([1] * 19, pa.int64()), pa.array([0.5] * 19)],
        [pa.array(["a"] * 19), pa.array([1] * 19)],
    ],
)
def test_types_that_none_holds_are_told(tmp_path: Path, columns: list[Any]) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_each(tmp_path, "more", columns)
    keys = job_keys(tmp_path, carry_columns=["more"])
    with pytest.raises(ContractError, match=r"1\.parquet: column more is .* write all files with"):
        make_plan(JobConfig.model_validate(keys))
