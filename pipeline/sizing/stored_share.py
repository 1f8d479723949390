"""How much of the input a GPU can unpack, by what the footers say, before anything is started.

The files of a job are mostly alike, but need not be. Footers are read by our own reader, in this
process: unlike pyarrow's it survives any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from pipeline.planning.columns import Columns
from pipeline.planning.units import Unit
from pipeline.reading.read_numbers import id_type_of, opened

MOST_UNITS = 512  # are looked at, spread evenly: a second or less
THREADS = 16  # of which most wait for the storage


class StoredShare(NamedTuple):
    """The share of the rows, and why the first of the other units is not among them."""

    share: float
    other: str


def stored_share(units: Sequence[Unit], columns: Columns) -> StoredShare:
    """Of the rows of units (at least one); a unit's file counts as it is now."""
    if columns.form != "encoded":
        return StoredShare(0.0, "raw rows are encoded there")
    if not columns.id_columns:
        return StoredShare(0.0, "there are no ids")
    seen = units[:: -(-len(units) // MOST_UNITS)]
    with ThreadPoolExecutor(THREADS) as pool:
        reasons = list(pool.map(partial(why_not_stored, columns=columns), seen))
    good = sum(unit.rows for unit, why in zip(seen, reasons, strict=True) if not why)
    rows = sum(unit.rows for unit in seen)
    return StoredShare(good / rows if rows else 0.0, next(filter(None, reasons), ""))


def why_not_stored(unit: Unit, columns: Columns) -> str:
    """Why `read_stored` would not take a unit, as far as its footer tells; empty if it would."""
    groups = unit.first_row_group, unit.stop_row_group
    try:
        file = opened(unit.path, unit.size, unit.mtime_ns)
        features = (*columns.id_columns, *columns.dense_columns)
        kinds = {name: file.number_type(name, *groups) for name in features}
        if id_type_of(kinds, columns) is None:
            return f"{unit.path}: ids must be all int32 or all int64, dense float32, without nulls"
        file.stored_bytes(list(columns.id_columns), *groups)
    except (OSError, ValueError, MemoryError) as error:
        return f"{unit.path}: {error}"
    return ""
