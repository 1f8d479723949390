"""The footers of parquet files, reduced to the few facts that a plan needs.

Our own reader reads them: whatever their bytes are, it reads or refuses them.
"""

from __future__ import annotations

import errno
import hashlib
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from dpiframe_core import _core
from pipeline.planning.arrow_schemas import ArrowSchema, arrow_schema
from pipeline.storage.address import is_remote
from pipeline.storage.objects import read_footer

THREADS, REMOTE_THREADS = 32, 64
_AT_ONCE = 8  # files that a thread opens before it needs Python
_WAIT_S = 1.0  # for threads to end

# What a column's values must lie in (both ends included); None: only nulls are looked for.
Limits = Mapping[str, tuple[float, float] | None]


class CorruptFileError(Exception):
    """The file is there and readable, but is not whole parquet; the text is the reason."""


class StatisticsProblem(NamedTuple):
    """What a footer's statistics show to be wrong with a column, at its first row group."""

    column: str
    kind: Literal["null", "range"]
    row_group: int
    value: int | float  # an end of the values that is outside, or the number of nulls
    row_groups: int  # how many row groups have the same problem


class Footer(NamedTuple):
    """The facts; `schema` is shared between files that have the same one; `etag` names the version
    of an object, and is empty for a file.
    """

    size: int
    mtime_ns: int
    etag: str
    sha256: str
    row_group_rows: tuple[int, ...]
    schema: pa.Schema
    problems: tuple[StatisticsProblem, ...]
    encrypted: tuple[str, ...]  # columns
    unknown: tuple[str, ...]  # columns of a type that pyarrow may not know


class Unreadable(NamedTuple):
    """A file without a usable footer, and why."""

    reason: str
    corrupt: bool  # readable, but not parquet
    unreachable: bool = False  # in a store that did not answer; it may later


class Footers(NamedTuple):
    """By path, in any order."""

    good: dict[str, Footer]
    bad: dict[str, Unreadable]


class OpenFile(NamedTuple):
    """A file by its footer, its modification time and its etag, empty for one of no store."""

    file: _core.ParquetFile
    mtime_ns: int
    etag: str = ""


class FooterReader:
    """Reads footers; keeps one copy of each schema that it meets.

    `limits` names the columns whose statistics are looked at.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = dict(limits or {})
        self._known: dict[bytes, tuple[ArrowSchema, _core.StatisticsLimits]] = {}
        self._schemas: dict[bytes, pa.Schema] = {}

    def read(self, path: str) -> Footer:
        """Read one footer. Raises CorruptFileError, or OSError when the file cannot be read."""
        return self.facts(_open(path))

    def facts(self, opened: OpenFile) -> Footer:
        """The facts of an open file. CorruptFileError."""
        file, mtime_ns, etag = opened
        try:
            (schema, unknown), limits = self._schema(file.empty())
            problems = file.statistics_problems(limits)
        except (pa.ArrowException, OSError, ValueError, LookupError, OverflowError) as error:
            raise CorruptFileError(f"its footer cannot be read: {_first_line(error)}") from None
        return Footer(
            size=file.size,
            mtime_ns=mtime_ns,
            etag=etag,
            sha256=hashlib.sha256(file.footer).hexdigest(),
            row_group_rows=tuple(file.group_rows),
            schema=schema,
            problems=tuple(StatisticsProblem(*problem) for problem in problems),
            encrypted=tuple(file.encrypted),
            unknown=unknown,
        )

    def _schema(self, empty: bytes) -> tuple[ArrowSchema, _core.StatisticsLimits]:
        """The Arrow schema of a file without rows, and the limits of its columns.

        Arrow converts it, but never sees the rest of a footer: row groups and statistics can make
        it end the process.
        """
        if (known := self._known.get(empty)) is not None:
            return known
        found, unknown = arrow_schema(empty)
        schema = pa.schema([pa.field(f.name, f.type, f.nullable) for f in found])
        schema = self._schemas.setdefault(schema.serialize().to_pybytes(), schema)
        flat = {field.name: field.type for field in schema if not pa.types.is_nested(field.type)}
        limits = [
            (column, within if _is_number(flat[column]) else None)
            for column, within in self._limits.items()
            if column in flat
        ]
        facts = ArrowSchema(schema, unknown), _core.StatisticsLimits(limits)
        return self._known.setdefault(empty, facts)


def rows_of_version(path: str, size: int, mtime_ns: int, etag: str) -> int | None:
    """Rows of a file if it is of this size and version (`etag` where there is one) still, else
    None. OSError, CorruptFileError.
    """
    if not etag:
        found = Path(path).stat()
        if (found.st_size, found.st_mtime_ns) != (size, mtime_ns):
            return None
    file, _, now = _open(path)
    return sum(file.group_rows) if (file.size, now) == (size, etag) else None


def _open(path: str) -> OpenFile:
    """CorruptFileError, OSError."""
    try:
        if not is_remote(path):
            file = _core.ParquetFile(path)
            return OpenFile(file, file.mtime_ns)
        info, end = read_footer(path)
        file = _core.ParquetFile.of_end(info.size, np.frombuffer(end, np.uint8))
    except ValueError as error:
        raise CorruptFileError(str(error)) from None
    return OpenFile(file, info.modified_ns, info.etag)


def _open_each(paths: Sequence[str]) -> list[OpenFile | None]:
    """Those that can be opened, without Python's lock; None: `_open` opens it, or says why not."""
    if any(map(is_remote, paths)):
        return [None] * len(paths)
    found = _core.ParquetFile.open_each(paths)
    return [None if file is None else OpenFile(file, file.mtime_ns) for file in found]


