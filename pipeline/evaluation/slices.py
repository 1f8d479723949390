"""Slices: the rows of each value of some columns, evaluated apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ConfigError
from pipeline.evaluation.ranking import Packed, unpack
from pipeline.evaluation.score_counts import COARSE, ScoreCounts
from pipeline.evaluation.sums import Sums, sums_of, total

MAX_SLICES = 1000  # of one slicing
NULL = "null"


class Slice(NamedTuple):
    """One slice: its values, a column each, what its rows sum to, and their scores."""

    values: tuple[str, ...]
    sums: Sums
    counts: ScoreCounts


class SlicedRows(NamedTuple):
    """Rows of one table that are in one slice."""

    values: tuple[str, ...]
    rows: Packed
    sums: Sums


class Slicing:
    """The slices by one column, or by a pair of columns."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._sums: dict[tuple[str, ...], list[Sums]] = {}
        self._counts: dict[tuple[str, ...], ScoreCounts] = {}

    def look(self, codes: dict[str, Codes], rows: Packed) -> list[SlicedRows]:
        """Part packed rows [B] by the codes [B] of the columns; changes nothing."""
        number, values = combine([codes[name] for name in self.columns])
        small = number.astype(np.uint16) if len(values) < 1 << 16 else number  # sorted by radix
        order = np.argsort(small, kind="stable")
        parted = rows[order]
        starts = np.searchsorted(number[order], np.arange(len(values) + 1))
        ranges = zip(values, starts[:-1], starts[1:], strict=True)
        found = [(value, parted[first:stop]) for value, first, stop in ranges if first < stop]
        return [SlicedRows(value, some.copy(), sums_of(*unpack(some))) for value, some in found]

    def add(self, found: list[SlicedRows]) -> None:
        """Count what `look` found; one caller at a time."""
        for one in found:
            if one.values not in self._sums:
                self._check_room()
                self._sums[one.values] = []
                self._counts[one.values] = ScoreCounts(COARSE)
            self._sums[one.values].append(one.sums)
            self._counts[one.values].add(one.rows)

    def slices(self) -> list[Slice]:
        """All slices, those of the most rows first."""
        found = [Slice(v, total(self._sums[v]), self._counts[v]) for v in self._sums]
        return sorted(found, key=lambda one: (-one.sums.rows, one.values))

    def _check_room(self) -> None:
        if len(self._sums) >= MAX_SLICES:
            names = ", ".join(self.columns)
            raise ConfigError(
                f"slices by {names}: more than {MAX_SLICES} different values; use a column with "
                "fewer, or name it as the group of the AUC by group"
            )


class Codes(NamedTuple):
    """A column as numbers [B], and the text of each number."""

    number: npt.NDArray[np.int64]
    text: list[str]


def encode(column: pa.ChunkedArray) -> Codes:
    """The values of a column as texts; a missing one is "null"."""
    coded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    texts = pc.cast(coded.dictionary, pa.string()).to_pylist()
    number = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return Codes(number, [NULL if text is None else text for text in texts])


def combine(codes: Sequence[Codes]) -> tuple[npt.NDArray[np.int64], list[tuple[str, ...]]]:
    """One number a row for the values of all columns, and the values of each number."""
    number = codes[0].number
    values: list[tuple[str, ...]] = [(text,) for text in codes[0].text]
    for code in codes[1:]:
        wide = number * len(code.text) + code.number
        distinct, number = np.unique(wide, return_inverse=True)
        values = [
            (*values[one // len(code.text)], code.text[one % len(code.text)])
            for one in distinct.tolist()
        ]
    return number, values
