"""The fused FP16x3 cross kernel on the host: limits, layout, and what it gives."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from fp16x3_kernel import Fp16x3Kernel
from fp16x3_stages import Source, count, shapes
from weight_pipeline_walk import WeightPipelineWalk

from dpiframe_core import _core

pytestmark = pytest.mark.skipif(
    not _core.build_info()["cuda"], reason="needs a build with CUDA, though no GPU"
)
# dims of the fields, cross layers, columns of the deep layers
SHAPES = {
    "criteo": ((16,) * 39, 3, (400, 400, 400)),
    "one of each": ((64,), 1, (1,)),
    "four of each": ((16,) * 40, 4, (512, 512, 512, 512)),
    "odd dims": ((4, 12, 16, 20) * 9, 2, (401, 400)),
    "strips shared by fields": ((12, 0, 4, 20, 36, 12) * 3, 3, (33,)),
    "few columns": ((4, 20) * 6, 4, (33, 20, 5, 130)),
    "the first stage lies where the last does": ((16,) * 25, 3, (300, 300)),
    "a strip of zeros": ((16, 12, 4) * 20, 1, (470, 33, 512)),
}
CRITEO = {
    "dims": [16] * 39,
    "num_cross": 3,
    "columns": [400, 400, 400],
    "num_ids": 39,
    "max_rows": 10_000_000,
}
MAX_STAGES = 8
SHARED_BYTES = 227 * 1024
ROWS = 64


class Case:
    """A random model of a shape, its plan, and 64 samples."""

    def __init__(self, name: str) -> None:
        self.dims, self.num_cross, self.columns = SHAPES[name]
        self.random = np.random.default_rng(len(name))
        width = sum(self.dims)
        self.cross = [self.layer(width, width) for _ in range(self.num_cross)]
        self.deep = [self.layer(n, k) for k, n in pairwise((width, *self.columns))]
        self.heads = [self.normal(n) for n in (width, self.columns[-1])]
        self.rows = self.random.integers(3, 50, len(self.dims))
        self.tables = [self.normal(r, d) for r, d in zip(self.rows, self.dims, strict=True)]
        self.plan = _core.fused_cross_fp16x3_plan(self.model(), self.slots())

    def normal(self, *shape: int, scale: float = 0.3) -> np.ndarray:
        return (scale * self.random.standard_normal(shape)).astype(np.float32)

    def layer(self, n: int, k: int) -> tuple[np.ndarray, np.ndarray | None]:
        bias = self.normal(n) if self.random.random() < 0.8 else None
        return self.normal(n, k, scale=k**-0.5), bias

    def model(self) -> _core.FusedCrossModel:
        ends = self.heads
        return _core.FusedCrossModel(self.cross, ends[0], self.deep, ends[1], 0.25, 99)

    def slots(self) -> list[_core.CudaSlot]:
        """Of ids in another order; fields without a table have a wide part only."""
        starts = np.cumsum((0, *self.dims))
        return [
            _core.CudaSlot(98 - f, 0 if d else -1, -1, int(r), d, int(starts[f]), f % 3 - 1, False)
            for f, (d, r) in enumerate(zip(self.dims, self.rows, strict=True))
        ]

    def expected(self, x0: np.ndarray) -> np.ndarray:
        """The heads' dots of both chains in float64."""
        x0 = xl = h = x0.astype(np.float64)
        for w, bias in self.cross:
            xl = x0 * (xl @ w.T.astype(np.float64) + (0 if bias is None else bias)) + xl
        for w, bias in self.deep:
            h = np.maximum(h @ w.T.astype(np.float64) + (0 if bias is None else bias), 0)
        return xl @ self.heads[0] + h @ self.heads[1]


