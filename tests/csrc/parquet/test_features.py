"""Columns as features: integers of any width and sign, floats of any number, nulls told by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from column_pages import check_pages
from parquet_by_hand import hybrid, plain, sized, v1, v2
from parquet_by_hand import write as write_by_hand
from parquet_files import guarded, untouched, write

from dpiframe_core import _core

TYPES = {
    **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16"), "<i4"),
    **dict.fromkeys(("int64", "uint32"), "<i8"),
    "uint64": "<u8",
    "float": "<f4",
    "double": "<f8",
}
ENCODINGS: dict[str, dict[str, Any]] = {
    "dictionary": {"use_dictionary": True},
    "plain": {"use_dictionary": False},
    "delta": {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"},
    "split": {"use_dictionary": False, "column_encoding": "BYTE_STREAM_SPLIT"},
}


def values_of(kind: str, rows: int, nulls: float, seed: int = 0) -> pa.Array:
    """Values over the whole range and small ones, in runs and not."""
    random = np.random.default_rng([seed, rows])
    if kind in ("float", "double"):
        numbers = random.normal(size=rows).astype({"float": "f4", "double": "f8"}[kind])
    else:
        info = np.iinfo(kind)
        numbers = random.integers(info.min, info.max, rows, kind, endpoint=True)
        small = random.integers(0, 100, rows).astype(kind)
        numbers = np.where(np.arange(rows) // 50 % 2, numbers, small)
    mask = random.random(rows) < nulls
    mask[rows // 3 : rows // 2] = nulls > 0
    return pa.array(numbers, mask=mask)


def read_features(
    path: Path, kind: str, first: int = 0, stop: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Column x and the rows of its nulls."""
    file = _core.ParquetFile(str(path))
    stop = len(file.group_rows) if stop is None else stop
    out, memory = guarded(kind, sum(file.group_rows[first:stop]))
    (rows,) = file.read_features(["x"], first, stop, [out])
    assert untouched(memory)
    return out, rows


def check(path: Path, kind: str, first: int = 0, stop: int | None = None) -> None:
    """As pyarrow reads it, in the column's own type and as float32."""
    wanted = pq.ParquetFile(path).read_row_groups(
        list(range(first, stop or pq.read_metadata(path).num_row_groups))
    )
    column = wanted.column("x").combine_chunks()
    nulls = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
    numbers = column.fill_null(0).to_numpy()
    for out_kind in {kind if kind != "<f8" else "<f4", "<f4"}:
        out, rows = read_features(path, out_kind, first, stop)
        np.testing.assert_array_equal(out, numbers.astype(out_kind))
        np.testing.assert_array_equal(rows, nulls)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", TYPES)
def test_types_encodings_and_nulls(tmp_path, kind, encoding, version):
    if encoding == "delta" and kind in ("float", "double"):
        pytest.skip("there is none of floats")
    options = ENCODINGS[encoding] | {"data_page_version": version}
    options |= {"data_page_size": 500, "write_batch_size": 64}
    for codec, nulls in (("gzip", 0.0), ("snappy", 0.1), ("zstd", 0.9), ("lz4", 1.0)):
        groups = [
            pa.table({"x": values_of(kind, rows, nulls)}) for rows in (1, 19, 33, 129, 1111, 7)
        ]
        path = write(tmp_path / codec, groups, compression=codec, **options)
        file = _core.ParquetFile(str(path))
        assert file.feature_types(["x"], 0, 6) == [TYPES[kind]]
        check(path, TYPES[kind])
        check(path, TYPES[kind], 2, 5)


@pytest.mark.parametrize("encoding", ["delta", "split"])
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_pages_of_these_encodings(tmp_path, kind, encoding):
    """The code of a GPU gives what the reader of columns gives."""
    tables = [pa.table({"x": values_of(kind, rows, 0.0)}) for rows in (1, 2, 32, 34, 129, 20_011)]
    for version in ("1.0", "2.0"):
        options = ENCODINGS[encoding] | {"data_page_version": version, "data_page_size": 3000}
        check_pages(write(tmp_path / version, tables, **options), ["x"])