def read_footers(paths: Sequence[str], limits: Limits) -> Footers:
    """The footer of each of the paths (all different), or why it has none.

    Most threads wait for the storage. One that a dead file system keeps waiting for ever does not
    keep the process: Ctrl-C ends it.
    """
    most = REMOTE_THREADS if any(map(is_remote, paths)) else THREADS
    at_once = max(1, min(_AT_ONCE, len(paths) // most))
    starts = range(0, len(paths), at_once)
    reader, waiting, footers = FooterReader(limits), deque(starts), Footers({}, {})
    # One thread at a time, or they would hand Python's own lock to each other at each step.
    facts = Lock()
    faults: list[Exception] = []

    def work() -> None:
        while True:
            try:
                start = waiting.popleft()
            except IndexError:
                return  # none is left
            some = paths[start : start + at_once]
            try:
                opened = _open_each(some)
                for path, file in zip(some, opened, strict=True):
                    _read_into(footers, reader, path, file, facts)
            except Exception as fault:
                faults.append(fault)
                waiting.clear()

    threads = [Thread(target=work, daemon=True) for _ in range(min(most, len(starts)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        waiting.clear()
        stop = time.monotonic() + _WAIT_S
        for thread in threads:
            thread.join(max(0.0, stop - time.monotonic()))
    if faults:
        raise faults[0]
    return footers


def _read_into(
    footers: Footers, reader: FooterReader, path: str, opened: OpenFile | None, facts: Lock
) -> None:
    try:
        opened = opened or _open(path)
        with facts:
            footers.good[path] = reader.facts(opened)
    except CorruptFileError as error:
        footers.bad[path] = Unreadable(str(error), corrupt=True)
    except OSError as error:
        unreachable = is_remote(path) and error.errno == errno.EIO
        footers.bad[path] = Unreadable(error.strerror or str(error), False, unreachable)
    except MemoryError:
        footers.bad[path] = Unreadable("too little memory to read its footer", corrupt=False)


def _is_number(kind: pa.DataType) -> bool:
    return any((pa.types.is_integer(kind), pa.types.is_float32(kind), pa.types.is_float64(kind)))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
