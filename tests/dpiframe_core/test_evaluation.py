"""AUC and logloss against direct definitions."""

from __future__ import annotations

import numpy as np
import pytest

from dpiframe_core.evaluation import auc, logloss


def test_auc_is_the_share_of_pairs_in_order():
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 111), rng.integers(0, 19, 111) / 19
    clicks, others = scores[labels == 1], scores[labels == 0]
    pairs = clicks[:, None] - others[None, :]
    assert auc(labels, scores) == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean())


def test_auc_needs_both_classes():
    with pytest.raises(ValueError, match="both classes, got 3 clicks"):
        auc(np.ones(3), np.ones(3))


def test_logloss_is_finite_at_the_ends():
    assert logloss(np.array([1, 0]), np.array([0.5, 0.5])) == pytest.approx(np.log(2))
    assert np.isfinite(logloss(np.array([1, 0]), np.array([0.0, 1.0])))
