"""From a unit's Arrow table to the arrays of the engine: ids [F] of [B], dense [N] of [B].

Encoded columns are handed on without a copy where their type allows; raw columns go through the
bundle's feature schema. Bad rows are found here and made harmless, they never reach a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from dpiframe_core.features.encoder import Encoder
from pipeline.scoring.bad_rows import (
    Dense,
    Finding,
    Ids,
    dense_findings,
    id_findings,
    null_findings,
)


@dataclass(frozen=True)
class ModelInputs:
    """What the engine reads, and the findings about rows that must not be scored."""

    ids: list[Ids]
    dense: list[Dense]
    findings: list[Finding]


class InputReader(Protocol):
    """Turns the table of a unit into model inputs."""

    def __call__(self, table: pa.Table) -> ModelInputs:
        """Read a table with one chunk a column."""


@dataclass(frozen=True)
class EncodedReader:
    """Columns that hold ids and float features already.

    `id_columns` [F] with `table_rows` [F]; with `check_ranges` an id outside its table makes a
    bad row, else the engine decides.
    """

    key_columns: Sequence[str]
    id_columns: Sequence[str]
    dense_columns: Sequence[str]
    table_rows: Sequence[int]
    check_ranges: bool

    def __call__(self, table: pa.Table) -> ModelInputs:
        """Read ids and dense features straight from the Arrow buffers."""
        findings = [
            *null_findings(table, self.key_columns, "key"),
            *null_findings(table, self.id_columns, "id"),
            *null_findings(table, self.dense_columns, "dense value"),
        ]
        ids = [id_array(table.column(name)) for name in self.id_columns]
        dense = [dense_array(table.column(name)) for name in self.dense_columns]
        if self.check_ranges:
            findings += id_findings(table, self.id_columns, ids, self.table_rows)
        findings += dense_findings(table, self.dense_columns, dense)
        return harmless(ModelInputs(ids, dense, findings), self.id_columns, self.dense_columns)


@dataclass(frozen=True)
class RawReader:
    """Columns as published, encoded by the bundle's schema; nulls are a value of their own."""

    key_columns: Sequence[str]
    dense_columns: Sequence[str]
    encoder: Encoder

    def __call__(self, table: pa.Table) -> ModelInputs:
        """Encode the raw columns."""
        encoded = self.encoder.encode(table)
        dense = list(encoded.dense)
        findings = [
            *null_findings(table, self.key_columns, "key"),
            *dense_findings(table, self.dense_columns, dense),
        ]
        return harmless(ModelInputs(list(encoded.ids), dense, findings), [], self.dense_columns)


def harmless(
    inputs: ModelInputs, id_columns: Sequence[str], dense_columns: Sequence[str]
) -> ModelInputs:
    """Put id 0 and value 0 where findings are, so that the engine can score whole columns."""
    for finding in inputs.findings:
        for f, name in enumerate(id_columns):
            if name == finding.column:
                inputs.ids[f] = inputs.ids[f].copy()
                inputs.ids[f][finding.rows] = 0
        for n, name in enumerate(dense_columns):
            if name == finding.column:
                inputs.dense[n] = inputs.dense[n].copy()
                inputs.dense[n][finding.rows] = 0
    return inputs


def id_array(column: pa.ChunkedArray) -> Ids:
    """An integer column as int32 or int64 [B]: the buffer itself where it has that type.

    Nulls become 0; a uint64 beyond int64 becomes negative, which is outside every table.
    """
    array = only_chunk(column)
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        array = array.fill_null(0)
    if pt.is_int32(array.type) or pt.is_int64(array.type):
        ids: Ids = array.to_numpy(zero_copy_only=True)
        return ids
    values = array.to_numpy(zero_copy_only=True)
    widened: Ids = values.astype(np.int32 if values.dtype.itemsize < 4 else np.int64)
    return widened


def dense_array(column: pa.ChunkedArray) -> Dense:
    """A numeric column as float32 [B]: the buffer itself where it has that type; nulls become 0."""
    array = only_chunk(column)
    if array.null_count:
        array = array.fill_null(0)
    values: Dense = array.to_numpy(zero_copy_only=True)
    if values.dtype == np.float32:
        return values
    with np.errstate(over="ignore"):  # a value beyond float32 becomes infinite, which is reported
        return values.astype(np.float32)


def only_chunk(column: pa.ChunkedArray) -> pa.Array:
    """The one chunk of a column; joins them if something cut it."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
