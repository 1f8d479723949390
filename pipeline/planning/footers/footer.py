"""One parquet footer: read once, checked, and reduced to the few facts that a plan needs.

Some corrupted footers make the parquet library end the process (an exception leaves it where none
may), so a plan reads footers in processes of their own: see `footer_pool`.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

MAGIC, ENCRYPTED_MAGIC = b"PAR1", b"PARE"
_TAIL_BYTES = 64 * 1024  # holds most footers whole, so that one read is enough
_ARROW_SCHEMA = b"ARROW:schema"

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
    """The facts; `schema` is shared between files that have the same one."""

    size: int
    mtime_ns: int
    sha256: str
    row_group_rows: tuple[int, ...]
    schema: pa.Schema
    problems: tuple[StatisticsProblem, ...]


class Tail(NamedTuple):
    """The end of a file as it is on the disk: the footer, its length, and the magic number."""

    size: int
    mtime_ns: int
    content: bytes  # at least the footer and the 8 bytes after it
    sha256: str  # of the footer


class _Known(NamedTuple):
    parquet: Any  # pq.ParquetSchema
    arrow_bytes: bytes | None
    schema: pa.Schema
    leaves: dict[str, int]  # flat column -> its position among the column chunks
    numbers: frozenset[str]  # columns of integers or floats: their ends can be compared


def read_tail(path: str) -> Tail:
    """Read the end of one file; any number of threads may.

    Raises CorruptFileError, or OSError when the file cannot be read.
    """
    with Path(path).open("rb", buffering=0) as file:
        stat = os.fstat(file.fileno())
        content, footer_bytes = _read_footer(file.fileno(), stat.st_size)
    footer = memoryview(content)[-8 - footer_bytes : -8]
    return Tail(stat.st_size, stat.st_mtime_ns, content, hashlib.sha256(footer).hexdigest())


class FooterReader:
    """Reduces footers, in one thread; keeps one copy of each schema that it meets.

    `limits` names the columns whose statistics are looked at.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = dict(limits or {})
        self._recent: deque[_Known] = deque(maxlen=16)
        self._interned: dict[bytes, pa.Schema] = {}

    def read(self, path: str) -> Footer:
        """Read one footer. Raises CorruptFileError, or OSError when the file cannot be read."""
        return self.parse(read_tail(path))

    def parse(self, tail: Tail) -> Footer:
        """Reduce one footer. Raises CorruptFileError."""
        try:
            metadata = pq.read_metadata(pa.BufferReader(tail.content))
            known = self._know(metadata)
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
            rows = tuple(group.num_rows for group in groups)
            problems = self._problems(groups, known)
        except (pa.ArrowException, OSError, ValueError, LookupError, OverflowError) as error:
            raise CorruptFileError(f"its footer cannot be read: {_first_line(error)}") from None
        if rows and min(rows) < 0:
            raise CorruptFileError(f"its footer cannot be read: a row group of {min(rows)} rows")
        return Footer(tail.size, tail.mtime_ns, tail.sha256, rows, known.schema, problems)

    def _know(self, metadata: Any) -> _Known:
        """The Arrow schema: converting it for each of many like files would cost the most."""
        arrow_bytes = (metadata.metadata or {}).get(_ARROW_SCHEMA)
        for known in tuple(self._recent):
            if known.arrow_bytes == arrow_bytes and known.parquet.equals(metadata.schema):
                return known
        fields = [pa.field(f.name, f.type, f.nullable) for f in metadata.schema.to_arrow_schema()]
        schema = pa.schema(fields)
        flat = {field.name for field in fields if not pa.types.is_nested(field.type)}
        paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        leaves = {path: i for i, path in enumerate(paths) if path in flat}
        numbers = frozenset(field.name for field in fields if _is_number(field.type))
        schema = self._interned.setdefault(schema.serialize().to_pybytes(), schema)
        known = _Known(metadata.schema, arrow_bytes, schema, leaves, numbers)
        self._recent.append(known)
        return known

    def _problems(self, groups: list[Any], known: _Known) -> tuple[StatisticsProblem, ...]:
        found = []
        for column, limits in self._limits.items():
            if column in known.leaves:
                within = limits if column in known.numbers else None
                found += _column_problems(column, known.leaves[column], within, groups)
        return tuple(found)


def _column_problems(
    column: str, leaf: int, limits: tuple[float, float] | None, groups: list[Any]
) -> list[StatisticsProblem]:
    """One loop without calls: a large input has tens of millions of column chunks."""
    nulls: list[tuple[int, int]] = []
    outside: list[tuple[int, int | float]] = []
    for row_group, group in enumerate(groups):
        statistics = group.column(leaf).statistics
        if statistics is None:
            continue
        if null_count := statistics.null_count:  # None when it was not counted
            nulls.append((row_group, null_count))
        if limits is None or not statistics.has_min_max:
            continue
        low, high = statistics.min, statistics.max
        if low < limits[0] or high > limits[1]:
            outside.append((row_group, low if low < limits[0] else high))
    found: list[StatisticsProblem] = []
    if nulls:
        found.append(StatisticsProblem(column, "null", *nulls[0], len(nulls)))
    if outside:
        found.append(StatisticsProblem(column, "range", *outside[0], len(outside)))
    return found


def _is_number(kind: pa.DataType) -> bool:
    return any((pa.types.is_integer(kind), pa.types.is_float32(kind), pa.types.is_float64(kind)))


def _read_footer(handle: int, size: int) -> tuple[bytes, int]:
    """The end of the file that holds at least the footer, and the footer's length in bytes."""
    if size == 0:
        raise CorruptFileError("the file is empty (0 bytes)")
    if size < 12:
        raise CorruptFileError(f"{size} bytes are too few for a parquet file")
    tail = _read_at(handle, max(0, size - _TAIL_BYTES), size)
    if tail[-4:] == ENCRYPTED_MAGIC:
        raise CorruptFileError("its footer is encrypted, which is not supported")
    if tail[-4:] != MAGIC or _read_at(handle, 0, 4) != MAGIC:
        raise CorruptFileError("it does not begin and end like parquet: truncated, or no parquet")
    footer_bytes = int.from_bytes(tail[-8:-4], "little")
    if footer_bytes > size - 12:
        raise CorruptFileError(f"a footer of {footer_bytes} bytes does not fit {size} bytes")
    if footer_bytes + 8 > len(tail):
        tail = _read_at(handle, size - footer_bytes - 8, size)
    return tail, footer_bytes


def _read_at(handle: int, start: int, stop: int) -> bytes:
    """Bytes [start, stop); one call may return fewer than asked on network file systems."""
    parts, position = [], start
    while position < stop:
        part = os.pread(handle, stop - position, position)
        if not part:
            raise CorruptFileError("it became shorter while it was read")
        parts.append(part)
        position += len(part)
    return b"".join(parts)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
