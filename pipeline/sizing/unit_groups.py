"""Groups of units for scorers that read by themselves.

A group is one call of a scorer, which costs Ray and the driver some 20 ms whatever it holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from pipeline.planning.units import Unit

# About two seconds of a thread: long enough to pay for the call, short enough to show progress.
GROUP_ROWS = {"cuda": 12_000_000, "cpu": 2_000_000}
GROUP_UNITS = 64
# The remaining rows would make so many groups for each concurrent call: groups become smaller
# towards the end, so that all calls end at about the same time.
GROUPS_A_CALL = 2


def group_units(
    units: Sequence[Unit], calls: int, device: Literal["cuda", "cpu"]
) -> Iterator[list[Unit]]:
    """Runs of up to GROUP_UNITS units and GROUP_ROWS rows, fewer when few are left for `calls`
    concurrent calls.
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
