"""Sums over rows with labels, from which losses and calibration follow."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# Probabilities are clipped to CLIP .. 1 - CLIP before logarithms are taken of them.
CLIP = 1e-7


class Sums(NamedTuple):
    """Of some rows, in float64: counts, and sums of score, -log likelihood and squared error."""

    rows: int = 0
    clicks: int = 0
    score: float = 0.0
    loss: float = 0.0
    squared: float = 0.0


def sums_of(scores: npt.NDArray[np.float32], labels: npt.NDArray[np.bool_]) -> Sums:
    """Sums of probabilities [B] against labels [B]."""
    p = scores.astype(np.float64)
    likelihood = np.where(labels, p, 1 - p)
    np.clip(likelihood, CLIP, 1 - CLIP, out=likelihood)
    return Sums(
        rows=len(p),
        clicks=int(np.count_nonzero(labels)),
        score=float(p.sum()),
        loss=-float(np.log(likelihood).sum()),
        squared=float(np.square(p - labels).sum()),
    )


def total(parts: Iterable[Sums]) -> Sums:
    """The sum of sums, rounded once, whatever their order."""
    rows, clicks, *floats = zip(*parts, strict=True) if (parts := list(parts)) else ((),) * 5
    score, loss, squared = (math.fsum(values) for values in floats)
    return Sums(sum(rows), sum(clicks), score, loss, squared)


def logloss(sums: Sums) -> float | None:
    """Mean negative log likelihood; None without rows."""
    return sums.loss / sums.rows if sums.rows else None


def normalised_entropy(sums: Sums) -> float | None:
    """Logloss over that of always saying the mean label; None without rows of both classes."""
    if not 0 < sums.clicks < sums.rows:
        return None
    rate = sums.clicks / sums.rows
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))
    return sums.loss / sums.rows / entropy


def calibration(sums: Sums) -> float | None:
    """Mean score over mean label: 1 is calibrated, above it scores are too high."""
    return sums.score / sums.clicks if sums.clicks else None
