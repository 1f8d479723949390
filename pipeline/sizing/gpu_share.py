"""How much of the input a GPU can decode, by the footers, before anything is started.

Our own reader reads the footers, in this process: unlike pyarrow's it survives corrupt ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from dpiframe_core import _core
from pipeline.errors import ConfigError
from pipeline.planning.columns import Columns
from pipeline.planning.units import Unit
from pipeline.reading.native_file import feature_types, footer_of

MAX_UNITS = 512  # are looked at, spread evenly, in a second or less
THREADS = 16  # most of them wait for the storage


class GpuShare(NamedTuple):
    """The share of the rows, and why the first of the other units is excluded."""

    share: float
    excludes: str


def gpu_share(units: Sequence[Unit], columns: Columns) -> GpuShare:
    """The share of the rows of units (at least one), by what their files are now."""
    if columns.lists:
        return GpuShare(0.0, "lists are decoded there")
    if columns.form == "encoded" and not columns.id_columns:
        return GpuShare(0.0, "there are no ids")
    if not columns.partitions.keys().isdisjoint(columns.source_columns):
        return GpuShare(0.0, "the names of folders are features")
    seen = units[:: -(-len(units) // MAX_UNITS)]
    with ThreadPoolExecutor(THREADS) as pool:
        reasons = list(pool.map(partial(why_not_pages, columns=columns), seen))
    good = sum(unit.rows for unit, why in zip(seen, reasons, strict=True) if not why)
    rows = sum(unit.rows for unit in seen)
    return GpuShare(good / rows if rows else 0.0, next(filter(None, reasons), ""))


def why_not_pages(unit: Unit, columns: Columns) -> str:
    """Why a unit would not stay pages, as far as its footer tells; empty if it would."""
    groups = unit.first_row_group, unit.stop_row_group
    try:
        file = footer_of(unit)
        if columns.form == "raw":
            names = list(columns.source_columns)
            file.encoded_pages_bytes(names, *groups, [_core.hash_encoder(0, 1)] * len(names))
            return ""
        if feature_types(file, columns, *groups) is None:
            return f"{unit.path}: ids must be integers and dense features numbers"
        file.pages_bytes(list(columns.id_columns), *groups)
    except (OSError, ValueError, MemoryError, ConfigError) as error:
        return f"{unit.path}: {error}"
    return ""
