"""Dot products of picked pairs come of one product of all rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_programs import X, linear, program, same

from dpiframe_core.lowering.device.pair_dots import pair_dots
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import TensorStep
from dpiframe_core.program.tensor_ops import Map, MatMul, Operand, Reduce, Take
from dpiframe_core.program.views import View

ROWS, DIM = 4, 3
FIRST, SECOND = (0, 0, 0, 1, 1, 2), (1, 2, 3, 2, 3, 3)


def pairs(first=FIRST, second=SECOND, function="sum", expression=("mul", "x0", "x1")) -> Program:
    a, b = linear("a", X, ROWS * DIM), linear("b", X, ROWS * DIM)
    shape = (len(first), DIM)
    takes = [
        TensorStep(
            name, Take(index, 1), (of.out,), (), (Operand.whole(ROWS, DIM),),
            View(name, 0, len(index) * DIM),
        )
        for name, index, of in (("p", first, a), ("q", second, b))
    ]  # fmt: skip
    product = TensorStep(
        "product", Map(expression), tuple(t.out for t in takes), (), (Operand.whole(*shape),) * 2,
        View("product", 0, len(first) * DIM),
    )  # fmt: skip
    dots = TensorStep(
        "dots", Reduce(function, (1,)), (product.out,), (), (Operand.whole(*shape),),
        View("dots", 0, len(first)),
    )  # fmt: skip
    return program(a, b, *takes, product, dots)


def test_pairs_are_picked_of_all_dots():
    before = pairs()
    after = same(before, pair_dots(before))
    kinds = [type(s.op) for s in after.steps if isinstance(s, TensorStep)]
    assert kinds == [MatMul, Take]


@pytest.mark.parametrize(
    "different",
    [
        {"function": "max"},
        {"expression": ("add", "x0", "x1")},
        {"first": (0,), "second": (1,)},  # one of sixteen
    ],
)
def test_other_sums_stay(different):
    before = pairs(**different)
    assert pair_dots(before) == before


def test_a_sum_of_the_products_in_another_shape_stays():
    """Of 6 x 3 products, read as 9 x 2."""
    before = pairs()
    dots = next(s for s in before.steps if s.name == "dots")
    assert isinstance(dots, TensorStep)
    out = View("dots", 0, 9)
    other = replace(dots, operands=(Operand.whole(9, 2),), out=out)
    head = replace(before.steps[-1], dots=((out, before.steps[-1].dots[0][1]),))
    weights = {**before.weights, "head/w": np.arange(9.0)}
    buffers = {**before.buffers, "dots": 9}
    before = replace(
        before, steps=(*before.steps[:-2], other, head), buffers=buffers, weights=weights
    )
    assert pair_dots(before) == before
    same(before, pair_dots(before))
