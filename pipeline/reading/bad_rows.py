"""Rows that break the contract, found by whole columns.

A check yields `Finding`s: a column, the rows in which it is bad, and why. The first finding of a
row, in the order of the checks, is the one reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpiframe_core import _core
from dpiframe_core.features.schema import is_text
from dpiframe_core.model.fields import FieldSpec
from pipeline.planning.columns import Columns
from pipeline.planning.partitions import differs, partition_folder
from pipeline.planning.units import Unit

Rows = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32] | npt.NDArray[np.int64] | npt.NDArray[np.uint64]
Dense = npt.NDArray[np.float32]
Column = TypeVar("Column", Ids, Dense)


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


def published_findings(unit: Unit, columns: Columns, published: pa.Table) -> Iterator[Finding]:
    """Findings for null keys, and for values that are not those of the folders' names."""
    yield from null_findings(published, columns.key_columns, "key")
    for name in columns.held:
        said, column = unit.partitions.get(name), published.column(name)
        if said is None or not _has_one_text(column.type):
            continue
        values = column.cast(pa.large_string()) if is_text(column.type) else column
        others = [value for value in values.unique().to_pylist() if differs(value, said)]
        if others:
            bad = pc.is_in(values, value_set=pa.array(others, values.type))
            rows = np.flatnonzero(bad.to_numpy()).astype(np.int64)
            reason = f"its folder's name says {partition_folder({name: said})}"
            yield Finding(name, rows, reason, values_as_text(values, rows))


def _has_one_text(kind: pa.DataType) -> bool:
    """Whether a folder's name can say a value of this type in one way, but for leading zeros."""
    of_one = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_date, is_text)
    return any(is_of(kind) for is_of in of_one)


def id_findings(
    names: Sequence[str], ids: Sequence[Ids], fields: Sequence[FieldSpec]
) -> Iterator[Finding]:
    """Findings for ids [F] of [B] that are none of their fields'."""
    signed = [as_signed(column) for column in ids]
    repeat = any(field.period is not None for field in fields)
    inside = _core.rows_of_ids(signed, [f.id_range for f in fields]) if repeat else signed
    _, counts = _core.find_bad_ids(inside, [field.rows for field in fields])
    for f in np.flatnonzero(counts).tolist():
        rows = np.flatnonzero((inside[f] < 0) | (inside[f] >= fields[f].rows)).astype(np.int64)
        reason = f"id outside its table of {fields[f].rows} rows (valid: 0 to {fields[f].end - 1})"
        yield Finding(names[f], rows, reason, values_as_text(pa.array(ids[f]), rows))


def dense_findings(
    names: Sequence[str], dense: Sequence[Dense], source: pa.Table | None = None
) -> Iterator[Finding]:
    """Findings for dense values [N] of [B] that are not finite; `source` has the columns of these
    names as in the file, where its types may be others. It has no elements of lists.
    """
    known = {} if source is None else {name: source.column(name) for name in source.column_names}
    for name, values in zip(names, dense, strict=True):
        finite = np.isfinite(values)
        if not finite.all():
            rows = np.flatnonzero(~finite).astype(np.int64)
            column = known[name] if name in known else pa.array(values)
            yield Finding(name, rows, "dense value is not finite", values_as_text(column, rows))


def as_signed(ids: Ids) -> npt.NDArray[np.int32] | npt.NDArray[np.int64]:
    """Ids as the engine takes them: uint64 beyond int64 becomes negative, outside every table but
    those of which all ids repeat.
    """
    return ids.view(np.int64) if ids.dtype == np.uint64 else ids  # type: ignore[return-value]


def values_as_text(column: pa.Array | pa.ChunkedArray, rows: Rows) -> pa.Array:
    """The values of a column in some rows, as strings [R]."""
    text = column.take(pa.array(rows)).cast(pa.string())
    return text.combine_chunks() if isinstance(text, pa.ChunkedArray) else text


def zeroed(
    columns: Sequence[Column], names: Sequence[str], findings: Sequence[Finding]
) -> list[Column]:
    """The columns with 0 in the rows of their findings; only columns with findings are copied."""
    clean, owned = list(columns), set[int]()
    for finding in findings:
        for i in [i for i, name in enumerate(names) if name == finding.column]:
            if i not in owned:
                clean[i] = clean[i].copy()
                owned.add(i)
            clean[i][finding.rows] = 0
    return clean
