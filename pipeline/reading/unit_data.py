"""What reading a unit gives: `UnitColumns`, decoded, or `UnitPages`, for a GPU to decode.

F fields, N dense features, B samples (rows of the unit, in the order of the file).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from dpiframe_core import _core
from pipeline.reading.bad_rows import Column, Dense, Finding, Ids


class ReadFacts(NamedTuple):
    """Rows of each row group of the unit, seconds of work, and what decoded it."""

    group_rows: list[int]
    read_s: float
    encode_s: float
    read_by: Literal["gpu", "cpu", "arrow"]


class UnitPages(NamedTuple):
    """A unit without bad rows whose ids [F, B] are still pages of the file, which lie in `memory`.

    `dense` [N, B] float32; `published`: the key and carried columns.
    """

    facts: ReadFacts
    ids: _core.ColumnPages
    memory: np.ndarray
    dense: np.ndarray
    published: pa.Table


@dataclass(frozen=True)
class UnitColumns:
    """A decoded unit.

    `id_names` [F] are the input's names of `ids` [F] of [B] (int32, int64 or uint64); `dense` [N]
    of [B]. The rows of `findings` must not be scored; their nulls and their dense values that are
    not finite are 0 here. Ids may lie outside their tables: the engine finds that.
    """

    facts: ReadFacts
    id_names: Sequence[str]
    ids: list[Ids]
    dense: list[Dense]
    published: pa.Table
    findings: list[Finding]


def as_matrix(columns: list[Column]) -> list[Column] | np.ndarray:
    """A view of the columns as one matrix, if they have one type and lie at one stride in memory.

    A GPU copies the rows of a matrix by itself. The columns may be separate allocations: the view
    keeps only the first of them alive, the caller must keep the others.
    """
    first = columns[0] if columns else None
    if first is None or any(column.dtype != first.dtype for column in columns):
        return columns
    addresses = [column.ctypes.data for column in columns]
    strides = {b - a for a, b in itertools.pairwise(addresses)} or {first.nbytes}
    if len(strides) > 1 or min(strides) < first.nbytes:
        return columns
    shape, steps = (len(columns), len(first)), (strides.pop(), first.itemsize)
    return np.lib.stride_tricks.as_strided(first, shape, steps, writeable=False)
