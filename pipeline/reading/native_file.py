"""Parquet files as our own reader takes them: integers as ids, numbers as dense features, and lists
of either.
"""

from __future__ import annotations

from typing import NamedTuple

from dpiframe_core import _core
from pipeline.planning.columns import Columns, ListColumn
from pipeline.planning.units import Unit
from pipeline.reading.remote_file import remote_footer
from pipeline.reading.unit_file import UnitFile, open_native

ID_TYPES, DENSE_TYPE = ("<i4", "<i8", "<u8"), "<f4"


class NativeFile(NamedTuple):
    """An open file, numpy's type of each id [F] as it is read, that of each published column
    which is a plain number, and the rows of each row group of the unit.
    """

    file: _core.ParquetFile
    id_types: list[str]
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
    id_types = feature_types(file, columns, *groups)
    group_rows = file.group_rows[slice(*groups)]
    if id_types is None or sum(group_rows) != unit.rows:
        return None
    published = plain_published(opened, columns)
    return NativeFile(file, id_types, published, group_rows)


def plain_published(opened: UnitFile, columns: Columns) -> dict[str, str]:
    """numpy's type of each published column which is a plain number without nulls."""
    unit, file, plain = opened.unit, opened.native(), opened.plain_columns()
    groups = unit.first_row_group, unit.stop_row_group
    return {
        name: plain[name]
        for name in columns.published
        if name in plain and plain[name] == file.number_type(name, *groups)
    }


def feature_types(
    file: _core.ParquetFile, columns: Columns, first: int, stop: int
) -> list[str] | None:
    """numpy's type of each id [F]; None if our reader does not take one, or a dense feature."""
    scalars = columns.scalar_places
    names = columns.id_columns
    ids = file.feature_types([names[place] for place in scalars.ids], first, stop)
    dense = file.feature_types([columns.dense_columns[n] for n in scalars.dense], first, stop)
    kinds = dict(zip(scalars.ids, ids, strict=True))
    for each in columns.lists:
        kind = list_type(file, each, first, stop)
        dense += [kind] if each.dense else []
        kinds |= {} if each.dense else dict.fromkeys(each.places, kind)
    if None in dense or not all(kind in ID_TYPES for kind in kinds.values()):
        return None
    return [kinds[place] or "" for place in range(len(names))]


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
