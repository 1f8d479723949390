"""Parquet files as our own reader takes them: int32 or int64 ids, float32 dense features."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from dpiframe_core import _core
from pipeline.planning.columns import Columns
from pipeline.planning.units import Unit
from pipeline.reading.arrow_file import check_unchanged

ID_TYPES, DENSE_TYPE = ("<i4", "<i8"), "<f4"
# Arrow types whose values are the numbers of the file, and numpy's name of each.
PLAIN_TYPES = {pa.int32(): "<i4", pa.int64(): "<i8", pa.float32(): "<f4", pa.float64(): "<f8"}


class NativeFile(NamedTuple):
    """An open file, numpy's type of its ids, that of each published column which is a plain
    number, and the rows of each row group of the unit.
    """

    file: _core.ParquetFile
    id_type: str
    published: dict[str, str]
    group_rows: list[int]


def native_file(unit: Unit, columns: Columns) -> NativeFile | None:
    """The file of a unit; None if our reader does not take its ids or dense features, and for
    lists.

    UnitFailedError: it is not the planned file any more.
    """
    if columns.form != "encoded" or columns.lists:
        return None
    check_unchanged(unit)  # before the file is opened, as it is kept open for its other units
    file = open_native(unit.path, unit.size, unit.mtime_ns)
    groups = unit.first_row_group, unit.stop_row_group
    kinds = {name: file.number_type(name, *groups) for name in columns.read_columns}
    id_type = common_id_type(kinds, columns)
    group_rows = file.group_rows[slice(*groups)]
    if id_type is None or sum(group_rows) != unit.rows:
        return None
    plain = plain_columns(unit.path, unit.size, unit.mtime_ns)
    published = {
        name: plain[name]
        for name in columns.published
        if name in plain and plain[name] == kinds.get(name)
    }
    return NativeFile(file, id_type, published, group_rows)


def common_id_type(kinds: Mapping[str, str | None], columns: Columns) -> str | None:
    """The one type of all id columns; None if our reader does not take the types in `kinds`."""
    id_types = {kinds.get(name) for name in columns.id_columns} or {ID_TYPES[0]}
    dense_types = {kinds.get(name) for name in columns.dense_columns} or {DENSE_TYPE}
    (id_type,) = id_types if len(id_types) == 1 else (None,)
    return id_type if id_type in ID_TYPES and dense_types == {DENSE_TYPE} else None


@functools.lru_cache(maxsize=32)
def open_native(path: str, size: int, mtime_ns: int) -> _core.ParquetFile:
    """The planned file; units of one file follow one another, and share its parsed footer."""
    return _core.ParquetFile(path)


@functools.lru_cache(maxsize=256)
def plain_columns(path: str, size: int, mtime_ns: int) -> dict[str, str]:
    """The columns of a file in PLAIN_TYPES, and numpy's type of each.

    Only the Arrow schema distinguishes them from types stored as integers, such as durations.
    """
    schema = pq.read_schema(path)
    return {field.name: PLAIN_TYPES[field.type] for field in schema if field.type in PLAIN_TYPES}
