"""Parquet files as our own reader takes them: int32 or int64 ids, float32 dense features, and lists
of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dpiframe_core import _core
from pipeline.planning.columns import Columns, ListColumn
from pipeline.planning.units import Unit
from pipeline.reading.remote_file import remote_footer
from pipeline.reading.unit_file import UnitFile, open_native

ID_TYPES, DENSE_TYPE = ("<i4", "<i8"), "<f4"


class NativeFile(NamedTuple):
    """An open file, numpy's type of its ids, the fields that are int64 nevertheless, numpy's type
    of each published column which is a plain number, and the rows of each row group of the unit.
    """

    file: _core.ParquetFile
    id_type: str
    wide_places: list[int]
    published: dict[str, str]
    group_rows: list[int]


def native_file(opened: UnitFile, columns: Columns) -> NativeFile | None:
    """The file of a unit; None if our reader does not take its ids, dense features or lists.

    UnitFailedError: it is not the planned file any more.
    """
    if columns.form != "encoded":
        return None
    opened.check()  # before the file is opened, as it is kept open for its other units
    unit, file = opened.unit, opened.native()
    groups = unit.first_row_group, unit.stop_row_group
    kinds = {name: file.number_type(name, *groups) for name in columns.read_columns}
    list_types = [list_type(file, each, *groups) for each in columns.lists]
    id_type = common_id_type(kinds, columns)
    group_rows = file.group_rows[slice(*groups)]
    if id_type is None or None in list_types or sum(group_rows) != unit.rows:
        return None
    wide = [
        place
        for each, kind in zip(columns.lists, list_types, strict=True)
        if kind == "<i8" and id_type == "<i4"
        for place in each.places
    ]
    if wide and not columns.scalar_ids:
        id_type, wide = "<i8", []
    published = plain_published(opened, columns)
    return NativeFile(file, id_type, wide, published, group_rows)


def plain_published(opened: UnitFile, columns: Columns) -> dict[str, str]:
    """numpy's type of each published column which is a plain number without nulls."""
    unit, file, plain = opened.unit, opened.native(), opened.plain_columns()
    groups = unit.first_row_group, unit.stop_row_group
    return {
        name: plain[name]
        for name in columns.published
        if name in plain and plain[name] == file.number_type(name, *groups)
    }


def common_id_type(kinds: Mapping[str, str | None], columns: Columns) -> str | None:
    """The one type of all id columns; None if our reader does not take the types in `kinds`."""
    id_types = {kinds.get(name) for name in columns.scalar_ids} or {ID_TYPES[0]}
    dense_types = {kinds.get(name) for name in columns.scalar_dense} or {DENSE_TYPE}
    (id_type,) = id_types if len(id_types) == 1 else (None,)
    return id_type if id_type in ID_TYPES and dense_types == {DENSE_TYPE} else None


def list_type(file: _core.ParquetFile, like: ListColumn, first: int, stop: int) -> str | None:
    """The type that the elements of a column of lists are read as; None if they are not."""
    stored = file.list_type(like.column, first, stop)
    if like.dense:
        return stored and DENSE_TYPE
    small = -(2**31) <= like.pad < 2**31
    return {"<i4": "<i4" if small else "<i8", "<u4": "<i8", "<i8": "<i8"}.get(stored or "")


def footer_of(unit: Unit) -> _core.ParquetFile:
    """The footer of a unit's file as it is now. OSError, ValueError, ConfigError."""
    if unit.etag:
        return remote_footer(unit.path, unit.size, unit.etag).file
    return open_native(unit.path, unit.size, unit.mtime_ns)
