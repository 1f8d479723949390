"""The layout of the persistent fused cross kernel: which models, and its weights."""

from __future__ import annotations

import numpy as np
import pytest

from dpiframe_core import _core

pytestmark = pytest.mark.skipif(
    not _core.build_info()["cuda"], reason="needs a build with CUDA, though no GPU"
)
CRITEO = {
    "dims": [16] * 39,
    "num_cross": 3,
    "columns": [400, 400, 400],
    "num_ids": 39,
    "max_rows": 10_000_000,
}
SHAPES = {
    "criteo": {},
    "one of each": {"num_cross": 1, "columns": [400]},
    "the widest": {"dims": [16] * 40, "num_cross": 4, "columns": [512] * 4},
    "odd chunks": {"dims": [8, 16, 24] * 9, "columns": [33, 20]},
    "few fields": {"dims": [16] * 9, "columns": [40]},
    "unequal halves": {"dims": [8] * 12 + [16] * 28},
}
MAX_STAGES = 8
SHARED_BYTES = 227 * 1024


@pytest.mark.parametrize("name", SHAPES)
def test_a_piece_takes_the_place_of_none_that_may_be_in_use(name):
    """Over tiles one after another, each of which begins at the ring's start."""
    plan = _core.fused_cross_persistent_plan(**{**CRITEO, **SHAPES[name]})
    assert plan is not None and plan["bytes"] <= SHARED_BYTES
    source, place, size, behind = np.array(plan["stages"] * 3).T
    assert (place % 16 == 0).all() and (size % 16 == 0).all() and (source % 16 == 0).all()
    assert (place + size <= plan["ring_bytes"]).all()
    # Not the one before, which a warp that waits for the next has not left, but at a product's end.
    is_first = np.arange(len(place)) % len(plan["stages"]) == 0
    assert ((behind >= 2) | is_first).all() and (behind <= MAX_STAGES).all()
    for i in range(len(place)):
        after = np.arange(max(0, i - behind[i] + 1), i)
        apart = (place[after] >= place[i] + size[i]) | (place[i] >= place[after] + size[after])
        assert apart.all()


@pytest.mark.parametrize("name", SHAPES)
def test_pieces_are_all_weights_in_the_order_of_their_use(name):
    """The first deep layer, the cross layers, the other deep layers."""
    plan = _core.fused_cross_persistent_plan(**{**CRITEO, **SHAPES[name]})
    assert plan is not None
    source, _, size, _ = np.array(plan["stages"]).T
    order = np.argsort(source)
    np.testing.assert_array_equal(source[order], np.cumsum(size[order]) - size[order])
    jumps = np.flatnonzero(source[1:] != source[:-1] + size[:-1])
    assert len(jumps) <= 2 and source[0] == 0


@pytest.mark.parametrize(
    ("last_that_fits", "first_that_does_not"),
    [
        ({"dims": [16] * 9, "columns": [40]}, {"dims": [16] * 8, "columns": [40]}),
        ({"dims": [16] * 26}, {"dims": [16] * 24}),  # h lies where halves of x were
        ({"dims": [16] * 40}, {"dims": [16] * 41}),
        ({"num_cross": 4}, {"num_cross": 5}),
    ],
)
def test_limits(last_that_fits, first_that_does_not):
    assert _core.fused_cross_persistent_plan(**{**CRITEO, **last_that_fits}) is not None
    assert _core.fused_cross_persistent_plan(**{**CRITEO, **first_that_does_not}) is None
