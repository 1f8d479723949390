"""Rows that are not scored, as `_rejected` lists them, or as an error names the first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipeline.publishing.records import REJECTED_SCHEMA
from pipeline.reading.bad_rows import Finding


def rejected_table(unit: str, first_row: int, findings: Sequence[Finding]) -> pa.Table:
    """One row for each bad row, in row order, with its first finding. Empty without findings.

    `first_row`: position of the unit's first row in its input file.
    """
    if not findings:
        return REJECTED_SCHEMA.empty_table()
    rows = np.concatenate([f.rows for f in findings])
    lengths = [len(f.rows) for f in findings]
    which = np.repeat(np.arange(len(findings)), lengths)
    bad, first = np.unique(rows, return_index=True)  # the first finding of each row
    columns = pa.array([f.column for f in findings]).take(pa.array(which[first]))
    reasons = pa.array([f.reason for f in findings]).take(pa.array(which[first]))
    values = pa.chunked_array([f.values for f in findings], pa.string()).take(pa.array(first))
    data = [pa.array([unit]).take(pa.array(np.zeros(len(bad), np.int64)))]
    data += [pa.array(bad), pa.array(bad + first_row), columns, values, reasons]
    return pa.table(data, schema=REJECTED_SCHEMA)


def first_bad_row(rejected: pa.Table, path: str, first_group: int, groups: Sequence[int]) -> str:
    """Say where the first bad row is: file, row group, row, column, value, reason.

    `groups`: rows of each row group of the unit, the first of which is `first_group` of the file.
    """
    row = rejected.slice(0, 1).to_pylist()[0]
    ends = np.cumsum(groups)
    group = int(np.searchsorted(ends, row["row"], side="right"))
    value = "null" if row["value"] is None else repr(row["value"])
    return (
        f"{path}, row group {first_group + group}, row {row['source_row']} of the file: column "
        f"{row['column']!r} holds {value}: {row['reason']} "
        f"({rejected.num_rows} bad row{'s' if rejected.num_rows > 1 else ''} in this unit); fix "
        "the input, or set on_bad_row=reject to score the rest"
    )
