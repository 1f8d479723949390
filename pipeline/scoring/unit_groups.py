"""Units for scorers that read by themselves: small tables of descriptions, a few units each.

A group is one call of a scorer, which costs Ray and the driver some 20 ms whatever it holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pyarrow as pa

from pipeline.planning.units import Unit

COLUMN = "units"
GROUP_ROWS, GROUP_UNITS = 2_000_000, 64
# So many groups a call that runs at one time, so that all calls end at about one time.
GROUPS_A_CALL = 4


def group_units(units: Sequence[Unit], calls: int) -> Iterator[list[Unit]]:
    """Runs of up to GROUP_UNITS units and GROUP_ROWS rows, fewer where there are few units for
    `calls` at a time.
    """
    share = math.ceil(sum(unit.rows for unit in units) / (calls * GROUPS_A_CALL))
    most = min(GROUP_ROWS, share)
    group: list[Unit] = []
    rows = 0
    for unit in units:
        if group and (rows + unit.rows > most or len(group) == GROUP_UNITS):
            yield group
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
