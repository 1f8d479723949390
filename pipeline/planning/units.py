"""Units: the runs of whole row groups that are scored, published, counted and resumed.

How the input is cut depends on the input alone, never on the machine: `unit_rows` is part of the
job's identity, and a stopped job may be resumed on another machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from pydantic import BaseModel, ConfigDict

from pipeline.config.where import Value
from pipeline.planning.inputs import InputFile


class Unit(BaseModel):
    """Row groups [first_row_group, stop_row_group) of one file.

    `size`, `mtime_ns` and `etag` (of an object) are the file's when the job was planned, so that a
    changed file is noticed; `first_row` is the unit's offset in the file, in rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int
    name: str
    path: str
    size: int
    mtime_ns: int
    etag: str = ""
    first_row_group: int
    stop_row_group: int
    first_row: int
    rows: int
    partitions: dict[str, Value] = {}  # columns of the folders' names
    folder: str = ""  # of its output below that of the job, with `partition_by`


MAX_UNITS = 1_000_000
MB = 10**6
# A unit in memory. Readers hold dozens at a time, so this bounds a job's memory, whatever the size
# of its input; the fixed cost of a unit (a call, three small files, a record) stays far below the
# time of its rows.
UNIT_BYTES = 256 * MB
# A small input is still cut into so many units, so that the last ones keep all scorers busy.
FEW_UNITS, TINY_BYTES = 64, 8 * MB

# One set for all units, as pydantic would make one for each, which doubles the memory of a plan.
_ALL_FIELDS = set(Unit.model_fields)


def cut_units(
    files: Sequence[InputFile], unit_rows: int, identity: str, folder: str = ""
) -> list[Unit]:
    """Cut files, in the given order, into units of at most `unit_rows` rows.

    The job's `identity` is part of the names: what a worker of another job still writes into the
    same output cannot replace a unit of this one.

    A row group is never cut, so one larger than `unit_rows` is a unit by itself. A file without
    rows gives no unit. The same arguments give the same units with the same names.
    """
    units: list[Unit] = []
    for file in files:
        for first, stop, first_row, rows in _runs(file.row_group_rows, unit_rows):
            index = len(units)
            unit = Unit.model_construct(
                _ALL_FIELDS,
                index=index,
                name=_name(index, _digest(identity, file.path, first, stop), folder),
                path=file.path,
                size=file.size,
                mtime_ns=file.mtime_ns,
                etag=file.etag,
                first_row_group=first,
                stop_row_group=stop,
                first_row=first_row,
                rows=rows,
                partitions=file.partitions,
                folder=folder,
            )
            units.append(unit)
    return units


def empty_unit(files: Sequence[InputFile], identity: str, folder: str = "") -> list[Unit]:
    """The one unit, without rows, of an input that has none: its part tells readers the columns."""
    return [
        Unit(
            index=0,
            name=_name(0, _digest(identity, file.path, 0, file.row_groups), folder),
            path=file.path,
            size=file.size,
            mtime_ns=file.mtime_ns,
            etag=file.etag,
            first_row_group=0,
            stop_row_group=file.row_groups,
            first_row=0,
            rows=0,
            partitions=file.partitions,
            folder=folder,
        )
        for file in files[:1]
    ]


def _runs(row_group_rows: Sequence[int], unit_rows: int) -> Iterator[tuple[int, int, int, int]]:
    """(first row group, stop row group, first row, rows) of each unit; all row groups, in order.

    Row groups without rows join the unit before them, or the first one.
    """
    first, first_row, rows = 0, 0, 0
    for i, count in enumerate(row_group_rows):
        if rows and count and rows + count > unit_rows:
            yield first, i, first_row, rows
            first, first_row, rows = i, first_row + rows, 0
        rows += count
    if rows:
        yield first, len(row_group_rows), first_row, rows


def _digest(identity: str, path: str, first: int, stop: int) -> str:
    """One digest stands for one set of rows and scores; a file listed twice has two indices."""
    text = f"{identity}\0{path}\0{first}\0{stop}"
    return hashlib.sha256(text.encode()).hexdigest()


def _name(index: int, digest: str, folder: str) -> str:
    """Longer where the units of many outputs are told apart by their names."""
    return f"u{index:06d}-{digest[: 16 if folder else 8]}"


def auto_unit_rows(files: Sequence[InputFile], row_bytes: int) -> int:
    """Rows a unit; the files of the largest size are cut evenly, at row groups."""
    rows = sum(file.rows for file in files)
    wanted = max(TINY_BYTES, min(UNIT_BYTES, rows * row_bytes // FEW_UNITS)) // row_bytes
    largest = max(files, key=lambda file: file.rows, default=None)
    if largest is None or not largest.rows:
        return max(1, wanted)
    return evenly(largest, max(1, wanted))


def evenly(file: InputFile, wanted: int) -> int:
    """About `wanted` rows, such that they cut the file into parts of like size."""
    group = max(file.row_group_rows)
    groups = sum(rows > 0 for rows in file.row_group_rows)
    parts = -(-file.rows // max(wanted, group))
    return min(-(-groups // parts) * group, max(wanted, min(file.rows, wanted + group)), 10**9)
