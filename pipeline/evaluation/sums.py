"""Sums over rows with labels, from which losses and calibration follow."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.evaluation.ranking import Packed, unpack

# Probabilities are clipped to CLIP .. 1 - CLIP before logarithms are taken of them.
CLIP = 1e-7
BITS = 80  # sums of floats are kept in units of 2^-80


class Sums(NamedTuple):
    """Of some rows: counts, and sums of score, -log likelihood and squared error.

    The last three are whole numbers of 2^-80, so that their order does not change a sum of sums.
    """

    rows: int = 0
    clicks: int = 0
    score: int = 0
    loss: int = 0
    squared: int = 0

    def plus(self, other: Sums) -> Sums:
        """The sums of both."""
        return Sums(*(a + b for a, b in zip(self, other, strict=True)))


class RowFigures(NamedTuple):
    """What is summed, of each row, in float64 [B]; `clicked`: positions of the clicks."""

    clicked: npt.NDArray[np.intp]
    score: npt.NDArray[np.float64]
    loss: npt.NDArray[np.float64]
    squared: npt.NDArray[np.float64]


def figures_of(rows: Packed) -> RowFigures:
    """The figures of packed rows [B]."""
    scores, labels = unpack(rows)
    p = scores.astype(np.float64)
    loss = np.where(labels, p, 1 - p)
    np.clip(loss, CLIP, 1 - CLIP, out=loss)
    np.negative(np.log(loss, out=loss), out=loss)
    squared = p - labels
    np.square(squared, out=squared)
    return RowFigures(np.flatnonzero(labels), p, loss, squared)


def sums_of(figures: RowFigures) -> Sums:
    """The sums of all rows."""
    floats = (float(one.sum()) for one in figures[1:])
    return Sums(len(figures.score), len(figures.clicked), *map(_whole, floats))


def sums_of_runs(figures: RowFigures, starts: npt.NDArray[np.integer]) -> list[Sums]:
    """The sums of runs of rows, each of which ends where the next one starts."""
    if not len(starts):
        return []
    rows = np.diff(np.r_[starts, len(figures.score)]).tolist()
    clicks = np.diff(np.searchsorted(figures.clicked, np.r_[starts, len(figures.score)])).tolist()
    floats = [np.add.reduceat(one, starts).tolist() for one in figures[1:]]
    return [
        Sums(n, c, *map(_whole, some)) for n, c, *some in zip(rows, clicks, *floats, strict=True)
    ]


def _whole(value: float) -> int:
    return int(math.ldexp(value, BITS))


def logloss(sums: Sums) -> float | None:
    """Mean negative log likelihood; None without rows."""
    return sums.loss / (sums.rows << BITS) if sums.rows else None


def brier(sums: Sums) -> float | None:
    """Mean squared error; None without rows."""
    return sums.squared / (sums.rows << BITS) if sums.rows else None


def normalised_entropy(sums: Sums) -> float | None:
    """Logloss over that of always saying the mean label; None without rows of both classes."""
    loss = logloss(sums)
    if loss is None or not 0 < sums.clicks < sums.rows:
        return None
    rate = sums.clicks / sums.rows
    return loss / -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))


def calibration(sums: Sums) -> float | None:
    """Mean score over mean label: 1 is calibrated, above it scores are too high."""
    return sums.score / (sums.clicks << BITS) if sums.clicks else None
