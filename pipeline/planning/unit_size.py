"""How many rows a unit gets when nobody says: by the input alone, never by the machine.

`unit_rows` is part of the job's identity, and a stopped job may go on at another machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.planning.inputs import InputFile

MB = 10**6
# A large input has about this many units: several for each of many readers, so that the last ones
# do not keep the others waiting, yet few enough for what a unit costs by itself (a task, three
# small files, a record) to stay far below the time of its rows.
UNITS = 320
# A unit in memory: readers hold dozens of them at a time, so that this bounds a job's memory.
MOST_BYTES = 384 * MB
# Below this a unit costs more by itself than its rows do, unless an input would have too few.
LEAST_BYTES = 64 * MB
FEW_UNITS, TINY_BYTES = 16, 8 * MB


def auto_unit_rows(files: Sequence[InputFile], row_bytes: int) -> int:
    """Rows a unit; the files of the largest size are cut evenly, at row groups."""
    rows = sum(file.rows for file in files)
    few = max(TINY_BYTES, min(LEAST_BYTES, rows * row_bytes // FEW_UNITS))
    wanted = max(few, min(MOST_BYTES, rows * row_bytes // UNITS)) // row_bytes
    largest = max(files, key=lambda file: file.rows, default=None)
    if largest is None or not largest.rows:
        return max(1, wanted)
    return evenly(largest, max(1, wanted))


def evenly(file: InputFile, wanted: int) -> int:
    """About `wanted` rows, such that they cut the file into like parts."""
    group = max(file.row_group_rows)
    groups = sum(rows > 0 for rows in file.row_group_rows)
    parts = -(-file.rows // max(wanted, group))
    return min(-(-groups // parts) * group, max(wanted + group, file.rows), 10**9)
