"""Slices: the rows of each value of some columns, evaluated apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ConfigError
from pipeline.evaluation.ranking import Packed
from pipeline.evaluation.score_counts import COARSE, ScoreCounts
from pipeline.evaluation.sums import Sums, figures_of, sums_of_runs

MAX_SLICES = 1000  # of one slicing
NULL = "null"
MOST_NUMBERS = 1 << 32

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

    def look(self, codes: dict[str, Codes], rows: Packed) -> list[SlicedRows]:
        """Part packed rows [B] by the codes [B] of the columns; changes nothing."""
        number, texts = combine([codes[name] for name in self.columns])
        # Sorted by slice and score at once: plain numbers are sorted fastest, and runs of a slice
        # are summed without holding up other threads.
        keyed = (number.astype(np.uint64) << np.uint64(32)) | rows
        keyed.sort()
        parted, of = keyed.astype(np.uint32), (keyed >> np.uint64(32)).astype(np.uint32)
        starts = np.flatnonzero(np.r_[True, of[1:] != of[:-1]])[: len(of)]
        sums = sums_of_runs(figures_of(parted), starts)
        runs = pairwise([*starts.tolist(), len(of)])
        return [
            SlicedRows(texts(one), parted[first:stop].copy(), summed)
            for one, (first, stop), summed in zip(of[starts].tolist(), runs, sums, strict=True)
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
    coded = _with_kernels(column).combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    number = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return Codes(
        number, [NULL if text is None else text for text in _texts(coded.dictionary, column.type)]
    )


def _with_kernels(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same values in a type that Arrow encodes by a dictionary."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _with_kernels(column.cast(kind.value_type))
    if isinstance(kind, pa.BaseExtensionType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], kind.storage_type)
    if pa.types.is_float16(kind):
        return column.cast(pa.float32())
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        return column.cast(pa.decimal128(kind.precision, kind.scale))
    return column


def _texts(values: pa.Array, kind: pa.DataType) -> list[str | None]:
    """Values as people read them, bytes that are not all UTF-8 in hexadecimal; `kind`: the column's
    type.
    """
    if kind == pa.uuid():
        return [value and str(UUID(bytes=value)) for value in values.to_pylist()]
    try:
        texts: list[str | None] = pc.cast(values, pa.string()).to_pylist()
    except pa.ArrowInvalid:
        texts = [value if value is None else value.hex() for value in values.to_pylist()]
    return texts


def combine(
    codes: Sequence[Codes],
) -> tuple[npt.NDArray[np.int64], Callable[[int], Values]]:
    """A number below 2^32 for each row's values of all columns, and the texts of a number."""
    number, sizes = codes[0].number, [len(code.text) for code in codes]
    for code, size in zip(codes[1:], sizes[1:], strict=True):
        number = number * size + code.number
    distinct = None
    if math.prod(sizes) > MOST_NUMBERS:
        distinct, number = np.unique(number, return_inverse=True)

    def texts(one: int) -> Values:
        left, found = one if distinct is None else int(distinct[one]), []
        for code, size in zip(reversed(codes), reversed(sizes), strict=True):
            left, place = divmod(left, size)
            found.append(code.text[place])
        return tuple(reversed(found))

    return number, texts
