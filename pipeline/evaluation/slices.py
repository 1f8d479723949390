"""Slices: the rows of each value of some columns, evaluated apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ConfigError
from pipeline.evaluation.ranking import Packed
from pipeline.evaluation.score_counts import COARSE, ScoreCounts
from pipeline.evaluation.sums import RowFigures, Sums, sums_by_number

MAX_SLICES = 1000  # of one slicing
NULL = "null"
MOST_COUNTED = 1 << 22  # values of a pair that a table of numbers may have

Values = tuple[str, ...]


def slicings(columns: Sequence[str], pairs: bool) -> list[Values]:
    """The columns of each slicing."""
    single: list[Values] = [(name,) for name in columns]
    return single + (list(combinations(columns, 2)) if pairs else [])


class Slice(NamedTuple):
    """What the rows of one slice sum to, and their scores."""

    sums: Sums
    scores: ScoreCounts


class SlicedRows(NamedTuple):
    """Rows of one table that are in one slice."""

    values: Values
    rows: Packed
    sums: Sums


class Slicing:
    """The slices by one column, or by a pair of columns; `slices`: by their values."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self.slices: dict[Values, Slice] = {}

    def look(self, codes: dict[str, Codes], rows: Packed, figures: RowFigures) -> list[SlicedRows]:
        """Part packed rows [B] by the codes [B] of the columns; changes nothing."""
        number, values = combine([codes[name] for name in self.columns])
        # Sorted by slice and score at once: plain numbers are sorted and counted fastest.
        keyed = (number.astype(np.uint64) << np.uint64(32)) | rows
        keyed.sort()
        parted = keyed.astype(np.uint32)
        sums = sums_by_number(figures, number, len(values))
        starts = np.cumsum([0, *(one.rows for one in sums)]).tolist()
        ranges = zip(values, starts[:-1], starts[1:], sums, strict=True)
        return [
            SlicedRows(value, parted[first:stop].copy(), one)
            for value, first, stop, one in ranges
            if first < stop
        ]

    def add(self, found: list[SlicedRows]) -> None:
        """Count what `look` found; one caller at a time."""
        for one in found:
            scores = self._add(one.values, one.sums)
            scores.add(one.rows)

    def merge(self, values: Values, other: Slice) -> None:
        """Count another slice's rows as rows of these values."""
        self._add(values, other.sums).merge(other.scores)

    def by_column(self, column: str) -> Slicing:
        """The slices by one of the columns."""
        place, found = self.columns.index(column), Slicing([column])
        for values, one in self.slices.items():
            found.merge((values[place],), one)
        return found

    def largest_first(self) -> list[tuple[Values, Slice]]:
        """All slices, those of the most rows first."""
        return sorted(self.slices.items(), key=lambda one: (-one[1].sums.rows, one[0]))

    def _add(self, values: Values, sums: Sums) -> ScoreCounts:
        known = self.slices.get(values)
        if known is None:
            self._check_room()
            known = Slice(Sums(), ScoreCounts(COARSE))
        self.slices[values] = Slice(known.sums.plus(sums), known.scores)
        return known.scores

    def _check_room(self) -> None:
        if len(self.slices) >= MAX_SLICES:
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


def combine(codes: Sequence[Codes]) -> tuple[npt.NDArray[np.int64], list[Values]]:
    """One number a row for the values of all columns, and the values of each number."""
    number = codes[0].number
    values: list[Values] = [(text,) for text in codes[0].text]
    for code in codes[1:]:
        distinct, number = _numbered(
            number * len(code.text) + code.number, len(values) * len(code.text)
        )
        values = [
            (*values[one // len(code.text)], code.text[one % len(code.text)])
            for one in distinct.tolist()
        ]
    return number, values


def _numbered(
    wide: npt.NDArray[np.int64], most: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The distinct numbers below `most`, and the place of each row's among them."""
    if most > MOST_COUNTED:
        distinct, number = np.unique(wide, return_inverse=True)
        return distinct, number
    distinct = np.flatnonzero(np.bincount(wide, minlength=most))
    place = np.empty(most, np.int64)
    place[distinct] = np.arange(len(distinct))
    return distinct, place[wide]
