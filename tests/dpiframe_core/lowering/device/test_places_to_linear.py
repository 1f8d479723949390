"""A product with a matrix of its own in each place is a linear layer a place, and so is what
follows it element by element."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from imported_models import Imported
from small_programs import X, kinds, linear, program, same
from torch import nn
from torch.nn import functional

from dpiframe_core.frontend.tracing.capture import traced
from dpiframe_core.lowering import COMPILED_PASSES, DEVICE_PASSES, lower
from dpiframe_core.lowering.device import places_to_linear as passes
from dpiframe_core.lowering.device.fuse_epilogue import fuse_epilogue
from dpiframe_core.lowering.device.places_to_linear import places_to_linear, split_places
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Linear, MappedLinear, TensorStep
from dpiframe_core.program.tensor_ops import Join, LayerNorm, Map, MatMul, Operand
from dpiframe_core.program.views import View, Weight

PLACES, K, N = 3, 16, 24
RANDOM = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def small_products(monkeypatch):
    """Are linear layers, too."""
    monkeypatch.setattr(passes, "LEAST_SIDE", 8)
    monkeypatch.setattr(passes, "LEAST_WEIGHT", 0)


def product(name: str, x: View, k: int, n: int, places: int = PLACES, **changes) -> TensorStep:
    given = {
        "a": Operand((places, k), (k, 1), 0),
        "b": Operand.whole(places, k, n),
        "op": MatMul(1, 0, 1),
    } | changes
    out = View(name, 0, places * n)
    operands = (given["a"], given["b"])
    return TensorStep(name, given["op"], (x,), (Weight(f"{name}/w"),), operands, out)


def batched(*behind: TensorStep, places=PLACES, k=K, n=N, **changes) -> Program:
    """A linear layer, the product of its places with matrices, and what is behind it."""
    base = linear("base", X, places * k)
    step = product("p", base.out, k, n, places, **changes)
    weights = {"p/w": RANDOM.normal(size=(places, k, n))}
    for other in behind:
        weights |= {w: RANDOM.normal(size=(places, n)) for w in other.constants if w not in weights}
    last = behind[-1].out if behind else step.out
    return program(base, step, *behind, linear("last", last), **weights)


def mapped(name: str, expression, *xs: View, constants=(), operands=None, n=N) -> TensorStep:
    whole = Operand.whole(PLACES, n)
    read = operands or (whole,) * (len(xs) + len(constants))
    out = View(name, 0, PLACES * n)
    return TensorStep(name, Map(expression), xs, constants, tuple(read), out)


P = View("p", 0, PLACES * N)


def made(before: Program) -> Program:
    after = same(before, places_to_linear(before))
    return same(before, fuse_epilogue(same(before, split_places(after))))


def test_a_product_is_a_linear_layer_a_place():
    before = batched()
    after = same(before, places_to_linear(before))
    assert kinds(after) == ["Linear"] * (1 + PLACES + 1) + ["Head"]
    views = [(s.x.start, s.out.start) for s in after.steps[1:-2] if isinstance(s, Linear)]
    assert views == [(i * K, i * N) for i in range(PLACES)]


@pytest.mark.parametrize(
    "changes",
    [
        {"a": Operand((PLACES, K), (1, PLACES), 0)},  # a row's columns lie apart
        {"a": Operand((PLACES, K), (K - 3, 1), 1)},  # rows that begin at odd columns
    ],
)
def test_rows_that_cannot_be_read_are_copied_first(changes):
    before = batched(**changes)
    after = same(before, places_to_linear(before))
    (copy,) = [s for s in after.steps if isinstance(s, TensorStep)]
    assert copy.op == Join() and copy.out.width == PLACES * K


@pytest.mark.parametrize(
    "changes",
    [
        {"a": Operand((PLACES, K), (K, 1), 0), "b": Operand((PLACES, K, N), (K * N, 1, K), 0)},
        {"a": Operand((PLACES, 1, K), (K, 7, 1), 0), "op": MatMul(1, 1, 1)},  # a row a place
        {
            "a": Operand((PLACES, 2, K // 2), (K, K // 2, 1), 0),
            "b": Operand((PLACES, 2, K // 2, N), (K * N, K * N // 2, N, 1), 0),
            "op": MatMul(1, 0, 2),
        },
    ],
)
def test_axes_in_any_order(changes):
    before = batched(**changes)
    assert kinds(same(before, places_to_linear(before))).count("Linear") == PLACES + 2


@pytest.mark.parametrize(
    ("sizes", "limits"),
    [
        ({"k": 12}, {}),
        ({"n": 20}, {}),
        ({}, {"LEAST_SIDE": 17}),
        ({}, {"LEAST_WEIGHT": K * N + 1}),
        ({}, {"MOST_PLACES": PLACES - 1}),
    ],
)
def test_other_sizes_stay_one_product(sizes, limits, monkeypatch):
    for name, value in limits.items():
        monkeypatch.setattr(passes, name, value)
    before = batched(**sizes)
    assert places_to_linear(before) == before


def test_several_rows_a_place_stay_one_product():
    a = Operand((PLACES, 2, K // 2), (K, K // 2, 1), 0)
    before = batched(a=a, b=Operand.whole(PLACES, K // 2, N * 2), op=MatMul(1, 1, 1))
    assert places_to_linear(before) == before


def test_bias_activation_and_residual_are_epilogues():
    bias = mapped("bias", ("add", "x0", "x1"), P, constants=(Weight("b"),))
    relu = mapped("relu", ("relu", "x0"), bias.out)
    other = linear("other", X, PLACES * N)
    residual = mapped("residual", ("add", "x0", "x1"), other.out, relu.out)
    before = batched(bias, relu)
    before = program(
        other, *before.steps[:-2], residual, linear("last", residual.out),
        **{k: v for k, v in before.weights.items() if k in ("p/w", "b")},
    )  # fmt: skip
    after = made(before)
    assert kinds(after).count("MappedLinear") == PLACES
    assert not any(isinstance(s, TensorStep) for s in after.steps)


def test_a_number_for_each_place():
    scale = (Operand.whole(PLACES, N), Operand((PLACES, N), (1, 0)))
    gates = linear("gates", X, PLACES)
    step = mapped("gated", ("mul", "x0", "x1"), P, gates.out, operands=scale)
    before = batched(step)
    before = program(gates, *before.steps[:-1], **{"p/w": before.weights["p/w"]})
    after = made(before)
    read = [s.xs for s in after.steps if isinstance(s, MappedLinear)]
    assert read == [(View("gates", i, 1),) for i in range(PLACES)]


def test_a_map_of_other_columns_stays_whole():
    turned = (Operand((PLACES, N), (1, PLACES)),)
    after = made(batched(mapped("m", ("neg", "x0"), P, operands=turned)))
    assert [type(s.op) for s in after.steps if isinstance(s, TensorStep)] == [Map]


def test_a_norm_a_place_stays_one_step():
    norm = TensorStep(
        "norm", LayerNorm(1, 1e-5), (View("m", 0, P.width),), (), (Operand.whole(PLACES, N),),
        View("norm", 0, P.width),
    )  # fmt: skip
    after = made(batched(mapped("m", ("sigmoid", "x0"), P), norm))
    assert [type(s.op) for s in after.steps if isinstance(s, TensorStep)] == [LayerNorm]


def test_what_only_places_use_has_a_buffer_a_place():
    relu = mapped("m", ("relu", "x0"), P)
    before = batched(relu)
    second = product("q", relu.out, N, K)
    weights = {"p/w": before.weights["p/w"], "q/w": RANDOM.normal(size=(PLACES, N, K))}
    before = program(*before.steps[:-2], second, linear("last", second.out), **weights)
    after = made(before)
    assert [after.buffers[f"m.{i}"] for i in range(PLACES)] == [N] * PLACES


class Mixer(nn.Module):
    """A per-token layer, its norm and a residual; one matrix for each expert of the same columns;
    what torch.bmm makes of tokens outside the batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.start, self.norm, self.last = nn.Linear(5, 64), nn.LayerNorm(16), nn.Linear(64 + 96, 1)
        self.a, self.b = (nn.Parameter(torch.randn(4, *s) / 4) for s in ((16, 32), (32, 16)))
        self.bias = nn.Parameter(torch.randn(4, 1, 16))
        self.experts = nn.Parameter(torch.randn(3, 64, 32) / 8)

    def forward(self, d):
        flat = self.start(d)
        x = flat.view(-1, 4, 16)
        hidden = functional.gelu(torch.einsum("btd,tde->bte", x, self.a))
        made = torch.baddbmm(self.bias, hidden.transpose(0, 1), self.b).transpose(0, 1)
        experts = (flat.unsqueeze(0) @ self.experts).relu().transpose(0, 1)
        return self.last(torch.cat([self.norm(x + made).flatten(1), experts.flatten(1)], 1))


@pytest.mark.parametrize("chosen", [COMPILED_PASSES, DEVICE_PASSES])
def test_a_model_of_places(chosen):
    model, dense = Mixer().double().eval(), torch.rand(7, 5, dtype=torch.float64)
    imported = Imported(traced(model, dense), torch.float64)
    after = lower(imported.spec, imported.weights, chosen)
    found = run_program(after, torch.zeros(0, 7, dtype=torch.long), dense.T)
    torch.testing.assert_close(found, model(dense)[:, 0], rtol=1e-12, atol=1e-12)
    steps = [s.op for s in after.steps if isinstance(s, TensorStep)]
    assert not any(isinstance(op, MatMul) for op in steps)
    if chosen is COMPILED_PASSES:
        assert [type(op) for op in steps] == [LayerNorm]
        assert sum(isinstance(s, MappedLinear) for s in after.steps) == 8
