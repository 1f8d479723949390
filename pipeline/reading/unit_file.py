"""The file of a unit as readers see it, checked to be the one that was planned."""

from __future__ import annotations

import errno
import functools
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpiframe_core import _core
from pipeline.errors import UnitFailedError
from pipeline.planning.arrow_schemas import arrow_schema
from pipeline.planning.units import Unit

# Arrow types whose values are the numbers of the file, and numpy's name of each.
PLAIN_TYPES = {pa.int32(): "<i4", pa.int64(): "<i8", pa.float32(): "<f4", pa.float64(): "<f8"}


class UnitFile(ABC):
    """A unit's file, open for reading; `began`: when, by `time.perf_counter`."""

    def __init__(self, unit: Unit) -> None:
        self.unit, self.began = unit, time.perf_counter()

    @abstractmethod
    def check(self) -> None:
        """Raise UnitFailedError unless the file is still the planned one."""

    @abstractmethod
    def native(self) -> _core.ParquetFile:
        """For our own reader. OSError, ValueError."""

    @abstractmethod
    def source(self) -> Any:
        """What pyarrow opens: a path, or a file object."""

    @abstractmethod
    def plain_columns(self) -> dict[str, str]:
        """The columns in PLAIN_TYPES, and numpy's type of each.

        Only the Arrow schema distinguishes them from types stored as integers, such as durations.
        """

    def stored_pages(self, names: Sequence[str], size: int) -> np.ndarray | None:
        """Memory [size] in which the pages of these columns lie already as `read_pages` wants them;
        None where they do not.
        """
        return None


class LocalFile(UnitFile):
    """A file of the file system."""

    def check(self) -> None:
        """Compare size and time; UnitFailedError."""
        check_unchanged(self.unit)

    def native(self) -> _core.ParquetFile:
        """It stays open for the file's other units. OSError, ValueError."""
        return open_native(self.unit.path, self.unit.size, self.unit.mtime_ns)

    def source(self) -> str:
        """The path."""
        return self.unit.path

    def plain_columns(self) -> dict[str, str]:
        """As the file's schema says."""
        return plain_columns(self.native().empty())


@functools.lru_cache(maxsize=32)
def open_native(path: str, size: int, mtime_ns: int) -> _core.ParquetFile:
    """The planned file; units of one file follow one another, and share its parsed footer."""
    return _core.ParquetFile(path)


@functools.lru_cache(maxsize=32)
def plain_columns(empty: bytes) -> dict[str, str]:
    """Of a file by its schema alone, as a file of no rows: most files share it."""
    return plain_types(arrow_schema(empty).schema)


def plain_types(schema: pa.Schema) -> dict[str, str]:
    """The columns in PLAIN_TYPES, and numpy's type of each."""
    return {field.name: PLAIN_TYPES[field.type] for field in schema if field.type in PLAIN_TYPES}


def check_unchanged(unit: Unit) -> None:
    """Raise UnitFailedError unless the file still has the size and time that were planned."""
    try:
        found = Path(unit.path).stat()
    except OSError as error:
        raise unit_error(unit, error) from error
    if (found.st_size, found.st_mtime_ns) != (unit.size, unit.mtime_ns):
        raise UnitFailedError(
            "changed",
            f"{unit.path} changed after planning: {unit.size} bytes modified at {unit.mtime_ns} ns"
            f" were planned, found {found.st_size} bytes modified at {found.st_mtime_ns} ns; "
            "inputs must not change while a job runs",
        )


def unit_error(unit: Unit, error: OSError) -> UnitFailedError:
    """What the file system or the store said, as the error of a unit."""
    if isinstance(error, FileNotFoundError):
        return UnitFailedError(
            "removed",
            f"{unit.path} was removed after planning, or host {socket.gethostname()} does not see "
            "it; restore it and run the job again",
        )
    if unit.etag and error.errno == errno.ESTALE:
        return UnitFailedError(
            "changed",
            f"{unit.path} was replaced after planning (etag {unit.etag} was planned); "
            "inputs must not change while a job runs",
        )
    if unit.etag and isinstance(error, PermissionError):
        return UnitFailedError(
            "io",
            f"{unit.path}: the store refuses host {socket.gethostname()} ({error.strerror}); give "
            "it credentials that may read it and run the job again",
        )
    return UnitFailedError("io", f"cannot read {unit.path}: {error}")