@pytest.mark.parametrize("use_oov", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_the_plan_computes_the_model(name, use_oov):
    """Rows of every magnitude, ids outside their tables among them."""
    case = Case(name)
    kernel = Fp16x3Kernel(case.plan, case.num_cross)
    ids = np.zeros((99, ROWS), np.int64)
    for f, rows in enumerate(case.rows):
        ids[98 - f] = case.random.integers(-1, rows + 1, ROWS)
    x0 = kernel.gather(case.tables, ids, use_oov)
    oov = [s % 3 - 1 if use_oov else -1 for s in range(len(case.dims))]
    expected = np.zeros((ROWS, 0), np.float32)
    for f, table in enumerate(case.tables):
        row = ids[98 - f]
        row = np.where((row < 0) | (row >= len(table)), oov[f], row)
        expected = np.concatenate([expected, np.where(row[:, None] < 0, 0, table[row])], 1)
    width = expected.shape[1]
    np.testing.assert_array_equal(x0[:, :width], expected)
    assert not x0[:, width:].any()
    x0 *= np.float32(10) ** case.random.integers(-6, 1, (ROWS, 1)).astype(np.float32)
    expected = case.expected(x0[:, :width])
    error = np.abs(kernel.dots(x0) - expected) / np.maximum(1, np.abs(expected))
    assert error.max() < 3e-6


def test_fields_are_those_of_the_slots():
    case = Case("strips shared by fields")
    for f, (address, rows, row_bytes, oov_row, ids_row) in enumerate(case.plan["fields"]):
        dim = case.dims[f]
        assert (address, row_bytes) == ((f + 1) << 32 if dim else 0, 4 * dim)
        assert (rows, oov_row, ids_row) == (case.rows[f], f % 3 - 1, 98 - f)
    parts = case.plan["groups"]  # as many as a tile of the last quarter's may reach
    assert len(parts) == 160
    every_id_is_good = (0, 2**32 - 1, 0, -1, 0)
    assert all(part == every_id_is_good for part in parts[4 * case.plan["x_strips"] :])


@pytest.mark.parametrize("largest", [1.0, 1e6])
@pytest.mark.parametrize("apart", [0.0, 1e-30, 1e-14, 1e-8, 1e-3])
@pytest.mark.parametrize("small", [0, 1, 2, 3])
def test_products_of_cross_layers_of_unlike_magnitude_are_summed(small, apart, largest):
    """One layer's weights, and of another some rows, are smaller; zeros among them."""
    case = Case("few columns")
    case.cross[small][0][:] *= np.float32(apart)
    case.cross[(small + 1) % 4][0][::3] *= np.float32(apart)
    kernel = Fp16x3Kernel(_core.fused_cross_fp16x3_plan(case.model(), case.slots()), case.num_cross)
    x0 = case.normal(ROWS, 16 * case.plan["x_strips"]) * np.float32(largest)
    expected = case.expected(x0)
    error = np.abs(kernel.dots(x0) - expected).max() / max(1, np.median(np.abs(expected)))
    assert error < 3e-6


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1.0, 1e30])
def test_weights_keep_22_bits_of_their_rows_largest(scale):
    """Rows of zeros, and numbers so small that there is no larger factor."""
    case = Case("few columns")
    w = case.random.standard_normal((33, sum(case.dims))).astype(np.float32)
    w *= np.float32(10) ** case.random.integers(-9, 1, w.shape).astype(np.float32)
    w[7] = 0
    w = (w.astype(np.float64) * scale).astype(np.float32)
    case.deep[0] = (w, None)
    kernel = Fp16x3Kernel(_core.fused_cross_fp16x3_plan(case.model(), case.slots()), case.num_cross)
    largest = np.abs(w).max(1).astype(np.float64)
    for cta, quarters in ((0, (0, 1)), (1, (2,))):  # of 3 strips the first three have one each
        product = kernel.ctas[cta][0]
        parts = [[product.weights[q][part] for q in range(4)] for part in range(2)]
        large, small = (np.concatenate(p, 1).astype(np.float64) for p in parts)
        found = (large + small) * product.vectors[1].astype(np.float64)[:, None]
        for group, quarter in enumerate(quarters):
            rows = slice(16 * quarter, min(33, 16 * quarter + 16))
            own = found[112 * group :][: rows.stop - rows.start, : w.shape[1]]
            bound = np.maximum(largest[rows] * 2.0**-22, 2.0**-149)
            assert (np.abs(own - w[rows]).max(1) <= bound).all()
            assert (np.abs(large[112 * group :][: len(own)]).max(1) <= 2**15).all()


