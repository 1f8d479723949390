"""Columns of any type as texts, by which rows are sliced and grouped."""

from __future__ import annotations

import uuid

import numpy as np
import pyarrow as pa
import pytest

from pipeline.evaluation.rows import group_numbers
from pipeline.evaluation.slices import encode

BYTES = [b"\xff" * 16, bytes(16), None, b"\xff" * 16]


@pytest.mark.parametrize(
    ("values", "kind", "texts"),
    [
        ([1.5, 2.0, None, 1.5], pa.float16(), ["1.5", "2", "null"]),
        ([1, 20, None, 1], pa.decimal32(6, 0), ["1", "20", "null"]),
        ([True, False, None, True], pa.bool_(), ["true", "false", "null"]),
        ([b"a", b"\xffb", None, b"a"], pa.binary(), ["61", "ff62", "null"]),
        ([b"a", b"b", None, b"a"], pa.large_binary(), ["a", "b", "null"]),
        (BYTES, pa.binary(16), ["ff" * 16, "00" * 16, "null"]),
        (BYTES, pa.uuid(), [str(uuid.UUID(bytes=b"\xff" * 16)), str(uuid.UUID(int=0)), "null"]),
        (["x", "y", None, "x"], pa.dictionary(pa.int8(), pa.string()), ["x", "y", "null"]),
    ],
    ids=str,
)
def test_types(values: list[object], kind: pa.DataType, texts: list[str]) -> None:
    halves = [pa.array(values[:2], kind), pa.array(values[2:], kind)]
    for column in (pa.chunked_array([pa.array(values, kind)]), pa.chunked_array(halves)):
        found = encode(column)
        assert [found.text[i] for i in found.number] == [*texts, texts[0]]
        numbers = group_numbers(column)
        assert numbers[0] == numbers[3] and len(set(numbers.tolist())) == 3


def test_uuids_are_told_apart() -> None:
    values = [uuid.UUID(int=i).bytes for i in range(100)]
    numbers = group_numbers(pa.chunked_array([pa.array(values, pa.uuid())]))
    assert len(np.unique(numbers)) == 100
