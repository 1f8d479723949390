"""The fused MLP kernel on the host: limits, and packed weights walked as the kernel does."""

from __future__ import annotations

import numpy as np
import pytest

from dpiframe_core import _core

pytestmark = pytest.mark.skipif(
    not _core.build_info()["cuda"], reason="needs a build with CUDA, though no GPU"
)
ROWS = 5
# dims of the fields, columns of the layers, dots of a cross network, FM
SHAPES = {
    "one layer": ((16, 16, 16, 16), (32,), 0, False),
    "odd dims": ((8, 16, 32, 64, 8, 24, 16), (128, 72, 40), 2, False),
    "a wide part only": ((16, 0, 8, 16), (33, 5), 1, False),
    "fm": ((8,) * 7, (200,), 0, True),
    "four layers": ((16,) * 7, (500, 300, 512, 33), 3, False),
    "fm and cross": ((16,) * 6, (300, 200, 100), 2, True),
    "criteo": ((16,) * 39, (400, 400, 400), 3, False),
}
CRITEO = {
    "dims": [16] * 39,
    "columns": [400, 400, 400],
    "num_shifts": 3,
    "has_cross": True,
    "num_fm": 0,
    "num_ids": 39,
    "max_rows": 10_000_000,
}


class Case:
    """A model of small whole numbers, which 16 bits hold, and the same in float64."""

    def __init__(self, name: str, precision: str) -> None:
        self.dims, self.columns, self.num_dots, self.fm = SHAPES[name]
        rng = np.random.default_rng(len(name))
        num_extras = self.num_dots + 1 if self.num_dots else 0
        self.x_width = k = sum(self.dims)
        self.layers: list[tuple[np.ndarray, np.ndarray]] = []
        for i, n in enumerate(self.columns):
            rows = n + (num_extras if i == 0 else 0)
            w = rng.integers(-3, 4, (rows, k)).astype(np.float32)
            self.layers.append((w, rng.integers(-9, 10, rows).astype(np.float32)))
            k = n
        self.head = rng.integers(-3, 4, k).astype(np.float32)
        self.x = rng.integers(-3, 4, (ROWS, self.x_width)).astype(np.float64)
        starts = np.cumsum((0, *self.dims))
        slots = [
            _core.CudaSlot(f, 0 if d else -1, -1, 10, d, int(starts[f]), -1, self.fm)
            for f, d in enumerate(self.dims)
        ]
        shifts = [0.5] * self.num_dots
        model = _core.FusedMlpModel(
            self.layers, shifts, self.num_dots > 0, self.head, 0.25, len(self.dims)
        )
        self.plan = model.plan(slots, precision)
        self.weights = as_numbers(self.plan["weights"], precision)

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """The head's dot [B], and the extras [B, dots + c + FM's sums]."""
        x, extras = self.x, np.empty((ROWS, 0))
        for i, (w, bias) in enumerate(self.layers):
            y = x @ w.T + bias
            extras = y[:, self.columns[0] :] if i == 0 else extras
            x = np.maximum(y[:, : self.columns[i]], 0)
        if self.fm:
            sums = self.x.reshape(ROWS, len(self.dims), -1).sum(1)
            extras = np.concatenate([extras, sums], 1)
        return x @ self.head, extras

    def walked(self) -> tuple[np.ndarray, np.ndarray]:
        """The same by the plan's weights, in the order in which the two ctas read them."""
        plan, tile = self.plan, self.plan["tile"]
        vectors = plan["vectors"].reshape(2, len(self.layers) + 1, 2 * tile)
        columns = np.array(plan["x_columns"])[:, None] + np.arange(8)
        inside = np.repeat(np.array(plan["x_columns"]) >= 0, 8)
        acts = np.where(inside, self.x[:, np.where(inside, columns.ravel(), 0)], 0.0)
        halves = plan["x_chunks"]
        at, size = [0, len(self.weights) // 2], 2 * tile * 8
        extras = np.full((ROWS, plan["first_extra"][4]), np.nan)
        for layer in range(len(self.layers)):
            made = []
            for cta in range(2):
                sums = np.zeros((ROWS, 2 * tile)) + vectors[cta, layer]
                for half in (cta, 1 - cta):
                    for chunk in range(half * halves[0], half * halves[0] + halves[half]):
                        w = self.weights[at[cta] :][:size].reshape(2 * tile, 8)
                        sums += acts[:, 8 * chunk :][:, :8] @ w.T
                        at[cta] += size
                made.append(sums)
            sums = np.concatenate(made, 1)
            if layer == 0:
                self.take_extras(sums, extras)
            acts, halves = np.maximum(sums, 0), [2 * tile // 8] * 2
        assert at == [len(self.weights) // 2, len(self.weights)]
        return acts @ vectors[:, -1].ravel(), extras

    def take_extras(self, sums: np.ndarray, extras: np.ndarray) -> None:
        """Behind each quarter's own columns, which are zeros for the next layer."""
        n, first, tile = self.columns[0], self.plan["first_extra"], self.plan["tile"]
        for quarter in range(4):
            start = quarter * tile + n * (quarter + 1) // 4 - n * quarter // 4
            count = first[quarter + 1] - first[quarter]
            extras[:, first[quarter] : first[quarter + 1]] = sums[:, start : start + count]
            sums[:, start : (quarter + 1) * tile] = 0


def as_numbers(bits: np.ndarray, precision: str) -> np.ndarray:
    """Numbers of 16 bits in float64."""
    if precision == "fp16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("name", SHAPES)
def test_packed_weights_give_the_products(name, precision):
    case = Case(name, precision)
    for got, expected in zip(case.walked(), case.expected(), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("last_that_fits", "first_that_does_not"),
    [
        ({"columns": [400] * 4}, {"columns": [400] * 5}),
        ({"columns": [416 - 4, 416]}, {"columns": [513, 8]}),
        ({"columns": [512 - 4], "dims": [16] * 20}, {"columns": [512 - 3], "dims": [16] * 20}),
        ({"num_shifts": 8}, {"num_shifts": 9}),
        ({"num_fm": 28}, {"num_fm": 29}),
        ({"dims": [8] * 64}, {"dims": [8] * 65}),
        ({"dims": [8] * 64}, {"dims": [8] * 63 + [12]}),
        ({"dims": [32] * 28}, {"dims": [32] * 32, "columns": [500] * 3}),
        ({"dims": [16, 16]}, {"dims": [16, 0]}),
        ({"dims": [32]}, {"dims": [16]}),
        ({"num_ids": 65536}, {"num_ids": 65537}),
        ({"max_rows": 2**32 - 1}, {"max_rows": 2**32}),
        ({}, {"columns": []}),
    ],
)
def test_limits(last_that_fits, first_that_does_not):
    assert _core.fused_mlp_fits(**{**CRITEO, **last_that_fits})
    assert not _core.fused_mlp_fits(**{**CRITEO, **first_that_does_not})


def test_a_model_beyond_the_limits_has_no_plan():
    w = np.zeros((600, 32), np.float32)
    model = _core.FusedMlpModel([(w, None)], [], False, np.zeros(600, np.float32), 0.0, 2)
    slots = [_core.CudaSlot(f, 0, -1, 10, 16, 16 * f, -1, False) for f in range(2)]
    with pytest.raises(ValueError, match="does not fit one kernel"):
        model.plan(slots, "fp16")


def test_a_batch_of_one_wave():
    """Every cluster has two multiprocessors of its own; only Hopper has the kernel."""
    assert _core.fused_wave_samples(9, 132) == 4096
    assert _core.fused_wave_samples(9, 114) == 57 * 64
    assert _core.fused_wave_samples(8, 108) == 0
    assert _core.fused_wave_samples(10, 148) == 0