@pytest.mark.parametrize("step", [0, 1, -3, 1 << 40])
def test_deltas_of_few_bits_and_many(tmp_path, step):
    values = np.arange(5000, dtype="i8") * step + np.arange(5000) % 3 * (step // 2)
    table = pa.table({"x": values})
    path = write(tmp_path / "f", table, **ENCODINGS["delta"])
    np.testing.assert_array_equal(read_features(path, "<i8")[0], values)


def test_differences_wider_than_the_numbers(tmp_path):
    values = values_of("uint32", 5000, nulls=0.0)
    path = write(tmp_path / "plain", pa.table({"x": values}))
    wide = tmp_path / "wide"
    duckdb.sql(
        f"copy (from read_parquet('{path}')) to '{wide}' (format parquet, parquet_version v2)"
    )

    assert "DELTA_BINARY_PACKED" in pq.read_metadata(wide).row_group(0).column(0).encodings
    np.testing.assert_array_equal(read_features(wide, "<i8")[0], values)


def varints(*values: int) -> bytes:
    out = bytearray()
    for value in values:
        while value >= 0x80:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)


DELTA, SPLIT = 5, 9
GOOD = varints(128, 4, 3, 0) + varints(2) + bytes([0, 0, 0, 0])  # 0, 1, 2
BAD = {
    "nothing": (b"", DELTA),
    "no_block": (GOOD[:-5], DELTA),
    "no_widths": (GOOD[:-2], DELTA),
    "fewer_values": (varints(128, 4, 2, 0, 2) + bytes(4), DELTA),
    "block_of_0": (varints(0, 4, 3, 0, 2) + bytes(4), DELTA),
    "no_miniblocks": (varints(128, 0, 3, 0, 2) + bytes(4), DELTA),
    "miniblocks_of_16": (varints(128, 8, 3, 0, 2) + bytes(8), DELTA),
    "miniblocks_of_42": (varints(128, 3, 3, 0, 2) + bytes(8), DELTA),
    "65_bits": (varints(128, 4, 3, 0, 2) + bytes([65, 0, 0, 0]) + bytes(300), DELTA),
    "cut_off": (varints(128, 4, 3, 0, 2) + bytes([32, 0, 0, 0]) + bytes(7), DELTA),
    "large_block": (varints(1 << 40, 4, 3, 0, 2) + bytes(4), DELTA),
    "endless": (b"\xff" * 40, DELTA),
    "split_cut_off": (bytes(11), SPLIT),
    "split_too_short": (bytes(8), SPLIT),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_pages_are_refused(tmp_path, case):
    body, encoding = BAD[case]
    chunk = {2: [encoding]}
    path = tmp_path / "good"
    write_by_hand(path, [v1(GOOD, 3, DELTA)], 3, chunk={2: [DELTA]})
    assert read_features(path, "<i4")[0].tolist() == [0, 1, 2]
    check_pages(path, ["x"])
    for page in (v1(body, 3, encoding), v2(body, 3, encoding)):
        write_by_hand(tmp_path / "f", [page], 3, chunk=chunk)
        with pytest.raises(ValueError, match="column x"):
            read_features(tmp_path / "f", "<i4")
        with pytest.raises(ValueError):
            check_pages(tmp_path / "f", ["x"])


def test_levels_that_lie(tmp_path):
    body = plain("<i4", range(20))
    for levels in (hybrid(1, (2, 20)), hybrid(1, (1, 19)), b""):
        write_by_hand(tmp_path / "f", [v1(sized(levels) + body, 20)], 20, optional=True)
        with pytest.raises(ValueError, match="column x"):
            read_features(tmp_path / "f", "<i4")
    levels = hybrid(1, (1, 10), (0, 10))
    write_by_hand(tmp_path / "f", [v2(body, 20, levels=levels)], 20, optional=True)
    with pytest.raises(ValueError, match="a page of 0 nulls has 10"):
        read_features(tmp_path / "f", "<i4")
    write_by_hand(tmp_path / "f", [v2(body, 20, own={2: 10})], 20)  # in a column without levels
    with pytest.raises(ValueError, match="nulls"):
        read_features(tmp_path / "f", "<i4")


def test_wrong_arrays(tmp_path):
    path = write(tmp_path / "f", pa.table({"x": pa.array([1, 2, 3], pa.uint32()), "y": ["a"] * 3}))
    file = _core.ParquetFile(str(path))
    assert file.feature_types(["y", "z"], 0, 1) == [None, None]
    for name, out in (("x", np.zeros(3, "i4")), ("y", np.zeros(3, "i8")), ("z", np.zeros(3, "i8"))):
        with pytest.raises(ValueError, match=f"column {name} cannot be read"):
            file.read_features([name], 0, 1, [out])
    for out in (np.zeros(2, "i8"), np.zeros(3, "f8"), np.zeros(3, "i2"), np.zeros((3, 1), "i8")):
        with pytest.raises(ValueError, match="x"):
            file.read_features(["x"], 0, 1, [out])
