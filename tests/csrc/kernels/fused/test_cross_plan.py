"""The fused cross kernel on the host: limits, and its plan walked."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from cross_kernel_walk import ROWS, Shape, Walk

from dpiframe_core import _core

pytestmark = pytest.mark.skipif(
    not _core.build_info()["cuda"], reason="needs a build with CUDA, though no GPU"
)
# dims of the fields, cross layers, columns of the deep layers
SHAPES = {
    "one of each": ((16, 16), 1, (8,)),
    "odd chunks": ((8, 16, 24, 8), 3, (33, 20, 5)),
    "more cross layers": ((16, 0, 8, 16), 4, (40,)),
    "more deep layers": ((16,) * 5, 1, (40, 500, 33, 64)),
    "wide": ((16,) * 40, 2, (100, 30)),
    "criteo": ((16,) * 39, 3, (400, 400, 400)),
}
CRITEO = {
    "dims": [16] * 39,
    "num_cross": 3,
    "columns": [400, 400, 400],
    "num_ids": 39,
    "max_rows": 10_000_000,
}


class Case:
    """A model of small whole numbers, which 16 bits hold whatever the layer."""

    def __init__(self, name: str) -> None:
        self.dims, self.num_cross, self.columns = SHAPES[name]
        self.random = np.random.default_rng(len(name))
        width = sum(self.dims)
        self.x = self.random.integers(-1, 2, (ROWS, width)).astype(np.float16)
        self.cross = [self.layer(width, width) for _ in range(self.num_cross)]
        self.cross[1:2] = [(w, None) for w, _ in self.cross[1:2]]
        widths = (width, *self.columns)
        self.deep = [self.layer(n, k) for k, n in pairwise(widths)]
        self.heads = [
            self.random.integers(-3, 4, n).astype(np.float32) for n in (width, widths[-1])
        ]
        model = _core.FusedCrossModel(
            self.cross, self.heads[0], self.deep, self.heads[1], 0.25, len(self.dims)
        )
        starts = np.cumsum((0, *self.dims))
        slots = [
            _core.CudaSlot(f, 0 if d else -1, -1, 10, d, int(starts[f]), -1, False)
            for f, d in enumerate(self.dims)
        ]
        self.plan = model.plan(slots, "fp16")

    def layer(self, n: int, k: int) -> tuple[np.ndarray, np.ndarray | None]:
        """A few entries of 1 and -1 a row."""
        w = np.zeros((n, k), np.float32)
        np.put_along_axis(w, self.random.integers(0, k, (n, 2)), 1.0, 1)
        w *= self.random.choice(np.float32([-1, 1]), (n, 1))
        return w, self.random.integers(-1, 2, n).astype(np.float32)

    def expected(self) -> np.ndarray:
        """The heads' dots of both chains [64]."""
        x0 = xl = h = self.x.astype(np.float64)
        for w, bias in self.cross:
            xl = x0 * (xl @ w.T + (0 if bias is None else bias)) + xl
        for w, bias in self.deep:
            h = np.maximum(h @ w.T + bias, 0)
        return xl @ self.heads[0] + h @ self.heads[1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SHAPES)
def test_a_walk_in_any_order_gives_the_dots(name, seed):
    case = Case(name)
    walk = Walk(Shape(case.plan, case.columns, case.num_cross), case.x, seed)
    np.testing.assert_array_equal(walk.run(), case.expected())


@pytest.mark.parametrize("name", SHAPES)
def test_pieces_lie_within_the_weights_and_apart(name):
    """They are all of the weights, and none takes the place of one that is not yet used."""
    plan = Case(name).plan
    smem = plan["smem"]
    assert smem["weights"] <= smem["h"] <= smem["slices"] <= smem["vectors"]
    for stages in np.array(plan["stages"]).reshape(2, -1, 4):
        source, place, size, wait = stages.T
        np.testing.assert_array_equal(source, np.cumsum(size) - size)
        assert source[-1] + size[-1] == plan["weights"].nbytes / 2
        assert (size % 16 == 0).all() and (place % 16 == 0).all()
        assert (place + size <= smem["slices"]).all()
        assert (wait < np.arange(len(wait))).all()
        for i in range(len(stages)):
            overlaps = (place[:i] < place[i] + size[i]) & (place[i] < place[:i] + size[:i])
            assert np.flatnonzero(overlaps).max(initial=-1) <= wait[i]


@pytest.mark.parametrize(
    ("last_that_fits", "first_that_does_not"),
    [
        ({"columns": [400] * 4}, {"columns": [400] * 5}),
        ({"columns": [512] * 3}, {"columns": [513]}),
        ({"num_cross": 4}, {"num_cross": 5}),
        ({"num_cross": 1}, {"num_cross": 0}),
        ({"columns": [1]}, {"columns": []}),
        ({"dims": [16] * 40}, {"dims": [16] * 41}),
        ({"dims": [8] * 64}, {"dims": [8] * 65}),
        ({"dims": [8] * 64}, {"dims": [8] * 63 + [12]}),
        ({"dims": [16, 16]}, {"dims": [16, 0]}),
        ({"num_ids": 65536}, {"num_ids": 65537}),
        ({"max_rows": 2**32 - 1}, {"max_rows": 2**32}),
    ],
)
def test_limits(last_that_fits, first_that_does_not):
    assert _core.fused_cross_fits(**{**CRITEO, **last_that_fits})
    assert not _core.fused_cross_fits(**{**CRITEO, **first_that_does_not})


def test_a_model_beyond_the_limits_has_no_plan():
    """Nor has one whose parts do not belong together."""
    numbers = np.zeros(600, np.float32)
    slots = [_core.CudaSlot(f, 0, -1, 10, 16, 16 * f, -1, False) for f in range(2)]

    def model(cross: int = 32, deep: int = 8, k: int = 32, head: int = 32) -> object:
        cross_layer = np.zeros((cross, cross), np.float32)
        deep_layer = np.zeros((deep, k), np.float32)
        return _core.FusedCrossModel(
            [(cross_layer, None)], numbers[:head], [(deep_layer, None)], numbers[:deep], 0.0, 2
        )

    assert model().plan(slots, "bf16")["cross_tile"] == 104
    for other, text in (
        (model(deep=600), "does not fit one kernel"),
        (model(cross=16), "a cross layer must have 32 columns, got 16 -> 16"),
        (model(k=31), "a layer must read 32 columns, got 31"),
        (model(head=31), "the heads must have 32 and 8 weights, got 31 and 8"),
    ):
        with pytest.raises(ValueError, match=text):
            other.plan(slots, "fp16")
    with pytest.raises(ValueError, match="16 bits"):
        model().plan(slots, "fp32")
