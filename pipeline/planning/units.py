"""Units: the runs of whole row groups, and of small whole files, that are scored, published,
counted and resumed.

How the input is cut depends on the input alone, never on the machine: `unit_rows` is part of the
job's identity, and a stopped job may be resumed on another machine.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from pipeline.config.where import Value
from pipeline.planning.inputs import InputFile


class WholeFile(NamedTuple):
    """A file of a joined unit; fields as in `Unit`, of which it has `row_groups` and `rows`."""

    path: str
    size: int
    mtime_ns: int
    etag: str
    row_groups: int
    rows: int
    partitions: dict[str, Value]


class Unit(BaseModel):
    """Row groups [first_row_group, stop_row_group) of one file; a joined unit: one whole file, and
    after its rows those of `more`. `rows` are those of all.

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
    more: tuple[WholeFile, ...] = ()

    def of_each_file(self) -> list[Unit]:
        """The unit's rows of each of its files, in order, as units of one file."""
        if not self.more:
            return [self]
        rows = self.rows - sum(file.rows for file in self.more)
        alone = self.model_copy(update={"rows": rows, "more": ()})
        others = [
            alone.model_copy(
                update={
                    "path": file.path,
                    "size": file.size,
                    "mtime_ns": file.mtime_ns,
                    "etag": file.etag,
                    "stop_row_group": file.row_groups,
                    "rows": file.rows,
                    "partitions": file.partitions,
                }
            )
            for file in self.more
        ]
        return [alone, *others]

    @property
    def where(self) -> str:
        """Its files, for people."""
        return f"{self.path} and {len(self.more)} more" if self.more else self.path


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


def joins_files(files: Sequence[InputFile], unit_rows: int) -> bool:
    """Whether units of up to `unit_rows` rows hold several of these files.

    Only of many files, as few cost little and are spread over all scorers.
    """
    if len(files) <= FEW_UNITS:
        return False
    pairs = itertools.pairwise(file for file in files if file.rows)
    return any(_fit(one, other, one.rows, unit_rows) for one, other in pairs)


def _fit(file: InputFile, after: InputFile, rows: int, unit_rows: int) -> bool:
    """Whether a unit of `rows` rows that ends with a file goes on with the one after it: readers
    give the rows of all its files the same types.
    """
    return file.arrow_schema is after.arrow_schema and rows + after.rows <= unit_rows


def cut_units(
    files: Sequence[InputFile],
    unit_rows: int,
    identity: str,
    folder: str = "",
    join: bool = False,
) -> list[Unit]:
    """Cut files, in the given order, into units of at most `unit_rows` rows.

    The job's `identity` is part of the names: what a worker of another job still writes into the
    same output cannot replace a unit of this one. `join`: files that follow one another are one
    unit where all their rows fit.

    A row group is never cut, so one larger than `unit_rows` is a unit by itself. A file without
    rows gives no unit. The same arguments give the same units with the same names.
    """
    units: list[Unit] = []
    for first_file, *more in _joined(files, unit_rows) if join else ([file] for file in files):
        for first, stop, first_row, rows in _runs(first_file.row_group_rows, unit_rows):
            index = len(units)
            paths = "".join(f"\0{file.path}" for file in more)
            digest = _digest(identity, first_file.path + paths, first, stop)
            unit = Unit.model_construct(
                _ALL_FIELDS,
                index=index,
                name=_name(index, digest, folder),
                path=first_file.path,
                size=first_file.size,
                mtime_ns=first_file.mtime_ns,
                etag=first_file.etag,
                first_row_group=first,
                stop_row_group=stop,
                first_row=first_row,
                rows=rows + sum(file.rows for file in more),
                partitions=first_file.partitions,
                folder=folder,
                more=tuple(map(_whole, more)),
            )
            units.append(unit)
    return units


def _joined(files: Sequence[InputFile], unit_rows: int) -> Iterator[list[InputFile]]:
    """Runs of files whose rows make one unit, and each larger file; without those of no rows."""
    run: list[InputFile] = []
    rows = 0
    for file in files:
        if not file.rows:
            continue
        if run and not _fit(run[-1], file, rows, unit_rows):
            yield run
            run, rows = [], 0
        run.append(file)
        rows += file.rows
    if run:
        yield run


def _whole(file: InputFile) -> WholeFile:
    return WholeFile(
        file.path,
        file.size,
        file.mtime_ns,
        file.etag,
        file.row_groups,
        file.rows,
        file.partitions,
    )


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


def auto_unit_rows(files: Sequence[InputFile], row_bytes: int, join: bool = False) -> int:
    """Rows a unit; the files of the largest size are cut evenly, at row groups. `join`: a unit may
    be of several files; of files that all fit twice, the largest size does not count.
    """
    rows = sum(file.rows for file in files)
    wanted = max(TINY_BYTES, min(UNIT_BYTES, rows * row_bytes // FEW_UNITS)) // row_bytes
    wanted = max(1, wanted)
    largest = max(files, key=lambda file: file.rows, default=None)
    if largest is None or not largest.rows:
        return wanted
    if join and 2 * largest.rows <= wanted and joins_files(files, wanted):
        return min(wanted, 10**9)
    return evenly(largest, wanted)


def evenly(file: InputFile, wanted: int) -> int:
    """About `wanted` rows, such that they cut the file into parts of like size."""
    group = max(file.row_group_rows)
    groups = sum(rows > 0 for rows in file.row_group_rows)
    parts = -(-file.rows // max(wanted, group))
    return min(-(-groups // parts) * group, max(wanted, min(file.rows, wanted + group)), 10**9)
