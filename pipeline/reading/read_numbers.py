"""The quick way to read encoded rows: numbers decoded straight to where the engine reads them.

It takes files as most writers make them and leaves all others, and whatever is wrong with one, to
`read.load`: nothing here ever fails a unit.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpiframe_core import _core
from pipeline.planning.columns import Columns
from pipeline.planning.units import Unit
from pipeline.reading.unit_memory import Piece

ID_TYPES, DENSE_TYPE = ("<i4", "<i8"), "<f4"
# Those of Arrow's types that are their numbers and nothing else.
PLAIN = {pa.int32(): "<i4", pa.int64(): "<i8", pa.float32(): "<f4", pa.float64(): "<f8"}


class Numbers(NamedTuple):
    """`ids` [F, B], `dense` [N, B]; of the published columns those that are plain numbers."""

    ids: np.ndarray
    dense: np.ndarray
    copied: dict[str, pa.Array]
    group_rows: list[int]


class NumberFile(NamedTuple):
    """A file that can be read this way: numpy's type of its ids and of the published numbers."""

    file: _core.ParquetFile
    id_type: str
    published: dict[str, str]
    group_rows: list[int]


def read_numbers(unit: Unit, columns: Columns, piece: Piece) -> Numbers | None:
    """The numbers of a unit, in `piece`; None where its file is not for this way of reading."""
    groups = unit.first_row_group, unit.stop_row_group
    try:
        found = number_file(unit, columns)
        if found is None:
            return None
        ids, dense, *vectors = piece.matrices(
            (len(columns.id_columns), unit.rows, found.id_type),
            (len(columns.dense_columns), unit.rows, DENSE_TYPE),
            *((1, unit.rows, kind) for kind in found.published.values()),
        )
        copied = {name: row[0] for name, row in zip(found.published, vectors, strict=True)}
        names = [*columns.id_columns, *columns.dense_columns, *copied]
        found.file.read(names, *groups, [*ids, *dense, *copied.values()])
    except (OSError, ValueError, MemoryError, pa.ArrowException):
        return None
    return Numbers(ids, dense, {n: pa.array(a) for n, a in copied.items()}, found.group_rows)


def number_file(unit: Unit, columns: Columns) -> NumberFile | None:
    """The file of a unit, where its ids and dense features are numbers that lie there as such."""
    file = opened(unit.path, unit.size, unit.mtime_ns)
    groups = unit.first_row_group, unit.stop_row_group
    kinds = {name: file.number_type(name, *groups) for name in columns.read_columns}
    id_type = id_type_of(kinds, columns)
    group_rows = file.group_rows[slice(*groups)]
    if id_type is None or sum(group_rows) != unit.rows:
        return None
    plain = plain_columns(unit.path, unit.size, unit.mtime_ns)
    published = {
        name: plain[name]
        for name in columns.published
        if name in plain and plain[name] == kinds[name]
    }
    return NumberFile(file, id_type, published, group_rows)


def id_type_of(kinds: Mapping[str, str | None], columns: Columns) -> str | None:
    """The type of all ids, from that of each column; None where they cannot be read this way, or
    the dense features cannot.
    """
    id_types = {kinds[name] for name in columns.id_columns} or {ID_TYPES[0]}
    dense_types = {kinds[name] for name in columns.dense_columns} or {DENSE_TYPE}
    (id_type,) = id_types if len(id_types) == 1 else (None,)
    return id_type if id_type in ID_TYPES and dense_types == {DENSE_TYPE} else None


@functools.lru_cache(maxsize=32)
def opened(path: str, size: int, mtime_ns: int) -> _core.ParquetFile:
    """The file as it was planned; its footer is parsed once for units one behind the other."""
    return _core.ParquetFile(path)


@functools.lru_cache(maxsize=256)
def plain_columns(path: str, size: int, mtime_ns: int) -> dict[str, str]:
    """The columns of a file whose values are numbers and nothing else, and numpy's type of each.

    Arrow keeps some types, such as durations, as integers of which only its own schema tells.
    """
    return {field.name: PLAIN[field.type] for field in pq.read_schema(path) if field.type in PLAIN}
