"""Footers that lie, made byte by byte: what they say is refused, or does not matter."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest
from parquet_by_hand import (
    I64,
    Raw,
    hybrid,
    plain,
    sized,
    thrift,
    v1,
    varint,
    write,
)
from parquet_files import guarded, untouched

from dpiframe_core import _core

BODY = plain("<i4", range(20))
LARGE = (1 << 31) - 1
HUGE = (1 << 63) - 1
FOOTERS = {
    **{
        f"{name}_{number}_{size}": {name: {number: I64(size)}}
        for name, number in (("group", 3), ("chunk", 7), ("chunk", 9), ("chunk", 11))
        for size in (-1, -HUGE - 1, 1, 19, 1 << 32, HUGE, HUGE - 100)
    },
    "no_schema": {"footer": {2: None}},
    "empty_schema": {"footer": {2: []}},
    "only_a_root": {"footer": {2: [{4: "schema", 5: 0}]}},
    "no_groups": {"footer": {4: None}},
    "no_columns": {"group": {1: []}},
    "no_rows": {"group": {3: None}},
    "two_columns": {"group": {1: [{}, {}]}},
    "no_metadata": {"column": {3: None}},
    "no_chunk": {"chunk": dict.fromkeys(range(1, 13))},
    "no_codec": {"chunk": {4: None}},
    "no_type_of_the_chunk": {"chunk": {1: None}},
    "no_encodings": {"chunk": {2: None}},
    "no_name": {"element": {4: None}},
    **{f"children_{n}": {"root": {5: n}} for n in (-1, 0, 2, 100, LARGE, -LARGE - 1, I64(HUGE))},
    **{f"grandchildren_{n}": {"element": {5: n}} for n in (-1, 1, LARGE)},
    **{f"type_{n}": {"element": {1: n}} for n in (-1, 0, 2, 3, 4, 6, 7, 8, None)},
    **{f"chunk_type_{n}": {"chunk": {1: n}} for n in (-1, 0, 2, 3, 4, 6, 7, 8)},
    **{f"codec_{n}": {"chunk": {4: n}} for n in (-1, 1, 2, 3, 6, 7, 99)},
    "schema_of_numbers": {"footer": {2: [1, 2]}},
    "groups_of_numbers": {"footer": {4: [1] * 100}},
    "columns_of_texts": {"group": {1: [b"abc"]}},
    "deep": {"footer": {9: Raw(12, b"\x1c" * 1_000_000)}},
    "deep_lists": {"footer": {9: Raw(9, b"\x19" * 1_000_000)}},
    "deep_schema": {"footer": {2: [{4: "s", 5: 1}] * 100_000 + [{1: 1, 3: 0, 4: "x"}]}},
    "wide_schema": {"footer": {2: [{4: "s", 5: 100_000}] + [{1: 1, 3: 0, 4: "x"}] * 100_000}},
    "long_schema": {"footer": {2: Raw(9, b"\xfc" + varint(LARGE))}},
    "long_groups": {"footer": {4: Raw(9, b"\xfc" + varint(HUGE))}},
    "long_name": {"element": {4: Raw(8, varint(HUGE))}},
}


@pytest.mark.parametrize("case", FOOTERS)
def test_footers(tmp_path, case):
    """At the latest, `read` refuses; where it does not, the values are right."""
    path = write(tmp_path / "f", [v1(BODY, 20)], 20, **FOOTERS[case])
    out, memory = guarded("<i4", 20)
    try:
        file = _core.ParquetFile(str(path))
        if file.number_type("x", 0, 1) is not None:
            file.read(["x"], 0, 1, [out])
            assert out.tobytes() == BODY
    except ValueError:
        pass
    assert untouched(memory)


def footer_file(path: Path, footer: bytes) -> str:
    path.write_bytes(b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1")
    return str(path)


def test_row_groups_before_the_schema(tmp_path):
    """Fields may come in any order; the groups have no column, the schema has one."""
    element = {1: 1, 3: 0, 4: "x"}
    groups = b"\x49" + b"\x1c" + thrift({3: I64(20)})
    schema = b"\x09" + varint(4) + b"\x2c" + thrift({4: "s", 5: 1}) + thrift(element)
    with pytest.raises(ValueError):
        _core.ParquetFile(footer_file(tmp_path / "f", groups + schema + b"\0"))


def test_more_rows_than_can_be_counted(tmp_path):
    group = {1: [], 3: I64(HUGE)}
    fields = thrift({2: [{4: "s", 5: 0}], 4: [group] * 3})
    with pytest.raises(ValueError):
        file = _core.ParquetFile(footer_file(tmp_path / "f", fields))
        file.number_type("x", 0, 3)


@pytest.mark.parametrize("values", [I64(-1), I64(0), I64(19), I64(21), I64(HUGE)], ids=str)
def test_a_chunk_has_a_value_for_each_row(tmp_path, values):
    path = write(tmp_path / "f", [v1(BODY, 20)], 20, chunk={5: values})
    assert _core.ParquetFile(str(path)).number_type("x", 0, 1) is None


REQUIRED = [
    *(("footer", field) for field in (1, 2, 3, 4)),
    *(("element", field) for field in (4,)),
    *(("group", field) for field in (1, 2, 3)),
    *(("column", field) for field in (2,)),
    *(("chunk", field) for field in (1, 2, 3, 4, 5, 6, 7, 9)),
]


@pytest.mark.parametrize(("struct_name", "field"), REQUIRED)
def test_fields_that_the_format_requires(tmp_path, struct_name, field):
    path = write(tmp_path / "f", [v1(BODY, 20)], 20, **{struct_name: {field: None}})
    with pytest.raises(ValueError, match=f"its footer cannot be read: .*lacks field {field}"):
        _core.ParquetFile(str(path))


@pytest.mark.parametrize(
    "chunk",
    [
        {16: {3: [I64(20), I64(0)]}},  # a required column has one definition level, and no more
        {16: {2: [I64(20), I64(0)]}},
        {16: {1: I64(80)}},  # bytes of texts, in a column of numbers
        {13: [{1: 0, 2: 0}]},  # a page encoding without a count
    ],
    ids=str,
)
def test_counts_of_another_column(tmp_path, chunk):
    """Arrow, which reads other columns of the file, would end the process."""
    with pytest.raises(ValueError, match="its footer cannot be read"):
        _core.ParquetFile(str(write(tmp_path / "f", [v1(BODY, 20)], 20, chunk=chunk)))


def test_counts_of_levels(tmp_path):
    chunk = {16: {2: [I64(20)], 3: [I64(0), I64(20)]}}
    path = write(
        tmp_path / "f", [v1(sized(hybrid(1, (1, 20))) + BODY, 20)], 20, optional=True, chunk=chunk
    )
    assert _core.ParquetFile(str(path)).number_type("x", 0, 1) == "<i4"


def test_maps_of_bools_that_claim_more_than_there_is(tmp_path):
    """Bools take a byte each in a map: else 50,000 maps of 100,000 entries would take minutes."""
    maps = b"\xfb" + varint(50_000) + (varint(100_000) + b"\x11") * 50_000
    path = write(tmp_path / "f", [v1(BODY, 20)], 20, footer={10: Raw(9, maps)})
    start = time.monotonic()
    with pytest.raises(ValueError, match="its footer cannot be read"):
        _core.ParquetFile(str(path))
    assert time.monotonic() - start < 5


def test_types_that_contradict_each_other(tmp_path):
    """The schema says int32, the chunk says otherwise: which one is wrong cannot be known."""
    for kind in (2, 4, 5, 6):
        path = write(tmp_path / "f", [v1(BODY * 2, 20)], 20, chunk={1: kind})
        assert _core.ParquetFile(str(path)).number_type("x", 0, 1) is None
