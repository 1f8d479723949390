"""Groups of units for scorers that read by themselves."""

from __future__ import annotations

from typing import Literal

import pytest

from pipeline.planning.units import Unit
from pipeline.sizing.unit_groups import GROUP_ROWS, GROUP_UNITS, group_units


def units(count: int, rows: int) -> list[Unit]:
    return [
        Unit(
            index=i,
            name=f"u{i:06d}-00000000",
            path="/rows.parquet",
            size=1,
            mtime_ns=1,
            first_row_group=i,
            stop_row_group=i + 1,
            first_row=i * rows,
            rows=rows,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (19, 10), (5000, 100), (300, 1_000_000)])
@pytest.mark.parametrize("calls", [1, 3, 64])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_groups_are_all_units_in_order_and_none_is_large(
    count: int, rows: int, calls: int, device: Literal["cpu", "cuda"]
) -> None:
    given = units(count, rows)
    groups = list(group_units(given, calls, device))
    assert [unit for group in groups for unit in group] == given
    for group in groups:
        assert len(group) <= GROUP_UNITS
        assert len(group) == 1 or sum(unit.rows for unit in group) <= GROUP_ROWS[device]
    assert len(groups) >= min(count, calls)
