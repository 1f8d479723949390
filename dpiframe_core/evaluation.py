"""Quality of scores: area under the ROC curve, and logloss."""

from __future__ import annotations

import numpy as np


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Area under the ROC curve of labels [B] (0 or 1) and scores [B]; ties count half.

    By ranks (Mann-Whitney). ValueError when one of the classes is absent.
    """
    positive = np.asarray(labels) > 0
    num_positive = int(positive.sum())
    num_negative = len(positive) - num_positive
    if num_positive == 0 or num_negative == 0:
        raise ValueError(f"AUC needs both classes, got {num_positive} clicks, {num_negative} none")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last_rank = np.cumsum(counts)
    mean_rank = last_rank - (counts - 1) / 2
    rank_sum = mean_rank[inverse][positive].sum()
    return float((rank_sum - num_positive * (num_positive + 1) / 2) / num_positive / num_negative)


def logloss(labels: np.ndarray, scores: np.ndarray) -> float:
    """Mean negative log-likelihood of labels [B] under scores [B], clipped to 1e-7 .. 1 - 1e-7."""
    p = np.clip(np.asarray(scores, np.float64), 1e-7, 1 - 1e-7)
    y = np.asarray(labels, np.float64)
    return float(-(y * np.log(p) + (1 - y) * np.log1p(-p)).mean())
