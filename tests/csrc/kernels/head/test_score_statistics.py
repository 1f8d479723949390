"""Statistics of scores against numpy, and their histogram around every edge."""

from __future__ import annotations

import numpy as np
import pytest

from dpiframe_core import _core

EDGES = 1 / (1 + np.exp(-np.arange(-100, 101) / 10))  # float64 [201]
ONE = np.float32(1)


def histogram(scores: np.ndarray) -> np.ndarray:
    """How many edges each score reaches, counted."""
    reached = np.searchsorted(EDGES, scores.astype(np.float64), side="right")
    return np.bincount(reached, minlength=202)


def check(scores: np.ndarray) -> None:
    smallest, largest, total, counts = _core.score_statistics(scores)
    assert (smallest, largest) == (scores.min(), scores.max())
    # Sums of float64 in another order.
    assert total == pytest.approx(scores.sum(dtype=np.float64), rel=1e-12)
    assert counts.dtype == np.int64
    np.testing.assert_array_equal(counts, histogram(scores))


@pytest.mark.parametrize("size", [1, 3, 4, 19, 511, 512, 513, 4097, 1_000_003])
def test_random_scores(size):
    random = np.random.default_rng(size)
    check((1 / (1 + np.exp(-random.normal(-2, 4, size)))).astype(np.float32))
    check(random.random(size, np.float32))


def test_scores_next_to_every_edge():
    """The float32 nearest to an edge and the four on each side of it."""
    nearest = EDGES.astype(np.float32)
    found = [nearest]
    for end in (np.float32(0), ONE):
        towards = nearest
        for _ in range(4):
            towards = np.nextafter(towards, end)
            found.append(towards)
    for scores in found:
        check(scores)
        for score in scores[[0, 100, 200]]:
            check(np.array([score]))
    check(np.concatenate(found))


def test_a_score_of_every_leading_bits():
    """Every 4,096th float32 from 0 to beyond 1, and its neighbours."""
    bits = np.arange(0, int((ONE * 2).view(np.int32)), 4096, dtype=np.int32)
    for offset in (-1, 0, 1):
        check(np.maximum(bits + offset, 0).astype(np.int32).view(np.float32))


def test_the_ends_of_the_range():
    tiny = np.float32(1e-45)
    below_one = np.nextafter(ONE, np.float32(0))
    check(np.array([0, tiny, np.finfo(np.float32).tiny, below_one, 1], np.float32))
    check(np.array([-np.float32(0), -tiny, -0.25, -1e30, 1.5, 3e38], np.float32))
    _, _, _, counts = _core.score_statistics(np.array([0, tiny, 0.5, 1], np.float32))
    assert (counts[0], counts[101], counts[201]) == (2, 1, 1)  # a logit of 0 is the edge of its bin


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 5, 600, 1110])
def test_the_sum_tells_of_scores_that_are_not_finite(bad, place):
    scores = np.full(1111, 0.25, np.float32)
    scores[place] = bad
    smallest, largest, total, counts = _core.score_statistics(scores)
    assert not np.isfinite(total)
    assert (smallest, largest) == (np.fmin(0.25, bad), np.fmax(0.25, bad))
    assert counts.sum() == 1111 and counts[201 if bad > 0 else 0] == 1
    scores[1110 - place] = -bad
    assert not np.isfinite(_core.score_statistics(scores)[2])


def test_no_scores():
    smallest, largest, total, counts = _core.score_statistics(np.empty(0, np.float32))
    assert (smallest, largest, total) == (np.inf, -np.inf, 0) and not counts.any()


def test_other_arrays_are_refused():
    for bad in (np.zeros(3), np.zeros((3, 2), np.float32), np.zeros(6, np.float32)[::2]):
        with pytest.raises(ValueError, match=r"scores must be contiguous float32"):
            _core.score_statistics(bad)
