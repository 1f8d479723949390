"""Columns that the parquet reader leaves to pyarrow."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from encrypted_files import write_encrypted
from parquet_by_hand import TYPES, Raw, plain, v1
from parquet_by_hand import write as write_by_hand
from parquet_files import check, read, write

from dpiframe_core import _core

ONES = [1] * 3
OTHER_TYPES = {
    "string": pa.array(["a", "b", "a"]),
    "string_dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
    "binary": pa.array([b"abcd"] * 3),
    "fixed": pa.array([b"abcd"] * 3, pa.binary(4)),
    "half": pa.array(np.ones(3, np.float16)),
    "bool": pa.array([True, False, True]),
    **{kind: pa.array(ONES, kind) for kind in ("int8", "int16", "uint8", "uint16")},
    **{kind: pa.array(ONES, kind) for kind in ("uint32", "uint64", "date32", "date64")},
    "time32": pa.array(ONES, pa.time32("ms")),
    "time64": pa.array(ONES, pa.time64("us")),
    **{
        f"timestamp_{unit}": pa.array([1000] * 3, pa.timestamp(unit)) for unit in ("ms", "us", "ns")
    },
    "datetime": pa.array([datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)] * 3),
    "decimal": pa.array([Decimal("1.5")] * 3, pa.decimal128(9, 1)),
    "decimal_18": pa.array([Decimal("1.5")] * 3, pa.decimal128(18, 1)),
    "decimal_38": pa.array([Decimal("1.5")] * 3, pa.decimal128(38, 1)),
    "struct": pa.array([{"x": 1}] * 3),
    "list": pa.array([[1]] * 3),
    "fixed_list": pa.array([[1, 2]] * 3, pa.list_(pa.int32(), 2)),
    "map": pa.array([[("k", 1)]] * 3, pa.map_(pa.string(), pa.int32())),
    "null": pa.nulls(3),
    "nulls": pa.array([1, None, 2]),
    "only_nulls": pa.array([None] * 3, pa.int64()),
}


def number_type(path: Path, name: str = "x") -> str | None:
    file = _core.ParquetFile(str(path))
    return file.number_type(name, 0, len(file.group_rows))


@pytest.mark.parametrize(
    "form", [{}, {"store_decimal_as_integer": True}, {"version": "1.0"}], ids=str
)
@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_columns_of_other_types(tmp_path, kind, form):
    table = pa.table({"before": ONES, "x": OTHER_TYPES[kind], "after": ONES})
    path = write(tmp_path / "f", table, **form)
    if kind == "uint32" and form.get("version") == "1.0":  # written as int64
        assert number_type(path) == "<i8"
    else:
        assert number_type(path) is None
        with pytest.raises(ValueError, match="x"):
            _core.ParquetFile(str(path)).read(["x"], 0, 1, [np.zeros(3, "i8")])
    check(path, ["before", "after"])


def test_int96(tmp_path):
    table = pa.table({"x": pa.array(ONES, pa.timestamp("ns"))})
    assert number_type(write(tmp_path / "f", table, use_deprecated_int96_timestamps=True)) is None


@pytest.mark.parametrize("codec", ["brotli"])
def test_other_codecs(tmp_path, codec):
    table = pa.table({"x": ONES, "snappy": ONES})
    path = write(tmp_path / "f", table, compression={"x": codec, "snappy": "snappy"})
    assert number_type(path) is None
    check(path, ["snappy"])


MEANINGS = [
    *({6: converted} for converted in (0, 5, 6, 7, 13, 15, 16, 18, 99)),
    *({10: {kind: {}}} for kind in (1, 6, 11, 15, 99)),  # string, date, unknown, float16, ...
    *(
        {10: {10: {1: Raw(3, bytes([bits])), 2: signed}}}
        for bits, signed in [(32, False), (16, True)]
    ),
    {10: {10: {}}},
    {6: 17, 10: {6: {}}},
    {6: 6, 10: {10: {1: Raw(3, b" "), 2: True}}},
]


@pytest.mark.parametrize("element", MEANINGS, ids=str)
def test_numbers_of_another_meaning(tmp_path, element):
    path = tmp_path / "f"
    write_by_hand(path, [v1(plain("<i4", ONES), 3)], 3, element=element)
    assert number_type(path) is None


@pytest.mark.parametrize("kind", TYPES)
def test_a_repeated_column(tmp_path, kind):
    path = tmp_path / "f"
    write_by_hand(path, [v1(plain(kind, ONES), 3)], 3, kind=kind, element={3: 2})
    assert number_type(path) is None


def test_a_chunk_in_another_file(tmp_path):
    path = tmp_path / "f"
    write_by_hand(path, [v1(plain("<i4", ONES), 3)], 3, column={1: "elsewhere.parquet"})
    assert number_type(path) is None


def test_missing_columns_and_other_cases_of_letters(tmp_path):
    path = write(tmp_path / "f", pa.table({"x": ONES, "y": ONES}))
    for name in ("z", "", "X", "x.y", "schema", "x\x00", "x" * 10_000):
        assert number_type(path, name) is None
        with pytest.raises(ValueError, match="column"):
            _core.ParquetFile(str(path)).read([name], 0, 1, [np.zeros(3, "i8")])


def test_two_columns_of_one_name(tmp_path):
    table = pa.table([pa.array(ONES), pa.array([1.5] * 3), pa.array(ONES)], ["x", "y", "x"])
    path = write(tmp_path / "f", table)
    assert number_type(path) is None
    check(path, ["y"])


def test_nulls_of_one_row_group(tmp_path):
    tables = [pa.table({"x": pa.array(x, pa.int32())}) for x in ([1, 2], [3, None], [4])]
    path = write(tmp_path / "f", tables)
    file = _core.ParquetFile(str(path))
    found = {(a, b): file.number_type("x", a, b) for a in range(3) for b in range(a + 1, 4)}
    assert {r: kind is None for r, kind in found.items()} == {r: r[0] < 2 < r[1] + 1 for r in found}
    check(path, ["x"], 0, 1)
    check(path, ["x"], 2, 3)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy"])
@pytest.mark.parametrize("place", [0, 1, 777, 999, None])
def test_nulls_without_statistics(tmp_path, codec, version, place):
    values = np.arange(1000) // 100
    mask = np.full(1000, place is None)
    mask[place or 0] = True
    table = pa.table({"fine": values, "x": pa.array(values, mask=mask)})
    options = {"compression": codec, "data_page_version": version}
    path = write(tmp_path / "f", [table] * 2, write_statistics=False, **options)
    if number_type(path) is not None:  # None would do as well
        file = _core.ParquetFile(str(path))
        outs = [np.zeros(1000, "i8") for _ in range(2)]
        with pytest.raises(ValueError, match="null") as error:
            file.read(["fine", "x"], 1, 2, outs)
        assert "x" in str(error.value) and "row group 1" in str(error.value)
    check(path, ["fine"])


@pytest.mark.parametrize("plain_footer", [False, True])
def test_encrypted_files(tmp_path, plain_footer):
    table = pa.table({"secret": [1, 2, 3], "open": [4, 5, 6], "some": [{"a": 1, "b": 2}] * 3})
    path = write_encrypted(tmp_path / "f", table, ["secret", "some.b"], plain_footer)
    try:
        file = _core.ParquetFile(str(path))
    except ValueError:
        assert not plain_footer
    else:
        assert plain_footer
        assert file.encrypted == ["secret", "some"]
        assert file.number_type("secret", 0, 1) is None
        assert read(file, ["open"])[0].tolist() == [4, 5, 6]
