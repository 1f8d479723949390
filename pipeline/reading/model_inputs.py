"""From the columns of a unit as read to those of the engine: ids [F] of [B], dense [N] of [B].

Encoded columns are handed on without a copy where their type allows; raw columns go through the
bundle's feature schema. Bad rows are found here and made harmless, they never reach a table: all
but ids outside their tables, which the engine finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from dpiframe_core.features.encoder import Encoder
from pipeline.planning.columns import Columns
from pipeline.reading.bad_rows import (
    Dense,
    Finding,
    dense_findings,
    harmless,
    null_findings,
)
from pipeline.reading.unit_block import NamedArray, one_chunk


@dataclass(frozen=True)
class ModelInputs:
    """What the engine reads, without nulls, and the findings about rows that must not be scored.

    `ids` [F] of [B] int32 or int64 (or uint64, read as int64), `dense` [N] of [B] float32.
    """

    ids: list[NamedArray]
    dense: list[NamedArray]
    findings: list[Finding]


def encoded_inputs(
    table: pa.Table,
    key_columns: Sequence[str],
    id_columns: Sequence[str],
    dense_columns: Sequence[str],
) -> ModelInputs:
    """Inputs from columns that hold ids and dense features already."""
    findings = [
        *null_findings(table, key_columns, "key"),
        *null_findings(table, id_columns, "id"),
        *null_findings(table, dense_columns, "dense value"),
    ]
    ids = [id_array(table.column(name)) for name in id_columns]
    dense = [dense_array(table.column(name)) for name in dense_columns]
    return with_dense(
        table, list(zip(id_columns, ids, strict=True)), dense_columns, dense, findings
    )


def number_inputs(
    published: pa.Table, columns: Columns, ids: np.ndarray, dense: np.ndarray
) -> ModelInputs:
    """Inputs that were read as numbers: ids [F, B], dense [N, B], none of them null."""
    findings = list(null_findings(published, columns.key_columns, "key"))
    id_arrays = [(name, pa.array(row)) for name, row in zip(columns.id_columns, ids, strict=True)]
    values = pa.table([pa.array(row) for row in dense], names=list(columns.dense_columns))
    return with_dense(values, id_arrays, columns.dense_columns, list(dense), findings)


def raw_inputs(table: pa.Table, key_columns: Sequence[str], encoder: Encoder) -> ModelInputs:
    """Inputs from columns as published, encoded by the schema; nulls are a value of their own."""
    encoded = encoder.encode(table)
    findings = list(null_findings(table, key_columns, "key"))
    names = [field.name for field in encoder.schema.fields]
    ids = [(name, pa.array(column)) for name, column in zip(names, encoded.ids, strict=True)]
    dense_columns = [dense.column for dense in encoder.schema.dense]
    return with_dense(table, ids, dense_columns, encoded.dense, findings)


def with_dense(
    table: pa.Table,
    ids: list[NamedArray],
    names: Sequence[str],
    dense: Sequence[Dense],
    findings: list[Finding],
) -> ModelInputs:
    """Add the dense features and the findings about them."""
    findings += dense_findings(table, names, dense)
    clean = harmless(dense, names, findings)
    columns = [(name, pa.array(column)) for name, column in zip(names, clean, strict=True)]
    return ModelInputs(ids, columns, findings)


def id_array(column: pa.ChunkedArray) -> pa.Array:
    """An integer column as int32, int64 or uint64 [B]: the buffer itself where it has that type.

    Nulls become 0; there is no validity bitmap.
    """
    array = one_chunk(column)
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        array = array.fill_null(0)
    values = array.to_numpy(zero_copy_only=True)
    if values.dtype.itemsize < 4:
        values = values.astype(np.int32)
    elif values.dtype == np.uint32:
        values = values.astype(np.int64)
    return pa.array(values)


def dense_array(column: pa.ChunkedArray) -> Dense:
    """A numeric column as float32 [B]: the buffer itself where it has that type; nulls become 0."""
    array = one_chunk(column)
    if array.null_count:
        array = array.fill_null(0)
    values: Dense = array.to_numpy(zero_copy_only=True)
    if values.dtype == np.float32:
        return values
    with np.errstate(over="ignore"):  # a value beyond float32 becomes infinite, which is reported
        return values.astype(np.float32)