@pytest.mark.parametrize("name", SHAPES)
def test_a_piece_takes_the_place_of_none_that_may_be_in_use(name):
    """Over tiles one after another, each of which begins at the ring's start."""
    plan = Case(name).plan
    places = plan["smem"]
    source, place, size, behind = np.array(plan["stages"] * 3).T
    assert (place % 128 == 0).all() and (size % 16 == 0).all() and (source % 16 == 0).all()
    assert (place + size <= places["ring_bytes"]).all() and places["ring"] % 128 == 0
    assert (behind >= 1).all() and (behind <= MAX_STAGES).all()
    for i in range(len(place)):
        after = np.arange(max(0, i - behind[i] + 1), i)
        apart = (place[after] >= place[i] + size[i]) | (place[i] >= place[after] + size[after])
        assert apart.all()


@pytest.mark.parametrize("producers", [3, 6])
@pytest.mark.parametrize("name", SHAPES)
def test_all_pieces_come_and_stay_while_they_are_in_use(name, producers):
    """What comes next drawn by chance."""
    case = Case(name)
    for seed in range(3):
        WeightPipelineWalk(case.plan, case.num_cross, producers, seed).run(tiles=3)


@pytest.mark.parametrize("name", SHAPES)
def test_a_walk_notices_that_a_piece_should_have_waited(name):
    case = Case(name)
    stages = [(*stage, behind + 1) for *stage, behind in case.plan["stages"]]
    with pytest.raises(AssertionError, match=r"is not there, or no longer|all wait"):
        for seed in range(20):
            WeightPipelineWalk({**case.plan, "stages": stages}, case.num_cross, 6, seed).run(
                tiles=3
            )


@pytest.mark.parametrize("name", SHAPES)
def test_pieces_are_all_weights_and_vectors_and_x0_once_a_cross_layer(name):
    case = Case(name)
    plan = case.plan
    source, _, size, _ = np.array(plan["stages"]).T
    kind, offset = source >> 30, source % 2**30
    for which, total in (
        (Source.WEIGHTS, plan["weights"].nbytes / 2),
        (Source.VECTORS, plan["vectors"].nbytes / 2),
    ):
        own = size[kind == which]
        np.testing.assert_array_equal(offset[kind == which], np.cumsum(own) - own)
        assert own.sum() == total
    assert plan["weight_bytes"] == plan["weights"].nbytes / 2
    x0_bytes = 2 * plan["cross_tile"] // 16 * 2 * 2048
    x0 = [a[kind == Source.X0].reshape(case.num_cross, -1) for a in (offset, size)]
    for places, sizes in zip(*x0, strict=True):
        order = np.argsort(places)
        ends = np.cumsum(sizes[order])
        np.testing.assert_array_equal(places[order], ends - sizes[order])
        assert ends[-1] == x0_bytes
    h_bytes = plan["deep_tile"] // 16 * 4096 + 64
    assert plan["scratch_bytes"] == x0_bytes + 2 * h_bytes and plan["scratch_bytes"] % 128 == 0


