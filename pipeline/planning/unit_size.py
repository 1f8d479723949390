"""How many rows a unit gets when nobody says: by the input alone, never by the machine.

`unit_rows` is part of the job's identity, and a stopped job may go on at another machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.planning.inputs import InputFile

MB = 10**6
# A unit in memory, but for inputs too small for it. Readers hold dozens of them at a time, so that
# this, and not the input, bounds a job's memory; yet what a unit costs by itself (a call, three
# small files, a record) stays far below the time of its rows.
UNIT_BYTES = 256 * MB
# A small input still has so many units, that the last ones do not keep others waiting.
FEW_UNITS, TINY_BYTES = 64, 8 * MB


def auto_unit_rows(files: Sequence[InputFile], row_bytes: int) -> int:
    """Rows a unit; the files of the largest size are cut evenly, at row groups."""
    rows = sum(file.rows for file in files)
    wanted = max(TINY_BYTES, min(UNIT_BYTES, rows * row_bytes // FEW_UNITS)) // row_bytes
    largest = max(files, key=lambda file: file.rows, default=None)
    if largest is None or not largest.rows:
        return max(1, wanted)
    return evenly(largest, max(1, wanted))


def evenly(file: InputFile, wanted: int) -> int:
    """About `wanted` rows, such that they cut the file into like parts."""
    group = max(file.row_group_rows)
    groups = sum(rows > 0 for rows in file.row_group_rows)
    parts = -(-file.rows // max(wanted, group))
    return min(-(-groups // parts) * group, max(wanted, min(file.rows, wanted + group)), 10**9)
