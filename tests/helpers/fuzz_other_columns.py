"""Damages small parquet files of lists and of raw columns, and reads them: each column reads or is
refused in words, raw ones also by way of the pages that a GPU takes.

    python tests/helpers/fuzz_other_columns.py --seed 1 --count 1000000 --folder /tmp/fuzz
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from column_pages import decode
from fuzz_column_pages import MOST_ROOM
from fuzz_parquet import MOST_ROWS, damaged, places
from fuzzing import main
from parquet_files import guarded, untouched

from dpiframe_core import _core

LISTS = ["l4", "l8", "lu", "lf"]
RAW = ["text", "i4", "i8", "f4", "f8"]
DIFFERENCES = {
    "text": "DELTA_BYTE_ARRAY",
    "i4": "DELTA_BINARY_PACKED",
    "i8": "DELTA_BINARY_PACKED",
    "f4": "BYTE_STREAM_SPLIT",
    "f8": "BYTE_STREAM_SPLIT",
}
LENGTH = 3
ENCODERS = [
    _core.hash_encoder(7, 1000),
    _core.bucket_encoder(-3, np.arange(2, 9, dtype=np.int32), np.array([100, 1000])),
    _core.dense_encoder(True, 1.0, 2.0, 0.5),
]


def valid_files(folder: Path) -> list[bytes]:
    """Small files of each codec, version and encoding, with nulls and without."""
    random = np.random.default_rng(0)
    files = []
    forms = itertools.product(["none", "snappy", "zstd"], ["1.0", "2.0"], range(4))
    for number, (codec, version, form) in enumerate(forms):
        path = folder / "valid"
        pq.write_table(
            _table(random, 150, nulls=number % 2 == 0),
            path,
            row_group_size=61,
            compression=codec,
            data_page_version=version,
            use_dictionary=form in (1, 2),
            column_encoding=DIFFERENCES if form == 3 else None,
            dictionary_pagesize_limit=300 if form == 2 else None,
            data_page_size=200 if form else None,
            write_batch_size=20,
        )
        files.append(path.read_bytes())
        path.unlink()
    return files


def _table(random: np.random.Generator, rows: int, nulls: bool) -> pa.Table:
    def column(kind: pa.DataType, value: Callable[[], Any]) -> pa.Array:
        values = [None if nulls and random.random() < 0.2 else value() for _ in range(rows)]
        return pa.array(values, kind)

    def number() -> int:
        return int(random.integers(0, 30))

    def elements() -> list[int | None]:
        size = random.integers(0, 6)
        return [None if nulls and random.random() < 0.1 else number() for _ in range(size)]

    return pa.table(
        {
            "l4": column(pa.list_(pa.int32()), elements),
            "l8": column(pa.large_list(pa.int64()), elements),
            "lu": column(pa.list_(pa.uint32()), elements),
            "lf": column(pa.list_(pa.float64()), elements),
            "text": column(pa.string(), lambda: "word" * (number() % 4) + str(number())),
            "i4": column(pa.int32(), number),
            "i8": column(pa.int64(), number),
            "f4": column(pa.float32(), number),
            "f8": column(pa.float64(), number),
        }
    )


def attempt(path: Path) -> list[str]:
    """What became of each column."""
    try:
        file = _core.ParquetFile(str(path))
    except (ValueError, OSError) as error:
        return [f"not opened: {type(error).__name__}"]
    stop = len(file.group_rows)
    if sum(file.group_rows) > MOST_ROWS:
        return ["too many rows"]
    lists = [_read_list(file, name, stop) for name in LISTS]
    return lists + [_read_raw(file, name, stop) for name in RAW]


def _read_list(file: _core.ParquetFile, name: str, stop: int) -> str:
    stored = file.list_type(name, 0, stop)
    if stored is None:
        return "list: no column"
    kind = {"<u4": "<i8", "<f8": "<f4"}.get(stored, stored)
    rows = sum(file.group_rows)
    found = [guarded(kind, rows) for _ in range(LENGTH)]
    try:
        bad = file.read_list(
            name, 0, stop, [out for out, _ in found], 0, name == "lu", rows % 2 > 0
        )
        assert all(0 <= row < rows for row in bad) and all(np.diff(bad) > 0), bad
    except (ValueError, OSError) as error:
        return f"list: {type(error).__name__}"
    finally:
        assert all(untouched(memory) for _, memory in found), "written outside an array"
    return "list: read"


def _read_raw(file: _core.ParquetFile, name: str, stop: int) -> str:
    if not file.is_encodable(name, 0, stop):
        return "raw: no column"
    encoders = encoders_of(name)
    rows = sum(file.group_rows)
    found = [guarded("<i4", rows) for _ in encoders]
    outs = [out for out, _ in found]
    wanted, outcome = None, "read"
    try:
        file.read_encoded([name] * len(outs), 0, stop, encoders, outs)
        wanted = np.stack(outs)
    except (ValueError, OSError) as error:
        outcome = type(error).__name__
    finally:
        assert all(untouched(memory) for _, memory in found), "written outside an array"
    _compare_pages(file, name, encoders, wanted)
    return f"raw: {outcome}"


def encoders_of(name: str) -> list[_core.ValueEncoder]:
    """Those that have codes for the values of a raw column."""
    return {"text": ENCODERS[:1], "f4": ENCODERS[1:], "f8": ENCODERS[1:]}.get(name, ENCODERS)


def raw_pages(
    file: _core.ParquetFile, name: str, encoders: list[_core.ValueEncoder]
) -> tuple[_core.ColumnPages, np.ndarray]:
    """A raw column's pages, once for each encoder, and just the memory that they take."""
    names, groups = [name] * len(encoders), (0, len(file.group_rows))
    memory = np.full(file.encoded_pages_bytes(names, *groups, encoders), 0xA5, np.uint8)
    stored = file.read_encoded_pages(names, *groups, encoders, memory)
    return stored, memory[: stored.compressed_bytes + 64].copy()


def _compare_pages(
    file: _core.ParquetFile,
    name: str,
    encoders: list[_core.ValueEncoder],
    wanted: np.ndarray | None,
) -> None:
    """By way of pages a GPU gives the same codes, or refuses what the reader refuses."""
    try:
        stored, memory = raw_pages(file, name, encoders)
        if stored.uncompressed_bytes > MOST_ROOM:
            return
        found = decode(stored, memory)
    except (ValueError, OSError) as error:
        told = str(error)
        other = "codec 2 " in told or "shares bytes with" in told or "pages that unpack to" in told
        other |= "memory of" in told or "a zstd page does not" in told  # libzstd takes some
        assert wanted is None or other, f"refused, but it can be read: {told}"
        return
    assert wanted is not None, "read, but it cannot be"
    np.testing.assert_array_equal(found, wanted)


def cases(folder: Path) -> Callable[[Path, np.random.Generator], None]:
    """What writes a damaged file."""
    files = [(data, places(data)) for data in valid_files(folder)]

    def write(path: Path, random: np.random.Generator) -> None:
        path.write_bytes(damaged(*files[random.integers(0, len(files))], random))

    return write


if __name__ == "__main__":
    main(attempt, cases, __doc__)
