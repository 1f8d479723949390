"""Rows that break the contract, found column by column, never row by row.

A check yields `Finding`s: a column, the rows in which it is bad, and why. The first finding of a
row, in the order of the checks, is the one reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.publishing.records import REJECTED_SCHEMA

Rows = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Dense = npt.NDArray[np.float32]
Column = TypeVar("Column", Ids, Dense)

FINDING_SCHEMA = pa.schema([("row", pa.int64()), ("value", pa.string())])
FINDINGS = b"findings"


@dataclass(frozen=True)
class Finding:
    """Rows [R] (ascending positions in the unit) in which a column is bad; values as found."""

    column: str
    rows: Rows
    reason: str
    values: pa.Array  # string [R], null where the value is null


def null_findings(table: pa.Table, columns: Sequence[str], what: str) -> Iterator[Finding]:
    """Findings for columns that may not hold nulls; `what` they are: "key", "id", ..."""
    for name in columns:
        column = table.column(name)
        if column.null_count:
            rows = np.flatnonzero(pc.is_null(column).to_numpy()).astype(np.int64)
            yield Finding(name, rows, f"null {what}", pa.nulls(len(rows), pa.string()))


def id_findings(
    columns: Sequence[tuple[str, pa.Array]], ids: Sequence[Ids], table_rows: Sequence[int]
) -> Iterator[Finding]:
    """Findings for ids [F] of [B] outside 0 .. table_rows[f] - 1; `columns` [F]: name, values."""
    from dpiframe_core import _core

    _, counts = _core.find_bad_ids(list(ids), list(table_rows))
    for f in np.flatnonzero(counts).tolist():
        rows = np.flatnonzero((ids[f] < 0) | (ids[f] >= table_rows[f])).astype(np.int64)
        reason = f"id outside its table of {table_rows[f]} rows (valid: 0 to {table_rows[f] - 1})"
        name, values = columns[f]
        yield Finding(name, rows, reason, values_as_text(values, rows))


def dense_findings(
    table: pa.Table, columns: Sequence[str], dense: Sequence[Dense]
) -> Iterator[Finding]:
    """Findings for dense values [N] of [B] that are not finite; `columns` [N] of `table`."""
    for name, values in zip(columns, dense, strict=True):
        finite = np.isfinite(values)
        if not finite.all():
            rows = np.flatnonzero(~finite).astype(np.int64)
            text = values_as_text(table.column(name), rows)
            yield Finding(name, rows, "dense value is not finite", text)


def values_as_text(column: pa.Array | pa.ChunkedArray, rows: Rows) -> pa.Array:
    """The values of a column in some rows, as strings [R]."""
    text = column.take(pa.array(rows)).cast(pa.string())
    return text.combine_chunks() if isinstance(text, pa.ChunkedArray) else text


def harmless(
    columns: Sequence[Column], names: Sequence[str], findings: Sequence[Finding]
) -> list[Column]:
    """The columns with 0 where their names have findings; only columns with some are copied."""
    clean, owned = list(columns), set[int]()
    for finding in findings:
        for i in [i for i, name in enumerate(names) if name == finding.column]:
            if i not in owned:
                clean[i] = clean[i].copy()
                owned.add(i)
            clean[i][finding.rows] = 0
    return clean


def findings_to_ipc(findings: Sequence[Finding]) -> bytes:
    """The findings as a compressed Arrow stream: a batch each, their names in its metadata."""
    names = json.dumps([(finding.column, finding.reason) for finding in findings])
    schema = FINDING_SCHEMA.with_metadata({FINDINGS: names})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, schema, options=options) as stream:
        for finding in findings:
            columns = [pa.array(finding.rows, pa.int64()), finding.values]
            stream.write_batch(pa.record_batch(columns, schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def findings_from_ipc(data: bytes) -> list[Finding]:
    """The findings that `findings_to_ipc` wrote."""
    with pa.ipc.open_stream(data) as stream:
        names = json.loads(stream.schema.metadata[FINDINGS])
        return [
            Finding(column, batch.column("row").to_numpy(), reason, batch.column("value"))
            for (column, reason), batch in zip(names, stream, strict=True)
        ]


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
