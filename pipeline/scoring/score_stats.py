"""Statistics of the scores of a unit: range, sum, and a histogram of the logits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# Bins: logit below -10, 200 bins of 0.1 over [-10, 10), logit 10 or more.
HISTOGRAM_BINS = 202


class ScoreStats(NamedTuple):
    """Range and sum of probabilities, logit histogram [202]; range None without scores."""

    score_min: float | None
    score_max: float | None
    score_sum: float
    score_histogram: list[int]


def score_stats(scores: npt.NDArray[np.float32]) -> ScoreStats:
    """Statistics of probabilities [B]; exact for the range, float64 for the sum."""
    if not len(scores):
        return ScoreStats(None, None, 0.0, [0] * HISTOGRAM_BINS)
    with np.errstate(divide="ignore"):  # probability 0 or 1: an infinite logit, an outer bin
        logits = np.log(scores) - np.log1p(-scores)
    bins = np.clip(np.floor(logits * 10) + 101, 0, HISTOGRAM_BINS - 1).astype(np.int16)
    counts = np.bincount(bins, minlength=HISTOGRAM_BINS)
    return ScoreStats(
        float(scores.min()),
        float(scores.max()),
        float(scores.sum(dtype=np.float64)),
        [int(count) for count in counts],
    )
