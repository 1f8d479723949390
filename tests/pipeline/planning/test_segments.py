"""Rows by segment, and columns that have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.config.segments import Segments
from pipeline.errors import ConfigError, ContractError
from pipeline.planning.inputs import InputFile
from pipeline.planning.segments import check_segments, segment_rows


def segments(*values: str) -> Segments:
    """The first two share a bundle."""
    names = ["a", "a", "b"]
    return Segments(column="c", bundles=dict(zip(values, names, strict=False)))


def file_of(column: pa.Array, name: str = "c", rows: int = 1) -> InputFile:
    return InputFile(
        path=str(Path("/in") / "x.parquet"),
        size=1,
        mtime_ns=1,
        footer_sha256="00",
        rows=rows,
        row_group_rows=(rows,),
        arrow_schema=pa.schema([(name, column.type)]),
    )


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.int8(),
        pa.uint64(),
        pa.dictionary(pa.int32(), pa.int64()),
    ],
    ids=str,
)
def test_each_row_has_the_bundle_of_its_value(kind: pa.DataType) -> None:
    given: list[Any] = [7, None, 1, 2, 9, 1, 7]
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not pa.types.is_integer(plain):
        given = [None if value is None else str(value) for value in given]
    chunks = [pa.array(part, plain) for part in (given[:3], given[3:])]
    if pa.types.is_dictionary(kind):
        chunks = [chunk.dictionary_encode().cast(kind) for chunk in chunks]
    column = pa.chunked_array(chunks)
    asked = segments("1", "2", "7")
    check_segments([file_of(column)], asked)
    found = segment_rows(column, asked)
    assert {name: rows.tolist() for name, rows in found.by_bundle.items()} == {
        "a": [2, 3, 5],
        "b": [0, 6],
        "": [1, 4],
    }
    assert found.by_value == {"1": 2, "2": 1, "7": 2}


def test_rows_of_one_bundle_alone() -> None:
    found = segment_rows(pa.chunked_array([["x", "x"]]), segments("x", "y", "z"))
    assert [len(rows) for rows in found.by_bundle.values()] == [2, 0, 0]
    assert np.concatenate(list(found.by_bundle.values())).tolist() == [0, 1]


def test_a_column_that_is_none_is_refused() -> None:
    asked = segments("DE")
    with pytest.raises(
        ContractError, match=r"/in/x.parquet: the column 'c' of segments is missing"
    ):
        check_segments([file_of(pa.array([1]), "other")], asked)
    with pytest.raises(ContractError, match="column c is double, and segments need texts or int"):
        check_segments([file_of(pa.array([1.5]))], asked)
    check_segments([file_of(pa.array([1.5]), rows=0)], asked)
    check_segments([file_of(pa.array([1.5]))], None)


@pytest.mark.parametrize("value", ["DE", "300", "01"])
def test_a_value_of_another_type_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{value}', which column c of /in/x.parquet \(int8\)"):
        check_segments([file_of(pa.array([1], pa.int8()))], segments(value))
