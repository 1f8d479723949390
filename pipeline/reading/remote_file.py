"""The file of a unit in an object store: what the unit needs of it is fetched into its buffer.

Every request names the planned version of the object, so that one that was replaced is noticed.
"""

from __future__ import annotations

import errno
import functools
import io
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dpiframe_core import _core
from pipeline.errors import ConfigError, UnitFailedError
from pipeline.planning.arrow_schemas import arrow_schema
from pipeline.planning.columns import Columns
from pipeline.planning.units import Unit
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_file import UnitFile, plain_types, unit_error
from pipeline.storage.fetch import Piece, fetch
from pipeline.storage.objects import open_object, read_exactly, read_footer

PADDING = 64  # bytes that a decoder may read behind the last page


class RemoteFooter(NamedTuple):
    """The end of an object, with its footer, which is `file`; its plain columns."""

    end: np.ndarray
    file: _core.ParquetFile
    plain: dict[str, str]


@functools.lru_cache(maxsize=32)
def remote_footer(path: str, size: int, etag: str) -> RemoteFooter:
    """The footer of a planned object; its units share it. OSError, ValueError, ConfigError."""
    info, end = read_footer(path, etag)
    if info.size != size:
        raise OSError(errno.ESTALE, f"{info.size} bytes, {size} were planned", path)
    memory = np.frombuffer(end, np.uint8)
    file = _core.ParquetFile.of_end(size, memory)
    return RemoteFooter(memory, file, plain_types(arrow_schema(file.empty()).schema))


class RemoteFile(UnitFile):
    """The column chunks of a unit, fetched: those of the ids first, as a GPU takes their pages."""

    def __init__(self, unit: Unit, columns: Columns, buffer: UnitBuffer) -> None:
        """UnitFailedError: it cannot be fetched, or is not the planned object any more."""
        super().__init__(unit)
        try:
            self._footer = remote_footer(unit.path, unit.size, unit.etag)
            self._fetch(columns, buffer)
        except OSError as error:
            raise unit_error(unit, error) from error
        except (ValueError, pa.ArrowException) as error:
            raise UnitFailedError("corrupt", f"corrupt parquet: {unit.path}: {error}") from error
        except ConfigError as error:
            raise UnitFailedError("io", str(error)) from error

    def _fetch(self, columns: Columns, buffer: UnitBuffer) -> None:
        footer, groups = self._footer.file, (self.unit.first_row_group, self.unit.stop_row_group)
        scalar = columns.form == "encoded" and not columns.lists
        self._ids = list(columns.id_columns) if scalar else []
        names = list(dict.fromkeys(self._ids))
        others = [name for name in dict.fromkeys(columns.read_columns) if name not in names]
        try:
            spans = footer.chunk_ranges(names, *groups)
            self._id_bytes = sum(size for _, size in spans)
            spans += footer.chunk_ranges(others, *groups)
        except ValueError:  # a damaged footer: pyarrow says what is wrong with it
            self._id_bytes, spans = 0, []
        ends = list(accumulate((size for _, size in spans), initial=0))
        pieces = [Piece(start, size, at) for (start, size), at in zip(spans, ends, strict=False)]
        self._memory = buffer.stored(ends[-1] + PADDING)
        ranges = [(piece.start, piece.at, piece.size) for piece in pieces]
        self._native = footer.over(self._memory, ranges)
        self._pieces = sorted(pieces)
        fetch(self.unit.path, self.unit.etag, pieces, self._memory)

    def check(self) -> None:
        """Nothing: each request said which version it wants."""

    def native(self) -> _core.ParquetFile:
        """Over the fetched chunks."""
        return self._native

    def plain_columns(self) -> dict[str, str]:
        """As the footer says."""
        return self._footer.plain

    def source(self) -> FetchedFile:
        """The fetched chunks and the end as a file."""
        return FetchedFile(self.unit, self._footer.end, self._memory, self._pieces)

    def stored_pages(self, names: Sequence[str], size: int) -> np.ndarray | None:
        """The fetched chunks of the ids, if those are the names, each once."""
        if list(names) != self._ids or len({*names}) < len(names):
            return None
        return self._memory[:size] if size == self._id_bytes + PADDING else None


class FetchedFile(io.RawIOBase):
    """A file object over fetched bytes; what else is read is asked of the store."""

    def __init__(
        self, unit: Unit, end: np.ndarray, memory: np.ndarray, pieces: Sequence[Piece]
    ) -> None:
        """`pieces` are sorted."""
        super().__init__()
        self._unit, self._position = unit, 0
        known = [(p.start, memory[p.at : p.at + p.size]) for p in pieces if p.size]
        self._known = [*known, (unit.size - len(end), end)]

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The position of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._unit.size}[whence]
        self._position = start + offset
        return self._position

    def read(self, size: int = -1) -> memoryview:
        """Up to `size` bytes, as many as there are; without a copy where they were fetched."""
        left = max(0, self._unit.size - self._position)
        stop = self._position + (left if size < 0 else min(size, left))
        found = self._between(self._position, stop)
        self._position = stop
        return found

    def _between(self, start: int, stop: int) -> memoryview:
        for begin, memory in self._known:
            if begin <= start and stop <= begin + len(memory):
                return memory[start - begin : stop - begin].data
        store, key = open_object(self._unit.path)
        return read_exactly(store, key, start, stop, self._unit.etag)
