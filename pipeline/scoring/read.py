"""Body of a read task: one unit of the input becomes one Arrow table.

Faults of the input become data, not exceptions: the table then carries a `UnitError` in its
metadata, and the driver decides what it means for the job.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.planning.units import Unit
from pipeline.publishing.records import ErrorKind, UnitError

if TYPE_CHECKING:  # it would bring torch into every read task
    from pipeline.planning.columns import Columns

UNIT_KEY = b"dpiframe.unit"
ERROR_KEY = b"dpiframe.error"
GROUPS_KEY = b"dpiframe.row_groups"
SECONDS_KEY = b"dpiframe.read_s"


class UnreadableError(Exception):
    """A unit that cannot be read; `kind` says in which way."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind


def read_unit(unit_json: str, columns: Sequence[str], dictionary: Sequence[str]) -> list[pa.Table]:
    """Read the named columns of a unit, rows in file order, one chunk a column.

    String columns named in `dictionary` stay dictionary-encoded: each distinct value is then
    hashed once. Returns one table whose metadata holds the unit and the seconds spent; if the unit
    cannot be read, a one-row table whose metadata holds the unit and the error.
    """
    started = time.perf_counter()
    unit = Unit.model_validate_json(unit_json)
    metadata = {UNIT_KEY: unit_json.encode()}
    try:
        table, group_rows = load(unit, columns, dictionary)
    except UnreadableError as error:
        failed = UnitError(unit=unit.name, kind=error.kind, message=str(error))
        metadata[ERROR_KEY] = failed.model_dump_json().encode()
        # One row, because Ray Data drops blocks without rows.
        return [pa.table({"failed": [True]}).replace_schema_metadata(metadata)]
    metadata[GROUPS_KEY] = ",".join(map(str, group_rows)).encode()
    metadata[SECONDS_KEY] = repr(time.perf_counter() - started).encode()
    return [table.replace_schema_metadata(metadata)]


def load(
    unit: Unit, columns: Sequence[str], dictionary: Sequence[str]
) -> tuple[pa.Table, list[int]]:
    """The rows of a unit and the number of rows of each of its row groups.

    Raises UnreadableError: the file is gone, is not the planned one any more, or is corrupt.
    """
    check_unchanged(unit)
    where = f"{unit.path} (row groups {unit.first_row_group} to {unit.stop_row_group - 1})"
    groups = range(unit.first_row_group, unit.stop_row_group)
    try:
        with pq.ParquetFile(unit.path, pre_buffer=True) as file:
            group_rows = [file.metadata.row_group(g).num_rows for g in groups]
            strings = string_columns(file.schema_arrow, dictionary)
            footer = file.metadata
        with pq.ParquetFile(
            unit.path,
            metadata=footer,
            pre_buffer=True,
            read_dictionary=strings,
            page_checksum_verification=True,  # of the pages that have one
        ) as file:
            table = file.read_row_groups(list(groups), columns=list(columns))
    except FileNotFoundError:
        raise removed(unit) from None
    except MemoryError as error:  # pyarrow's is an ArrowException as well, but the file is whole
        raise UnreadableError("io", f"no memory to read {where}: {error}") from error
    except (pa.ArrowException, OSError, IndexError, KeyError) as error:
        check_unchanged(unit)
        if isinstance(error, OSError) and error.errno is not None:
            raise UnreadableError("io", f"cannot read {where}: {error}") from error
        raise UnreadableError("corrupt", f"corrupt parquet: {where}: {error}") from error
    check_unchanged(unit)
    if table.num_rows != unit.rows:
        raise UnreadableError(
            "changed", f"{where} has {table.num_rows} rows, {unit.rows} were planned"
        )
    return one_chunk(table), group_rows


def string_columns(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """Those of the named columns that hold strings; the others have no dictionary to keep."""
    kinds = (pa.types.is_string, pa.types.is_large_string)
    types = {field.name: field.type for field in schema}
    return [name for name in names if name in types and any(k(types[name]) for k in kinds)]


def worth_hashing_once(columns: Columns) -> tuple[str, ...]:
    """Columns to read as dictionaries: all but those that are published as they are."""
    copied = {*columns.key_columns, *columns.carry_columns}
    return tuple(name for name in columns.read_columns if name not in copied)


def one_chunk(table: pa.Table) -> pa.Table:
    """The same rows with exactly one chunk a column; copies only columns that had several."""
    if all(column.num_chunks == 1 for column in table.columns):
        return table
    return table.unify_dictionaries().combine_chunks()


def check_unchanged(unit: Unit) -> None:
    """Raise UnreadableError unless the file still has the size and time that were planned."""
    try:
        found = Path(unit.path).stat()
    except FileNotFoundError:
        raise removed(unit) from None
    except OSError as error:
        raise UnreadableError("io", f"cannot read {unit.path}: {error}") from error
    if (found.st_size, found.st_mtime_ns) != (unit.size, unit.mtime_ns):
        raise UnreadableError(
            "changed",
            f"{unit.path} changed after planning: {unit.size} bytes modified at {unit.mtime_ns} ns"
            f" were planned, found {found.st_size} bytes modified at {found.st_mtime_ns} ns; "
            "inputs must not change while a job runs",
        )


def removed(unit: Unit) -> UnreadableError:
    """The error for a file that disappeared."""
    return UnreadableError(
        "removed",
        f"{unit.path} was removed after planning, or host {socket.gethostname()} does not see it; "
        "restore it and run the job again",
    )
