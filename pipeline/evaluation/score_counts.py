"""ScoreCounts: the scores of clicks and of other rows, in bounded memory, in any order.

Up to a number of rows they are kept as they are; beyond, they are counted in bins of like scores,
and what follows from them has an error that is stated.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.evaluation.ranking import (
    ONE,
    CountedAuc,
    Counts,
    Packed,
    counted_auc,
)


class Resolution(NamedTuple):
    """Rows that are kept as they are, and the low bits of a score that a bin leaves out."""

    exact_rows: int
    shift: int

    @property
    def octave(self) -> int:
        """Bins an octave."""
        return 1 << (23 - self.shift)


# Bins are held from the octave of the lowest score on to that of the highest.
FINE = Resolution(1 << 23, 8)  # 2^15 bins an octave: 0.5 MB each
COARSE = Resolution(1 << 14, 15)  # 2^8 bins an octave: 4 KB each


class ReliabilityBin(NamedTuple):
    """Rows of neighbouring scores: how many, their mean score and their share of clicks."""

    rows: int
    mean_score: float
    click_rate: float


class ScoreCounts:
    """Scores and labels of rows. The order of `add` changes nothing."""

    def __init__(self, resolution: Resolution = FINE) -> None:
        self.resolution = resolution
        self.rows = 0
        self._kept: list[Packed] = []
        self._held = 0
        self._first = 0  # bin of the first row of:
        self._counts: Counts | None = None  # [bins, 2]: other rows, clicks

    def add(self, rows: Packed) -> None:
        """Count packed rows."""
        self.rows += len(rows)
        self._kept.append(rows)
        self._held += len(rows)
        if self._held > self.resolution.exact_rows:
            self.count_kept()

    def merge(self, other: ScoreCounts) -> None:
        """Count the rows of another one, of the same resolution."""
        if other._counts is not None:
            self.count_kept()
            counts = self._room(other._first, other._first + len(other._counts))
            begin = other._first - self._first
            counts[begin : begin + len(other._counts)] += other._counts
            self.rows += other.rows - other._held
        if other._held:
            self.add(other._all())

    def add_counted(self, exact: bool, index: Packed, clicks: Counts, rows: Counts) -> None:
        """Count what `counted` of another one gave."""
        if exact:
            both = np.stack([rows - clicks, clicks], axis=1).ravel()
            bits = index << np.uint32(1)
            packed = np.stack([bits, bits | np.uint32(1)], axis=1).ravel()
            self.add(np.repeat(packed, both))
            return
        self.count_kept()
        counts = self._room_for(index)
        counts[index - self._first, 0] += rows - clicks
        counts[index - self._first, 1] += clicks
        self.rows += int(rows.sum())

    def counted(self) -> tuple[bool, Packed, Counts, Counts]:
        """Whether rows are kept as they are; the bits of distinct scores, or the numbers of bins,
        in ascending order; clicks and rows of each.
        """
        if self._counts is None:
            rows = np.sort(self._all())
            bits = rows >> np.uint32(1)
            starts = np.flatnonzero(np.r_[True, bits[1:] != bits[:-1]])[: len(bits)]
            if not len(bits):
                return True, bits, np.empty(0, np.int64), np.empty(0, np.int64)
            clicks = np.add.reduceat((rows & np.uint32(1)).astype(np.int64), starts)
            return True, bits[starts], clicks, np.diff(np.r_[starts, len(bits)])
        self.count_kept()
        all_rows = self._counts[:, 0] + self._counts[:, 1]
        some = np.flatnonzero(all_rows)
        index = (some + self._first).astype(np.uint32)
        return False, index, self._counts[some, 1], all_rows[some]

    def auc(self) -> CountedAuc | None:
        """The AUC, exact (error 0) while rows are kept; None if a class is absent."""
        _, clicks, rows = self.by_score()
        found = counted_auc(clicks, rows - clicks)
        # Rows of one score are ties, so that only bins of several scores leave an error.
        return found if found is None or self._counts is not None else found._replace(error=0.0)

    def reliability(self, bins: int = 20) -> list[ReliabilityBin]:
        """About `bins` bins of as many rows each, in ascending order of score.

        Rows of one score are never apart; where rows are in bins, scores count as their middles.
        """
        scores, clicks, rows = self.by_score()
        if not len(rows):
            return []
        position = np.minimum((np.cumsum(rows) - rows) * bins // rows.sum(), bins - 1)
        starts = np.flatnonzero(np.r_[True, position[1:] != position[:-1]])
        in_bin = np.add.reduceat(rows, starts)
        means = np.add.reduceat(scores * rows, starts) / in_bin
        rates = np.add.reduceat(clicks, starts) / in_bin
        found = zip(in_bin.tolist(), means.tolist(), rates.tolist(), strict=True)
        return [ReliabilityBin(*one) for one in found]

    def by_score(self) -> tuple[np.ndarray, Counts, Counts]:
        """Distinct scores (middles of bins) in ascending order, clicks and rows of each."""
        exact, index, clicks, rows = self.counted()
        if exact:
            return index.view(np.float32).astype(np.float64), clicks, rows
        shift = self.resolution.shift
        middle = (index << np.uint32(shift)) + np.uint32(1 << (shift - 1))
        scores = np.minimum(middle, ONE).astype(np.uint32).view(np.float32).astype(np.float64)
        return scores, clicks, rows

    def _all(self) -> Packed:
        return np.concatenate(self._kept) if self._kept else np.empty(0, np.uint32)

    def shrink(self) -> None:
        """Leave no rows beside bins."""
        if self._counts is not None:
            self.count_kept()

    def count_kept(self) -> None:
        """Count what is kept in the bins: many rows at once, as each call reads all bins."""
        if self._counts is not None and not self._held:
            return
        rows = self._all()
        self._kept, self._held = [], 0
        index = rows >> np.uint32(self.resolution.shift + 1)
        counts = self._room_for(index)
        place = ((index - np.uint32(self._first)) << np.uint32(1)) | (rows & np.uint32(1))
        counts += np.bincount(place, minlength=counts.size).reshape(counts.shape)

    def _room_for(self, index: Packed) -> Counts:
        """The counts, with these bins."""
        if len(index):
            return self._room(int(index.min()), int(index.max()) + 1)
        return self._room(self._first, self._first)

    def _room(self, first: int, stop: int) -> Counts:
        """The counts, with the octaves of the bins from `first` to `stop`."""
        octave = self.resolution.octave
        first, stop = first // octave * octave, -(-stop // octave) * octave
        if self._counts is None:
            self._first = first
            self._counts = np.zeros((0, 2), np.int64)
        last = self._first + len(self._counts)
        more = max(self._first - first, 0), max(stop - last, 0)
        if any(more):
            self._counts = np.pad(self._counts, (more, (0, 0)))
            self._first = min(first, self._first)
        return self._counts


def expected_calibration_error(curve: list[ReliabilityBin]) -> float | None:
    """Mean distance of click rate and mean score over the bins, weighted by rows."""
    rows = sum(one.rows for one in curve)
    if not rows:
        return None
    return sum(one.rows * abs(one.mean_score - one.click_rate) for one in curve) / rows
