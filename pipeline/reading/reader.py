"""Reading a unit by the fastest reader that takes its file.

    read_pages    ids stay data pages, which a GPU decodes    encoded, zstd, snappy, LZ4, none
    read_raw_pages  dictionaries are encoded, the rest      raw, strings and numbers, no lists;
                  stays data pages for a GPU                  zstd, snappy, LZ4, none
    read_native   our own reader decodes the numbers          encoded, gzip as well, nulls,
                                                              and lists of numbers
    read_raw      our own reader encodes what it decodes      raw, strings and numbers, no lists
    read_arrow    pyarrow decodes, raw columns are encoded    everything else

Of a file in an object store they see what was fetched for the unit, and no more.
The others never fail a unit: pyarrow reads what they do not, or says what is wrong with it. Of a
joined unit the pages of all files are read at once (read_joined_pages), else each file is read so,
and what was read is copied together.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from typing import Literal, overload

import pyarrow as pa

from pipeline.errors import UnitFailedError
from pipeline.planning.columns import Columns
from pipeline.planning.job_plan import WorkerPlan
from pipeline.planning.units import Unit
from pipeline.reading.joined import join_columns, join_pages
from pipeline.reading.read_arrow import read_arrow
from pipeline.reading.read_joined_pages import read_joined_pages
from pipeline.reading.read_native import read_native
from pipeline.reading.read_pages import read_pages
from pipeline.reading.read_raw import read_raw, read_raw_pages
from pipeline.reading.remote_file import RemoteFile
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_data import UnitColumns, UnitPages
from pipeline.reading.unit_file import LocalFile, UnitFile

OBJECTS_AT_ONCE = 16  # of a joined unit
BY_GPU = (read_pages, read_raw_pages)
FASTER = (read_native, read_raw)
NOT_TAKEN = (OSError, ValueError, MemoryError, pa.ArrowException, UnitFailedError)


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
        return _read_file(unit, buffer, plan, pages)
    if pages:
        with suppress(*NOT_TAKEN):
            if (joined := read_joined_pages(unit.of_each_file(), plan, buffer)) is not None:
                return joined
        stored = []
        with closing(_read_each(unit, plan, buffer, True)) as each:
            for found in each:
                if not isinstance(found, UnitPages):
                    break
                stored.append(found)
            else:
                with suppress(ValueError):
                    return join_pages(stored, buffer)
    with closing(_read_each(unit, plan, buffer, False)) as each:
        columns = []
        for read in each:
            assert isinstance(read, UnitColumns)  # no pages were asked for
            columns.append(read)
    return join_columns(columns, buffer)


def _read_each(
    unit: Unit, plan: WorkerPlan, buffer: UnitBuffer, pages: bool
) -> Generator[UnitPages | UnitColumns, None, None]:
    """What is read of each file; of objects of several at a time, as most of it is waiting."""
    files = unit.of_each_file()
    memory = [buffer.of_file(place) for place in range(len(files))]
    read = partial(_read_file, plan=plan, pages=pages)
    if not any(file.etag for file in files):
        yield from map(read, files, memory)
        return
    with ThreadPoolExecutor(OBJECTS_AT_ONCE) as threads:
        yield from threads.map(read, files, memory)


def _read_file(
    unit: Unit, buffer: UnitBuffer, plan: WorkerPlan, pages: bool
) -> UnitPages | UnitColumns:
    opened = open_unit(unit, plan.columns, buffer)
    for read in (*BY_GPU, *FASTER) if pages else FASTER:
        try:
            found = read(opened, plan, buffer)
        except NOT_TAKEN:
            continue
        if found is not None:
            return found
    return read_arrow(opened, plan, buffer)


def open_unit(unit: Unit, columns: Columns, buffer: UnitBuffer) -> UnitFile:
    """The file of a unit; of an object store what the unit needs, in `buffer`. UnitFailedError."""
    return RemoteFile(unit, columns, buffer) if unit.etag else LocalFile(unit)
