"""Statistics of the scores of a unit: range, sum, and a histogram of the logits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpiframe_core import _core

# Bins: logit below -10, 200 bins of 0.1 over [-10, 10), logit 10 or more.
HISTOGRAM_BINS = 202


class ScoreStats(NamedTuple):
    """Range and sum of probabilities, logit histogram [202]; range None without scores."""

    score_min: float | None
    score_max: float | None
    score_sum: float
    score_histogram: list[int]


def score_stats(scores: npt.NDArray[np.float32]) -> ScoreStats:
    """Statistics of probabilities [B]; exact for range and histogram, float64 for the sum."""
    if not len(scores):
        return ScoreStats(None, None, 0.0, [0] * HISTOGRAM_BINS)
    smallest, largest, total, histogram = _core.score_statistics(np.ascontiguousarray(scores))
    return ScoreStats(smallest, largest, total, histogram.tolist())
