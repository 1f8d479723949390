"""Encoded columns of every type as the engine takes them: ids, dense features, lists of either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dpiframe_core.features.lists import pad_lists, split_lists
from dpiframe_core.features.numbers import as_reals, whole_numbers
from pipeline.planning.columns import Columns, ListColumn, element_type
from pipeline.reading.arrow_file import one_chunk, published_array
from pipeline.reading.bad_rows import Dense, Finding, Ids, null_findings, values_as_text


class EncodedColumns(NamedTuple):
    """Ids [F] of [B] and dense features [N] of [B], their names in findings, and the nulls found,
    which are 0 here.
    """

    id_names: Sequence[str]
    ids: list[Ids]
    dense_names: Sequence[str]
    dense: list[Dense]
    findings: list[Finding]


def encoded_columns(table: pa.Table, columns: Columns) -> EncodedColumns:
    """The features of a table with B rows."""
    id_names, dense_names = columns.element_names()
    stored = {name: published_array(table.column(name)) for name in columns.scalar_ids}
    whole = {name: whole_numbers(ids) for name, ids in stored.items()}
    scalar_ids = {name: as_ids(found.integers) for name, found in whole.items()}
    scalar_dense = {name: as_dense(table.column(name)) for name in columns.scalar_dense}
    # Those of lists follow.
    ids: list[Any] = [scalar_ids.get(name) for name in columns.id_columns]
    dense: list[Any] = [scalar_dense.get(name) for name in columns.dense_columns]
    findings = [
        *null_findings(table, columns.scalar_ids, "id"),
        *null_findings(table, columns.scalar_dense, "dense value"),
        *(
            Finding(name, rows, "id is no whole number", values_as_text(stored[name], rows))
            for name, (_, rows) in whole.items()
            if len(rows)
        ),
    ]
    for each in columns.lists:
        matrix, nulls = list_elements(table.column(each.column), each)
        found = dense if each.dense else ids
        for place, elements in zip(each.places, matrix, strict=True):
            found[place] = elements
        if len(nulls):
            findings.append(
                Finding(each.column, nulls, "null in a list", pa.nulls(len(nulls), pa.string()))
            )
    return EncodedColumns(id_names, ids, dense_names, dense, findings)


def list_elements(column: pa.ChunkedArray, like: ListColumn) -> tuple[np.ndarray, np.ndarray]:
    """The elements of lists as a padded matrix [length, B], 0 for a null element, and the rows [R]
    that have one.
    """
    found = one_chunk(column)
    if pa.types.is_null(element_type(found.type)):  # each list is empty, null or of nulls
        found = found.cast(pa.list_(pa.int32()))
    lists = split_lists(found)
    values = as_dense(lists.values) if like.dense else as_ids(lists.values)
    matrix = np.empty((len(like.places), len(column)), values.dtype)
    pad_lists(lists, values, like.shape, like.pad, matrix)
    if not lists.values.null_count:
        return matrix, np.empty(0, np.int64)
    absent = np.empty(matrix.shape, bool)
    nulls = lists.values.is_null().to_numpy(zero_copy_only=False)
    pad_lists(lists, nulls, like.shape, False, absent)
    return matrix, np.flatnonzero(absent.any(axis=0)).astype(np.int64)


def as_ids(column: pa.ChunkedArray | pa.Array) -> Ids:
    """Integers as int32, int64 or uint64 [n], without a copy if they have that type and no nulls;
    nulls become 0.
    """
    values = without_nulls(published_array(column))
    if values.dtype.itemsize < 4:
        return values.astype(np.int32)
    return values.astype(np.int64) if values.dtype == np.uint32 else values


def as_dense(column: pa.ChunkedArray | pa.Array) -> Dense:
    """Numbers of any type as float32 [n], without a copy if they are that; nulls become 0."""
    values = without_nulls(as_reals(published_array(column)))
    with np.errstate(over="ignore"):  # a value beyond float32 becomes infinite, which is a finding
        return values.astype(np.float32, copy=False)


def without_nulls(array: pa.Array) -> np.ndarray:
    """The numbers of an array, 0 for null."""
    filled = array.fill_null(0) if array.null_count else array
    numbers: np.ndarray = filled.to_numpy(zero_copy_only=True)
    return numbers
