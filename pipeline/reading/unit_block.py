"""The form in which a unit travels from its read task to a scorer: one Arrow table.

Columns, in this order, one chunk each: ids [F] of [B] int32 or int64 ("id:<f>:<column>"), dense
features [N] of [B] float32 ("dense:<n>:<column>"), both without nulls; then the columns that are
published beside the scores ("copy:<column>"), as they are published. All else is metadata.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.planning.units import Unit
from pipeline.publishing.records import Reader, UnitError
from pipeline.reading.bad_rows import (
    Column,
    Dense,
    Finding,
    Ids,
    findings_from_ipc,
    findings_to_ipc,
)

UNIT_KEY = b"dpiframe.unit"
ERROR_KEY = b"dpiframe.error"
FACTS_KEY = b"dpiframe.facts"
FINDINGS_KEY = b"dpiframe.findings"
ID, DENSE, COPY = "id", "dense", "copy"

NamedArray = tuple[str, pa.Array]  # the name of a column of the input, values [B]


class ReadFacts(NamedTuple):
    """What reading tells of a unit: rows of each of its row groups, seconds of work, who did it."""

    group_rows: list[int]
    read_s: float
    encode_s: float
    read_by: Reader


@dataclass(frozen=True)
class UnitBlock:
    """A unit as a scorer sees it; its arrays lie in the memory of the table and are read-only.

    `ids` [F] of [B] as the engine takes them, one matrix where they lie in memory as one, and
    `dense` alike; `id_columns` [F] the ids as Arrow columns with the names of the input; `copied`
    holds the published columns; `findings` the rows not to be scored, where ids and dense values
    are 0. `table` keeps the memory of all of it.
    """

    unit: Unit
    facts: ReadFacts
    ids: Sequence[Ids] | np.ndarray
    dense: Sequence[Dense] | np.ndarray
    id_columns: list[NamedArray]
    copied: pa.Table
    findings: list[Finding]
    table: pa.Table


def make_block(
    unit: Unit,
    facts: ReadFacts,
    ids: Sequence[NamedArray],
    dense: Sequence[NamedArray],
    copied: Sequence[NamedArray],
    findings: Sequence[Finding],
) -> pa.Table:
    """The table of a unit, from arrays [B] with their column names; nothing is copied."""
    named = [(f"{ID}:{f}:{name}", array) for f, (name, array) in enumerate(ids)]
    named += [(f"{DENSE}:{n}:{name}", array) for n, (name, array) in enumerate(dense)]
    named += [(f"{COPY}:{name}", array) for name, array in copied]
    table = pa.table([array for _, array in named], names=[name for name, _ in named])
    metadata = {UNIT_KEY: unit.model_dump_json().encode(), FACTS_KEY: json.dumps(facts).encode()}
    if findings:
        metadata[FINDINGS_KEY] = findings_to_ipc(findings)
    return table.replace_schema_metadata(metadata)


def open_block(table: pa.Table) -> UnitBlock | UnitError:
    """What a read task made of a unit: its block, or why there is none."""
    metadata = table.schema.metadata
    if ERROR_KEY in metadata:
        return UnitError.model_validate_json(metadata[ERROR_KEY])
    columns: dict[str, list[NamedArray]] = {ID: [], DENSE: [], COPY: []}
    for full, column in zip(table.column_names, table.columns, strict=True):
        use, _, name = full.partition(":")
        if use != COPY:
            name = name.partition(":")[2]
        columns[use].append((name, one_chunk(column)))
    copied = columns[COPY]
    return UnitBlock(
        unit=unit_in(table),
        facts=ReadFacts(*json.loads(metadata[FACTS_KEY])),
        ids=as_matrix([as_ids(array) for _, array in columns[ID]]),
        dense=as_matrix([array.to_numpy(zero_copy_only=True) for _, array in columns[DENSE]]),
        id_columns=columns[ID],
        copied=pa.table([array for _, array in copied], names=[name for name, _ in copied]),
        findings=findings_from_ipc(metadata[FINDINGS_KEY]) if FINDINGS_KEY in metadata else [],
        table=table,
    )


def unit_in(table: pa.Table) -> Unit:
    """The unit that a block, or its failure, is of."""
    return Unit.model_validate_json(table.schema.metadata[UNIT_KEY])


def as_ids(array: pa.Array) -> Ids:
    """The numbers of an id column; a uint64 beyond int64 is negative: outside every table."""
    values: Ids = array.to_numpy(zero_copy_only=True)
    return values.view(np.int64) if values.dtype == np.uint64 else values


def as_matrix(columns: list[Column]) -> list[Column] | np.ndarray:
    """The columns as a matrix, where they are alike and lie one behind the other at one distance.

    A GPU can copy the rows of a matrix by itself. The columns may be pieces of memory of their own,
    which the matrix does not keep: whoever uses it must.
    """
    first = columns[0] if columns else None
    if first is None or any(column.dtype != first.dtype for column in columns):
        return columns
    places = [column.ctypes.data for column in columns]
    distances = {b - a for a, b in itertools.pairwise(places)} or {first.nbytes}
    if len(distances) > 1 or min(distances) < first.nbytes:
        return columns
    shape, strides = (len(columns), len(first)), (distances.pop(), first.itemsize)
    return np.lib.stride_tricks.as_strided(first, shape, strides, writeable=False)


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """The one chunk of a column; joins them if there are several."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def failed_block(unit: Unit, error: UnitError) -> pa.Table:
    """The table of a unit that cannot be scored."""
    # One row, because Ray Data drops blocks without rows.
    metadata = {UNIT_KEY: unit.model_dump_json(), ERROR_KEY: error.model_dump_json()}
    return pa.table({"failed": [True]}).replace_schema_metadata(metadata)
