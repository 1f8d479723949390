"""A product of a slice of columns is a linear layer, with its bias and ReLU."""

from __future__ import annotations

import numpy as np
import pytest
from small_programs import X, kinds, linear, program, same

from dpiframe_core.lowering.matmul_to_linear import matmul_to_linear
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Linear, TensorStep
from dpiframe_core.program.tensor_ops import Expression, Map, MatMul, Operand
from dpiframe_core.program.views import View, Weight

FIRST, WIDTH, UNITS = 3, 8, 9
RANDOM = np.random.default_rng(3)


def tower(expression: Expression | None = None, bias: int = UNITS, width: int = WIDTH) -> Program:
    """A product of columns FIRST .. of another's output, and a map of it and a constant."""
    base = linear("base", X, FIRST + width + 1)
    operands = Operand((width,), (1,), FIRST), Operand.whole(width, UNITS)
    out = View("product", 0, UNITS)
    product = TensorStep("product", MatMul(0, 0, 1), (base.out,), (Weight("w"),), operands, out)
    weights = {"w": RANDOM.normal(size=(width, UNITS)), "c": RANDOM.normal(size=bias)}
    if expression is None:
        return program(base, product, linear("next", out), w=weights["w"])
    read = Operand.whole(UNITS), Operand((UNITS,), (1 if bias == UNITS else 0,))
    has_constant = "x1" in str(expression)
    constants = (Weight("c"),) if has_constant else ()
    made = View("map", 0, UNITS)
    step = TensorStep("map", Map(expression), (out,), constants, read[: 1 + has_constant], made)
    return program(base, product, step, linear("next", made), **weights)


@pytest.mark.parametrize("bias", [UNITS, 1])
@pytest.mark.parametrize(
    ("expression", "relu"),
    [
        (None, False),
        (("add", "x0", "x1"), False),
        (("relu", ("add", "x0", "x1")), True),
        (("relu", "x0"), True),
    ],
)
def test_a_slice_is_the_operand_of_a_layer(expression, relu, bias):
    before = tower(expression, bias)
    after = same(before, matmul_to_linear(before))
    assert kinds(after) == ["Linear", "Linear", "Linear", "Head"]
    layer = after.steps[1]
    assert isinstance(layer, Linear)
    assert layer.x == View("base", FIRST, WIDTH)
    assert layer.relu == (((0, UNITS),) if relu else ())
    assert (layer.bias is not None) == ("x1" in str(expression))


def test_another_map_stays_behind_the_layer():
    before = tower(("tanh", ("add", "x0", "x1")))
    assert kinds(same(before, matmul_to_linear(before)))[:3] == ["Linear", "Linear", "TensorStep"]


def test_a_narrow_product_stays_generic():
    before = tower(width=WIDTH - 1)
    assert matmul_to_linear(before) == before


def experts(strides: tuple[int, ...]) -> Program:
    """A product of rows of another's output with a matrix each; a stride of 0: with one row."""
    base = linear("base", X, 2 * WIDTH)
    operands = Operand((2, 1, WIDTH), (*strides, 1)), Operand.whole(2, WIDTH, UNITS)
    out = View("product", 0, 2 * UNITS)
    step = TensorStep("product", MatMul(1, 1, 1), (base.out,), (Weight("w"),), operands, out)
    return program(base, step, linear("next", out), w=RANDOM.normal(size=(2, WIDTH, UNITS)))


def test_matrices_of_one_row_are_one_wide_layer():
    before = experts((0, WIDTH))
    after = same(before, matmul_to_linear(before))
    assert kinds(after) == ["Linear", "Linear", "Linear", "Head"]


def test_matrices_of_different_rows_stay_a_product():
    before = experts((WIDTH, WIDTH))
    assert matmul_to_linear(before) == before
