"""What the parquet reader must agree with: pyarrow, bit by bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpiframe_core import _core

# Options of a writer, by what they make of its pages.
DICTIONARIES: dict[str, dict[str, Any]] = {
    "plain": {"use_dictionary": False},
    "dictionary": {"use_dictionary": True},
    # The dictionary is full after a few pages; the rest of the chunk is plain.
    "fallback": {"use_dictionary": True, "dictionary_pagesize_limit": 2000},
}
PAGES: dict[str, dict[str, Any]] = {
    "default": {},
    "tiny": {"data_page_size": 100, "write_batch_size": 17},
    "checksums": {"write_page_checksum": True, "data_page_size": 3000, "write_batch_size": 100},
}

GUARD = 64  # bytes on each side of an array, which must stay as they are


def write(path: Path, groups: pa.Table | Iterable[pa.Table], **options: Any) -> Path:
    """Write each table as one row group, with options of `pyarrow.parquet.ParquetWriter`."""
    tables = [groups] if isinstance(groups, pa.Table) else list(groups)
    with pq.ParquetWriter(path, tables[0].schema, **options) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
    return path


def required(table: pa.Table) -> pa.Table:
    """The same columns, each declared to be without nulls."""
    return table.cast(pa.schema([field.with_nullable(False) for field in table.schema]))


def guarded(kind: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """An array [rows] full of 0xa5, and the memory it lies in."""
    size = rows * np.dtype(kind).itemsize
    memory = np.full(GUARD + size + GUARD, 0xA5, np.uint8)
    return memory[GUARD : GUARD + size].view(kind), memory


def untouched(memory: np.ndarray) -> bool:
    """Whether nothing was written around a guarded array."""
    return bool((memory[:GUARD] == 0xA5).all() and (memory[-GUARD:] == 0xA5).all())


def read(
    file: _core.ParquetFile, names: Sequence[str], first: int = 0, stop: int | None = None
) -> list[np.ndarray]:
    """The columns as the reader gives them."""
    stop = len(file.group_rows) if stop is None else stop
    kinds = [file.number_type(name, first, stop) for name in names]
    assert None not in kinds, dict(zip(names, kinds, strict=True))
    rows = sum(file.group_rows[first:stop])
    outs = [guarded(kind or "", rows) for kind in kinds]
    file.read(list(names), first, stop, [values for values, _ in outs])
    assert all(untouched(memory) for _, memory in outs)
    return [values for values, _ in outs]


def as_pyarrow(path: Path, names: Sequence[str], first: int, stop: int) -> list[np.ndarray]:
    """The columns as pyarrow reads them."""
    with pq.ParquetFile(path) as file:
        table = file.read_row_groups(list(range(first, stop)), columns=list(dict.fromkeys(names)))
    return [_numpy(table.column(name)) for name in names]


def _numpy(column: pa.ChunkedArray) -> np.ndarray:
    array = column.combine_chunks()
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    return array.to_numpy(zero_copy_only=True)


def check(
    path: Path, names: Sequence[str] | None = None, first: int = 0, stop: int | None = None
) -> None:
    """Both read the same types and bits from row groups [first, stop)."""
    file = _core.ParquetFile(str(path))
    names = pq.read_schema(path).names if names is None else names
    stop = len(file.group_rows) if stop is None else stop
    found = read(file, names, first, stop)
    for name, ours, theirs in zip(names, found, as_pyarrow(path, names, first, stop), strict=True):
        assert ours.dtype == theirs.dtype, name
        np.testing.assert_array_equal(ours.view(np.uint8), theirs.view(np.uint8), name)
