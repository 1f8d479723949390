"""What follows a product element by element becomes its epilogue, where nothing else reads it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpiframe_core.lowering.device.fuse_epilogue import fuse_epilogue, split_epilogues
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Add, Head, Linear, MappedLinear, TensorStep
from dpiframe_core.program.tensor_ops import Map, Operand
from dpiframe_core.program.views import DENSE, View, Weight

N, WIDTH = 11, 7
X = View(DENSE, 0, N)


@pytest.fixture(autouse=True)
def small_products(monkeypatch):
    """Are fused, too."""
    monkeypatch.setattr("dpiframe_core.lowering.device.fuse_epilogue.LEAST_WEIGHT", 0)


def linear(name: str, x: View, width: int = WIDTH, relu: bool = False) -> Linear:
    ranges = ((0, width),) if relu else ()
    return Linear(name, x, Weight(f"{name}/w"), Weight(f"{name}/b"), View(name, 0, width), ranges)


def mapped(name: str, expression, *xs: View, constants=(), operands=None) -> TensorStep:
    whole = [Operand((WIDTH,), (1 if x.width == WIDTH else 0,)) for x in xs]
    whole += [Operand((WIDTH,), (1,)) for _ in constants]
    out = View(name, 0, WIDTH)
    return TensorStep(name, Map(expression), xs, constants, tuple(operands or whole), out)


def program(*steps, **weights: np.ndarray) -> Program:
    random = np.random.default_rng(7)
    last = steps[-1].writes()[0]
    head = Head("head", ((last, Weight("head/w")),), (), (), None, View("head", 0, 1))
    weights["head/w"] = random.normal(size=last.width)
    for step in steps:
        if isinstance(step, Linear):
            weights[step.weight] = random.normal(size=(step.out.width, step.x.width))
            weights[step.bias] = random.normal(size=step.out.width)
    buffers = {v.buffer: v.start + v.width for s in steps for v in (*s.reads(), *s.writes())}
    buffers |= {"head": 1, DENSE: N}
    return Program((), (), (), N, buffers, (*steps, head), weights, View("head", 0, 1))


def same(before: Program, after: Program) -> Program:
    dense = torch.randn(N, 19, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    ids = torch.zeros(0, 19, dtype=torch.int64)
    expected, got = (run_program(p, ids, dense) for p in (before, after))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    return after


def kinds(found: Program) -> list[str]:
    return [type(step).__name__ for step in found.steps]


def test_a_small_product_is_left_to_a_group_unless_it_is_wide(monkeypatch):
    monkeypatch.setattr("dpiframe_core.lowering.device.fuse_epilogue.LEAST_WEIGHT", 10_000)
    before = program(linear("a", X), mapped("m", ("neg", "x0"), View("a", 0, WIDTH)))
    assert kinds(fuse_epilogue(before)) == ["Linear", "TensorStep", "Head"]
    monkeypatch.setattr("dpiframe_core.lowering.device.fuse_epilogue.LEAST_WIDTH", WIDTH - 1)
    assert kinds(same(before, fuse_epilogue(before))) == ["MappedLinear", "Head"]


GELU = ("mul", ("mul", 0.5, "x0"), ("add", 1.0, ("erf", ("mul", "x0", 2**-0.5))))


@pytest.mark.parametrize("relu", [False, True])
def test_a_function_of_a_product_alone(relu):
    a = linear("a", X, relu=relu)
    before = program(a, mapped("m", GELU, a.out))
    assert kinds(same(before, fuse_epilogue(before))) == ["MappedLinear", "Head"]


def test_a_gate_of_two_products_is_fused_into_one_of_them():
    cross, gate = linear("cross", X), linear("gate", X)
    start = linear("start", X)
    expression = ("add", ("mul", ("mul", "x0", "x1"), ("sigmoid", "x2")), "x0")
    before = program(start, cross, gate, mapped("m", expression, start.out, cross.out, gate.out))
    after = same(before, fuse_epilogue(before))
    assert kinds(after).count("MappedLinear") == 1 and "TensorStep" not in kinds(after)


def test_operands_of_one_column_and_constants():
    a, scalar = linear("a", X), linear("scalar", X, width=1)
    numbers = {"c": np.arange(3.0, 3.0 + WIDTH), "one": np.array([0.5])}
    both = (Operand((WIDTH,), (1,)), Operand((WIDTH,), (0,)))
    both += (Operand((WIDTH,), (1,)), Operand((WIDTH,), (0,)))
    step = mapped(
        "m",
        ("where", ("lt", "x0", "x1"), ("mul", "x2", "x0"), "x3"),
        a.out,
        scalar.out,
        constants=(Weight("c"), Weight("one")),
        operands=both,
    )
    before = program(a, scalar, step, **numbers)
    after = same(before, fuse_epilogue(before))
    (fused,) = [s for s in after.steps if isinstance(s, MappedLinear)]
    assert len(fused.xs) == 1 and len(fused.constants) == 2


def test_maps_behind_an_epilogue_follow():
    a, residual = linear("a", X), X.columns(2, WIDTH)
    m = mapped("m", ("tanh", "x0"), a.out)
    added = Add("sum", (residual, m.out), Weight("bias"), View("sum", 0, WIDTH))
    last = mapped("last", ("mul", "x0", ("sigmoid", "x0")), added.out)
    before = program(a, m, added, last, bias=np.arange(WIDTH, dtype=float))
    assert kinds(same(before, fuse_epilogue(before))) == ["MappedLinear", "Head"]


def test_a_product_that_others_read_stays():
    a = linear("a", X)
    before = program(a, mapped("m", ("exp", "x0"), a.out), linear("b", a.out))
    m, b = before.steps[1], before.steps[2]
    both = mapped("both", ("add", "x0", "x1"), m.out, b.out)
    before = program(a, m, b, both)
    found = same(before, fuse_epilogue(before))
    assert kinds(found) == ["Linear", "TensorStep", "MappedLinear", "Head"]


def test_a_map_in_another_order_stays():
    a = linear("a", X, width=9)
    m = TensorStep(
        "m", Map(("neg", "x0")), (a.out,), (), (Operand((3, 3), (1, 3)),), View("m", 0, 9)
    )
    before = program(a, m)
    assert kinds(same(before, fuse_epilogue(before))) == ["Linear", "TensorStep", "Head"]


def test_a_product_whose_operand_is_not_aligned_is_split():
    a = linear("a", View(DENSE, 3, 8))
    before = fuse_epilogue(program(a, mapped("m", GELU, a.out)))
    assert kinds(before) == ["MappedLinear", "Head"]
    assert kinds(same(before, split_epilogues(before))) == ["Linear", "TensorStep", "Head"]
