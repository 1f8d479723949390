"""Columns by way of their stored pages, as a GPU takes them, decoded on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from parquet_files import guarded, read, untouched

from dpiframe_core import _core


def read_pages(
    file: _core.ParquetFile,
    names: Sequence[str],
    first: int = 0,
    stop: int | None = None,
    spare: int = 0,
    unpack_above: int | None = None,
) -> tuple[_core.ColumnPages, np.ndarray]:
    """The columns' pages, and just the memory that they need, or `spare` bytes more."""
    stop = len(file.group_rows) if stop is None else stop
    memory, around = guarded("u1", file.pages_bytes(names, first, stop) + spare)
    stored = file.read_pages(names, first, stop, memory, unpack_above)
    assert untouched(around)
    room = stored.compressed_bytes + 64
    assert room == memory.size if not spare else room <= memory.size
    assert (memory[stored.compressed_bytes :] == 0xA5).all()
    return stored, memory


def decode(stored: _core.ColumnPages, memory: np.ndarray) -> np.ndarray:
    """The columns [columns, rows]; nothing is written outside, even where they are refused."""
    out, around = guarded(f"<i{stored.number_bytes}", stored.columns * stored.rows)
    try:
        stored.decode(memory, out.reshape(stored.columns, stored.rows))
    finally:
        assert untouched(around)
    return out.reshape(stored.columns, stored.rows)


def check_pages(
    path: Path, names: Sequence[str], first: int = 0, stop: int | None = None
) -> _core.ColumnPages:
    """Stored pages give the bits that the reader of columns gives."""
    file = _core.ParquetFile(str(path))
    stored, memory = read_pages(file, names, first, stop)
    wanted = read(file, names, first, stop)
    found = decode(stored, memory)
    for name, ours, theirs in zip(names, found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs.view(ours.dtype), name)
    return stored
