"""Units for scorers that read by themselves: small tables of descriptions, a few units each.

A group is one call of a scorer, which costs Ray and the driver some 20 ms whatever it holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import pyarrow as pa

from pipeline.planning.units import Unit

COLUMN = "units"
# Two seconds of a thread beside a GPU: calls are few for what they cost, and progress is seen.
GROUP_ROWS = {"cuda": 12_000_000, "cpu": 2_000_000}
GROUP_UNITS = 64
# What is left would always make so many groups a call that runs at one time: groups become smaller
# towards the end, and all calls end at about one time.
GROUPS_A_CALL = 2


def group_units(
    units: Sequence[Unit], calls: int, device: Literal["cuda", "cpu"]
) -> Iterator[list[Unit]]:
    """Runs of up to GROUP_UNITS units and GROUP_ROWS rows, fewer where few are left for `calls` at
    a time.
    """
    left = sum(unit.rows for unit in units)
    group: list[Unit] = []
    rows = 0
    for unit in units:
        most = min(GROUP_ROWS[device], math.ceil(left / (calls * GROUPS_A_CALL)))
        if group and (rows + unit.rows > most or len(group) == GROUP_UNITS):
            yield group
            left -= rows
            group, rows = [], 0
        group.append(unit)
        rows += unit.rows
    if group:
        yield group


def group_table(group: Sequence[Unit]) -> pa.Table:
    """The units as a table of their descriptions."""
    return pa.table({COLUMN: [unit.model_dump_json() for unit in group]})


def units_of(table: pa.Table) -> list[str] | None:
    """The descriptions in a `group_table`; None for any other table."""
    return table.column(COLUMN).to_pylist() if table.column_names == [COLUMN] else None
