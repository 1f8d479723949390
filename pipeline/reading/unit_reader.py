"""Body of a read task: one unit of the input becomes one block, ready for the engine.

All work on rows before the engine happens here, as read tasks run on every CPU: decoding, encoding,
finding bad rows. Faults of the input become data, not exceptions: the block then carries a
`UnitError`, and the driver decides what it means for the job.
"""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from dpiframe_core.bundle.encoder import bundled_encoder
from dpiframe_core.errors import BundleError
from dpiframe_core.features.errors import EncodeError
from pipeline.planning.columns import Columns
from pipeline.planning.units import Unit
from pipeline.publishing.records import ErrorKind, Reader, UnitError
from pipeline.reading.model_inputs import (
    ModelInputs,
    encoded_inputs,
    number_inputs,
    raw_inputs,
)
from pipeline.reading.read_numbers import read_numbers
from pipeline.reading.unit_block import ReadFacts, failed_block, make_block, one_chunk
from pipeline.reading.unit_memory import Piece


class ReadSettings(BaseModel):
    """What a read task needs to know of the job; travels to every task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    columns: Columns
    bundle: str
    bundle_digest: str

    @property
    def strings(self) -> list[str]:
        """Columns whose dictionaries are kept, each value to be hashed once."""
        copied = set(self.columns.published)
        return [name for name in self.columns.source_columns if name not in copied]


class UnreadableError(Exception):
    """A unit that cannot be read; `kind` says in which way."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind


def read_unit(unit_json: str, settings_json: str, piece: Piece | None = None) -> list[pa.Table]:
    """Read a unit, rows in file order: one block, see `unit_block`; ids may lie in `piece`."""
    unit = Unit.model_validate_json(unit_json)
    settings = read_settings(settings_json)
    try:
        return [read_block(unit, settings, piece or Piece())]
    except UnreadableError as error:
        failed = UnitError(unit=unit.name, kind=error.kind, message=str(error))
        return [failed_block(unit, failed)]


@functools.lru_cache(maxsize=1)
def read_settings(settings_json: str) -> ReadSettings:
    """The settings, parsed once in a process."""
    return ReadSettings.model_validate_json(settings_json)


def read_block(unit: Unit, settings: ReadSettings, piece: Piece) -> pa.Table:
    """The block of a unit; UnreadableError says why there is none."""
    started = time.perf_counter()
    columns = settings.columns
    check_unchanged(unit)  # before a file is opened that stays open for its other units
    numbers = read_numbers(unit, columns, piece) if columns.form == "encoded" else None
    if numbers is None:
        table, group_rows = load(unit, columns.read_columns, settings.strings)
    else:
        table, group_rows = with_others(unit, columns, numbers.copied), numbers.group_rows
    loaded = time.perf_counter()
    if numbers is None:
        inputs = model_inputs(unit, table, settings)
    else:
        inputs = number_inputs(table, columns, numbers.ids, numbers.dense)
    published = [(name, plain(table.column(name))) for name in columns.published]
    reader: Reader = "arrow" if numbers is None else "cpu"
    facts = ReadFacts(group_rows, loaded - started, time.perf_counter() - loaded, reader)
    return make_block(unit, facts, inputs.ids, inputs.dense, published, inputs.findings)


def with_others(unit: Unit, columns: Columns, copied: Mapping[str, pa.Array]) -> pa.Table:
    """The published columns: those that were copied, and all others, which are read here."""
    others = [name for name in columns.published if name not in copied]
    if not others:
        check_unchanged(unit)
        return pa.table(dict(copied))
    table, _ = load(unit, others, ())
    for name, array in copied.items():
        table = table.append_column(name, array)
    return table


def model_inputs(unit: Unit, table: pa.Table, settings: ReadSettings) -> ModelInputs:
    """The engine's inputs from the columns as read; UnreadableError."""
    columns = settings.columns
    if columns.form == "encoded":
        return encoded_inputs(table, columns.key_columns, columns.id_columns, columns.dense_columns)
    try:
        encoder = bundled_encoder(settings.bundle, settings.bundle_digest)
    except (BundleError, OSError) as error:
        raise UnreadableError(
            "bundle",
            f"{error}, on host {socket.gethostname()}: it must not change while a job runs",
        ) from error
    try:
        return raw_inputs(table, columns.key_columns, encoder)
    except EncodeError as error:
        raise UnreadableError("bad_row", f"{unit.path}: {error}") from error
    except ValueError as error:
        raise UnreadableError("corrupt", f"corrupt parquet: {unit.path}: {error}") from error


def load(unit: Unit, columns: Sequence[str], strings: Sequence[str]) -> tuple[pa.Table, list[int]]:
    """The rows of a unit and the number of rows of each of its row groups.

    Those of the `strings` that a file holds as dictionaries stay so. Raises UnreadableError: the
    file is gone, is not the planned one any more, or is corrupt.
    """
    check_unchanged(unit)
    where = f"{unit.path} (row groups {unit.first_row_group} to {unit.stop_row_group - 1})"
    try:
        table, group_rows = decode(unit, columns, strings)
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
    return table, group_rows


def decode(
    unit: Unit, columns: Sequence[str], strings: Sequence[str]
) -> tuple[pa.Table, list[int]]:
    """What `load` gives, with pyarrow's own errors."""
    groups = list(range(unit.first_row_group, unit.stop_row_group))
    with pq.ParquetFile(unit.path) as file:
        footer = file.metadata
        kept = dictionaries(footer, groups, strings)
    with pq.ParquetFile(
        unit.path,
        metadata=footer,
        pre_buffer=True,  # few large reads: what a network file system needs
        read_dictionary=kept,
        page_checksum_verification=True,  # of the pages that have one
    ) as file:
        table = file.read_row_groups(groups, columns=list(columns), use_threads=False)
    return table, [footer.row_group(group).num_rows for group in groups]


def dictionaries(
    footer: pq.FileMetaData, groups: Sequence[int], strings: Sequence[str]
) -> list[str]:
    """Those of the `strings` that these row groups hold as dictionaries for the most part.

    Without one, a string takes four bytes for its length at least. To make a dictionary where the
    file has none costs more than it saves.
    """
    wanted, kept = set(strings), []
    first = footer.row_group(groups[0])
    for c in range(first.num_columns):
        name = first.column(c).path_in_schema
        if name not in wanted or first.column(c).physical_type != "BYTE_ARRAY":
            continue
        chunks = [footer.row_group(group).column(c) for group in groups]
        size = sum(chunk.total_uncompressed_size for chunk in chunks)
        if size < 4 * sum(chunk.num_values for chunk in chunks):
            kept.append(name)
    return kept


def plain(column: pa.ChunkedArray) -> pa.Array:
    """The column as it is published: one chunk, without dictionary encoding."""
    array = one_chunk(column)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


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