@pytest.mark.parametrize("name", SHAPES)
def test_shared_memory_holds_what_it_must(name):
    """h's quarter q lies where the other cta's quarter of x did."""
    case = Case(name)
    plan, places = case.plan, case.plan["smem"]
    x, h = plan["x_strips"], plan["h_strips"]
    assert places["ring"] == x * 4096 + 4 * 64
    for strips in h[:-1]:
        assert all(count(strips, q) <= count(x, (q + 2) % 4) for q in range(4))
    most = max(shape.weight_bytes for shape in shapes(plan, case.num_cross))
    assert places["ring_bytes"] >= 4 * most
    assert places["ring"] + places["ring_bytes"] <= places["values"]
    assert places["values"] + 4 * 32 * 4 <= places["barriers"]
    assert places["barriers"] + (2 * MAX_STAGES + 15) * 8 <= places["bytes"] <= SHARED_BYTES


@pytest.mark.parametrize(
    ("last_that_fits", "first_that_does_not"),
    [
        ({"dims": [4] * 16, "columns": [40]}, {"dims": [4] * 15, "columns": [40]}),
        ({"dims": [16] * 40}, {"dims": [16] * 40 + [4]}),
        ({"dims": [640, 0]}, {"dims": [644, -4]}),
        ({"dims": [16] * 38 + [12]}, {"dims": [16] * 38 + [10]}),
        ({"dims": [16] * 26}, {"dims": [16] * 25}),  # h lies where the other cta's x was
        ({"dims": [16] * 24, "columns": [384] * 3}, {"dims": [16] * 23, "columns": [384] * 3}),
        ({"dims": [16] * 26, "columns": [401] * 2}, {"dims": [16] * 25, "columns": [401] * 2}),
        ({"columns": [400] * 4}, {"columns": [400] * 5}),
        ({"columns": [512] * 3}, {"columns": [513]}),
        ({"columns": [1]}, {"columns": []}),
        ({"columns": [1, 400]}, {"columns": [0, 400]}),
        ({"num_cross": 4}, {"num_cross": 5}),
        ({"num_cross": 1}, {"num_cross": 0}),
        ({"num_ids": 65536}, {"num_ids": 65537}),
        ({"max_rows": 2**32 - 1}, {"max_rows": 2**32}),
    ],
)
def test_limits(last_that_fits, first_that_does_not):
    assert _core.fused_cross_fp16x3_fits(**{**CRITEO, **last_that_fits})
    assert not _core.fused_cross_fp16x3_fits(**{**CRITEO, **first_that_does_not})


def test_a_model_beyond_the_limits_has_no_plan():
    """Nor has one whose parts do not belong together."""
    numbers = np.zeros(600, np.float32)

    def plan(cross: int = 64, deep: int = 8, k: int = 64, head: int = 64, **places: int) -> dict:
        cross_layer = np.zeros((cross, cross), np.float32)
        deep_layer = np.zeros((deep, k), np.float32)
        model = _core.FusedCrossModel(
            [(cross_layer, None)], numbers[:head], [(deep_layer, None)], numbers[:deep], 0.0, 2
        )
        table, column = places.get("table", 0), places.get("column", 32)
        slots = [
            _core.CudaSlot(0, 0, -1, 10, 32, 0, -1, False),
            _core.CudaSlot(1, table, -1, 10, 32, column, -1, False),
        ]
        return _core.fused_cross_fp16x3_plan(model, slots)

    assert plan()["cross_tile"] == 112
    for change, text in (
        ({"deep": 600}, "does not fit one kernel"),
        ({"cross": 16}, "a cross layer must have 64 columns, got 16 -> 16"),
        ({"k": 31}, "a layer must read 64 columns, got 31"),
        ({"head": 31}, "the heads must have 64 and 8 weights, got 31 and 8"),
        ({"table": -1}, "a field of dim 32 needs a table"),
        ({"column": 34}, "a field of dim 32 cannot begin at column 34 of 64"),
        ({"column": 36}, "a field of dim 32 cannot begin at column 36 of 64"),
        ({"column": -4}, "a field of dim 32 cannot begin at column -4 of 64"),
        ({"column": 28}, "two fields have column 28"),
    ):
        with pytest.raises(ValueError, match=text):
            plan(**change)
