"""The quickest way to read encoded rows: ids stay as the file stores them, for a GPU to unpack.

It takes what `read_numbers` takes, where pages are in zstd or uncompressed, and leaves all others,
units with a row that must not be scored, and whatever is wrong with one, to `read.read_block`:
nothing here ever fails a unit.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dpiframe_core import _core
from pipeline.planning.columns import Columns
from pipeline.planning.units import Unit
from pipeline.reading.bad_rows import dense_findings, null_findings
from pipeline.reading.read_numbers import DENSE_TYPE, number_file
from pipeline.reading.unit_block import ReadFacts
from pipeline.reading.unit_memory import Piece
from pipeline.reading.unit_reader import UnreadableError, check_unchanged, plain, with_others


class StoredUnit(NamedTuple):
    """Ids [F, B] whose pages lie in `memory`, dense [N, B], the columns beside the scores."""

    facts: ReadFacts
    ids: _core.StoredColumns
    memory: np.ndarray
    dense: np.ndarray
    copied: pa.Table


def read_stored(unit: Unit, columns: Columns, piece: Piece) -> StoredUnit | None:
    """A unit, in `piece`; None where it is not for this way of reading."""
    if columns.form != "encoded" or not columns.id_columns:
        return None
    try:
        return _read(unit, columns, piece)
    except (OSError, ValueError, MemoryError, pa.ArrowException, UnreadableError):
        return None


def _read(unit: Unit, columns: Columns, piece: Piece) -> StoredUnit | None:
    started = time.perf_counter()
    check_unchanged(unit)  # before a file is opened that stays open for its other units
    found = number_file(unit, columns)
    if found is None:
        return None
    groups = unit.first_row_group, unit.stop_row_group
    id_columns = list(columns.id_columns)
    size = found.file.stored_bytes(id_columns, *groups)
    (memory,), dense, *vectors = piece.matrices(
        (1, size, "<u1"),
        (len(columns.dense_columns), unit.rows, DENSE_TYPE),
        *((1, unit.rows, kind) for kind in found.published.values()),
    )
    copied = {name: row[0] for name, row in zip(found.published, vectors, strict=True)}
    found.file.read([*columns.dense_columns, *copied], *groups, [*dense, *copied.values()])
    ids = found.file.read_stored(id_columns, *groups, memory)
    table = with_others(unit, columns, {name: pa.array(array) for name, array in copied.items()})
    if any(null_findings(table, columns.key_columns, "key")):
        return None
    values = pa.table([pa.array(row) for row in dense], names=list(columns.dense_columns))
    if any(dense_findings(values, columns.dense_columns, list(dense))):
        return None
    published = {name: plain(table.column(name)) for name in columns.published}
    facts = ReadFacts(found.group_rows, time.perf_counter() - started, 0.0, "gpu")
    return StoredUnit(facts, ids, memory, dense, pa.table(published))
