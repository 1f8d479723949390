"""Rows that are not scored, as `_rejected` lists them, or as an error names the first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipeline.planning.units import Unit
from pipeline.publishing.records import REJECTED_SCHEMA
from pipeline.reading.bad_rows import Finding, Rows


def rejected_table(unit: Unit, findings: Sequence[Finding]) -> pa.Table:
    """One row for each bad row, in row order, with its first finding. Empty without findings."""
    if not findings:
        return REJECTED_SCHEMA.empty_table()
    rows = np.concatenate([f.rows for f in findings])
    lengths = [len(f.rows) for f in findings]
    which = np.repeat(np.arange(len(findings)), lengths)
    bad, first = np.unique(rows, return_index=True)  # the first finding of each row
    columns = pa.array([f.column for f in findings]).take(pa.array(which[first]))
    reasons = pa.array([f.reason for f in findings]).take(pa.array(which[first]))
    values = pa.chunked_array([f.values for f in findings], pa.string()).take(pa.array(first))
    files = unit.of_each_file()
    starts = first_rows(files)
    place = np.searchsorted(starts, bad, side="right") - 1
    paths = pa.array([file.path for file in files]).take(pa.array(place))
    data = [pa.array([unit.name]).take(pa.array(np.zeros(len(bad), np.int64)))]
    data += [pa.array(bad), pa.array(bad - starts[place] + unit.first_row)]
    return pa.table([*data, columns, values, reasons, paths], schema=REJECTED_SCHEMA)


def first_bad_row(rejected: pa.Table, unit: Unit, group_rows: Sequence[int]) -> str:
    """Say where the first bad row is: file, row group, row, column, value, reason.

    `group_rows`: rows of each row group of the unit.
    """
    row = rejected.slice(0, 1).to_pylist()[0]
    files = unit.of_each_file()
    place = file_of_row(unit, row["row"])[0]
    before = sum(file.stop_row_group - file.first_row_group for file in files[:place])
    ends = np.cumsum(group_rows)
    group = int(np.searchsorted(ends, row["row"], side="right")) - before
    value = "null" if row["value"] is None else repr(row["value"])
    return (
        f"{row['path']}, row group {files[place].first_row_group + group}, row "
        f"{row['source_row']} of the file: column "
        f"{row['column']!r} holds {value}: {row['reason']} "
        f"({rejected.num_rows} bad row{'s' if rejected.num_rows > 1 else ''} in this unit); fix "
        "the input, or set on_bad_row=reject to score the rest"
    )


def file_of_row(unit: Unit, row: int) -> tuple[int, str, int]:
    """Which of a unit's files has one of its rows, its path, and the row's position in it."""
    files = unit.of_each_file()
    starts = first_rows(files)
    place = int(np.searchsorted(starts, row, side="right")) - 1
    return place, files[place].path, row - int(starts[place]) + unit.first_row


def first_rows(files: Sequence[Unit]) -> Rows:
    """The position in the unit of the first row of each of its files."""
    rows: Rows = np.cumsum([0, *(file.rows for file in files[:-1])])
    return rows
