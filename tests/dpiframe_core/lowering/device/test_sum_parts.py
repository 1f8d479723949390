"""Weighted sums over a few stacked tensors become maps of these."""

from __future__ import annotations

import numpy as np
import pytest
from small_programs import WIDTH, X, kinds, linear, mapped, program, same

from dpiframe_core.lowering.device.sum_parts import sum_parts
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Copy, Linear, TensorStep
from dpiframe_core.program.tensor_ops import Join, Map, MatMul, Operand, Reduce
from dpiframe_core.program.views import View, Weight

EXPERTS = 3


@pytest.fixture(autouse=True)
def narrow_sums(monkeypatch):
    """Are replaced, too."""
    monkeypatch.setattr("dpiframe_core.lowering.device.sum_parts.LEAST_WIDTH", WIDTH)


def experts() -> tuple[list[Linear], Linear]:
    return [linear(f"e{i}", X) for i in range(EXPERTS)], linear("gates", X, EXPERTS)


def stacked(parts: list[Linear], outer: int) -> TensorStep:
    whole = tuple(Operand.whole(WIDTH) for _ in parts)
    out = View("stack", 0, WIDTH * len(parts))
    return TensorStep("stack", Join(outer), tuple(p.out for p in parts), (), whole, out)


def the_map(found: Program) -> TensorStep:
    (step,) = [s for s in found.steps if isinstance(s, TensorStep)]
    assert isinstance(step.op, Map)
    return step


@pytest.mark.parametrize("behind", [False, True])
def test_experts_are_mixed_where_they_are(behind):
    """Stacked behind the columns, or in front of them, and multiplied by the gates."""
    parts, gates = experts()
    stack = stacked(parts, WIDTH if behind else 1)
    strides = (EXPERTS, 1) if behind else (1, WIDTH)
    a, b = Operand((WIDTH, EXPERTS), strides), Operand.whole(EXPERTS)
    mixed = TensorStep(
        "mixed", MatMul(0, 1, 1), (stack.out, gates.out), (), (a, b), View("mixed", 0, WIDTH)
    )
    before = program(*parts, gates, stack, mixed)
    found = the_map(same(before, sum_parts(before)))
    assert set(found.xs) == {gates.out, *(p.out for p in parts)}


@pytest.mark.parametrize("function", ["sum", "mean"])
def test_a_weighted_sum_of_copies(function):
    parts, gates = experts()
    whole = View("side", 0, WIDTH * EXPERTS)
    copies = [Copy(f"c{i}", p.out, whole.columns(i * WIDTH, WIDTH)) for i, p in enumerate(parts)]
    shape = (EXPERTS, WIDTH)
    weighted = TensorStep(
        "weighted",
        Map(("mul", "x0", "x1")),
        (whole, gates.out),
        (),
        (Operand.whole(*shape), Operand(shape, (1, 0))),
        View("weighted", 0, whole.width),
    )
    reduce = TensorStep(
        "sum", Reduce(function, (0,)), (weighted.out,), (), (Operand.whole(*shape),),
        View("sum", 0, WIDTH),
    )  # fmt: skip
    before = program(*parts, gates, *copies, weighted, reduce)
    after = same(before, sum_parts(before))
    assert set(the_map(after).xs) == {gates.out, *(p.out for p in parts)}
    assert "Copy" not in kinds(after)


def test_constant_weights_are_operands():
    parts, _ = experts()
    stack = stacked(parts, 1)
    a = Operand((WIDTH, EXPERTS), (1, WIDTH))
    mixed = TensorStep(
        "mixed", MatMul(0, 1, 1), (stack.out,), (Weight("c"),), (a, Operand.whole(EXPERTS)),
        View("mixed", 0, WIDTH),
    )  # fmt: skip
    before = program(*parts, stack, mixed, c=np.array([0.5, -1.0, 2.0]))
    assert len(the_map(same(before, sum_parts(before))).xs) == EXPERTS


@pytest.mark.parametrize("function", ["sum", "mean", "prod", "max", "min"])
@pytest.mark.parametrize("size", [2, 5])
def test_short_windows_of_one_tensor_are_pooled_in_a_map_and_long_axes_stay(function, size):
    wide = linear("wide", X, size * WIDTH)
    reduce = TensorStep(
        "pool", Reduce(function, (0,)), (wide.out,), (), (Operand.whole(size, WIDTH),),
        View("pool", 0, WIDTH),
    )  # fmt: skip
    before = program(wide, reduce)
    after = same(before, sum_parts(before))
    assert (after == before) == (size == 5)


def test_the_last_axis_stays_a_reduction():
    wide = linear("wide", X, 2 * WIDTH)
    reduce = TensorStep(
        "sum", Reduce("sum", (1,)), (wide.out,), (), (Operand.whole(WIDTH, 2),),
        View("sum", 0, WIDTH),
    )  # fmt: skip
    before = program(wide, reduce)
    assert sum_parts(before) == before


def test_what_others_read_stays_beside_the_map():
    parts, gates = experts()
    stack = stacked(parts, 1)
    a, b = Operand((WIDTH, EXPERTS), (1, WIDTH)), Operand.whole(EXPERTS)
    mixed = TensorStep(
        "mixed", MatMul(0, 1, 1), (stack.out, gates.out), (), (a, b), View("mixed", 0, WIDTH)
    )
    both = mapped("both", ("add", "x0", "x1"), mixed.out, View("stack", WIDTH, WIDTH))
    before = program(*parts, gates, stack, mixed, both)
    after = same(before, sum_parts(before))
    assert [type(s.op) for s in after.steps if isinstance(s, TensorStep)] == [Join, Map, Map]


def test_more_parts_than_a_map_takes_stay():
    parts = [linear(f"e{i}", X) for i in range(20)]
    stack = stacked(parts, 1)
    reduce = TensorStep(
        "sum", Reduce("sum", (0,)), (stack.out,), (), (Operand.whole(20, WIDTH),),
        View("sum", 0, WIDTH),
    )  # fmt: skip
    before = program(*parts, stack, reduce)
    assert sum_parts(before) == before


def test_a_narrow_sum_stays(monkeypatch):
    monkeypatch.setattr("dpiframe_core.lowering.device.sum_parts.LEAST_WIDTH", WIDTH + 1)
    parts, _ = experts()
    stack = stacked(parts, 1)
    reduce = TensorStep(
        "sum", Reduce("sum", (0,)), (stack.out,), (), (Operand.whole(EXPERTS, WIDTH),),
        View("sum", 0, WIDTH),
    )  # fmt: skip
    before = program(*parts, stack, reduce)
    assert sum_parts(before) == before
