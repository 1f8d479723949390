"""Reading a unit by the fastest reader that takes its file.

    read_pages    ids stay data pages, which a GPU decodes    encoded, zstd, snappy, LZ4, none
    read_native   our own reader decodes the numbers          encoded, gzip as well, nulls,
                                                              and lists of numbers
    read_raw      our own reader encodes what it decodes      raw, strings and numbers, no lists
    read_arrow    pyarrow decodes, raw columns are encoded    everything else

Of a file in an object store they see what was fetched for the unit, and no more.
The others never fail a unit: pyarrow reads what they do not, or says what is wrong with it. Of a
joined unit each file is read so, and what was read is copied together.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, overload

import pyarrow as pa

from pipeline.errors import UnitFailedError
from pipeline.planning.columns import Columns
from pipeline.planning.job_plan import WorkerPlan
from pipeline.planning.units import Unit
from pipeline.reading.joined import join_columns, join_pages
from pipeline.reading.read_arrow import read_arrow
from pipeline.reading.read_native import read_native
from pipeline.reading.read_pages import read_pages
from pipeline.reading.read_raw import read_raw
from pipeline.reading.remote_file import RemoteFile
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_data import UnitColumns, UnitPages
from pipeline.reading.unit_file import LocalFile, UnitFile

FASTER = (read_pages, read_native, read_raw)


@overload
def read_unit(
    unit: Unit, plan: WorkerPlan, buffer: UnitBuffer, pages: Literal[False] = False
) -> UnitColumns: ...
@overload
def read_unit(
    unit: Unit, plan: WorkerPlan, buffer: UnitBuffer, pages: bool
) -> UnitPages | UnitColumns: ...
def read_unit(
    unit: Unit, plan: WorkerPlan, buffer: UnitBuffer, pages: bool = False
) -> UnitPages | UnitColumns:
    """Read a unit, which may lie in `buffer`; as `UnitPages` only if `pages` allows it.

    UnitFailedError: a file was removed, changed or is corrupt, or its rows cannot be encoded.
    """
    if not unit.more:
        return _read_file(unit, plan, buffer, pages)
    each = unit.of_each_file()
    if pages and (found := _pages_of(each, plan, buffer)) is not None:
        with suppress(ValueError):
            return join_pages(found, buffer)
    decoded = [read_unit(file, plan, buffer.of_file(i)) for i, file in enumerate(each)]
    return join_columns(decoded, buffer)


def _pages_of(
    files: Sequence[Unit], plan: WorkerPlan, buffer: UnitBuffer
) -> list[UnitPages] | None:
    """The pages of each file; None where the CPU has to decode one."""
    found = []
    for i, file in enumerate(files):
        read = _read_file(file, plan, buffer.of_file(i), True)
        if not isinstance(read, UnitPages):
            return None
        found.append(read)
    return found


def _read_file(
    unit: Unit, plan: WorkerPlan, buffer: UnitBuffer, pages: bool
) -> UnitPages | UnitColumns:
    opened = open_unit(unit, plan.columns, buffer)
    for read in FASTER if pages else FASTER[1:]:
        try:
            found = read(opened, plan, buffer)
        except (OSError, ValueError, MemoryError, pa.ArrowException, UnitFailedError):
            continue
        if found is not None:
            return found
    return read_arrow(opened, plan, buffer)


def open_unit(unit: Unit, columns: Columns, buffer: UnitBuffer) -> UnitFile:
    """The file of a unit; of an object store what the unit needs, in `buffer`. UnitFailedError."""
    return RemoteFile(unit, columns, buffer) if unit.etag else LocalFile(unit)
