"""A product and the one that opens it become one product with both sums in its epilogue."""

from __future__ import annotations

import numpy as np
import pytest
from small_programs import WIDTH, N, X, kinds, linear, mapped, program, same

from dpiframe_core.lowering.device.fuse_epilogue import fuse_epilogue, split_epilogues
from dpiframe_core.lowering.device.pair_products import in_turn, pair_products
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import MappedLinear
from dpiframe_core.program.views import DENSE, View, Weight

CROSS = ("add", ("mul", ("mul", "x0", "x1"), ("sigmoid", "x2")), "x0")


@pytest.fixture(autouse=True)
def small_products(monkeypatch):
    """Are fused, too."""
    monkeypatch.setattr("dpiframe_core.lowering.device.fuse_epilogue.LEAST_WEIGHT", 0)


def paired(before: Program) -> list[MappedLinear]:
    """The products that are two, in a program that computes the same."""
    after = same(before, pair_products(same(before, fuse_epilogue(before))))
    return [s for s in after.steps if isinstance(s, MappedLinear) and s.products == 2]


def test_a_gated_cross_layer_is_one_product():
    start, cross, gate = X.columns(2, WIDTH), linear("cross", X), linear("gate", X)
    (found,) = paired(program(cross, gate, mapped("m", CROSS, start, cross.out, gate.out)))
    assert found.xs == (start,)


def test_the_function_of_a_gate_goes_along():
    a, b, other = linear("a", X), linear("b", X), linear("other", X)
    constant = Weight("c")
    gate = mapped(
        "gate", ("mul", ("mul", "x0", ("sigmoid", "x0")), "x1"), b.out, constants=(constant,)
    )
    m = mapped("m", ("add", ("mul", "x0", "x1"), "x2"), a.out, gate.out, other.out)
    (found,) = paired(program(a, b, other, gate, m, c=np.arange(1.0, 1.0 + WIDTH)))
    assert found.xs == (other.out,) and len(found.constants) == 1


def test_an_operand_of_both_is_read_once():
    a, b, other = linear("a", X), linear("b", X), linear("other", X)
    gate = mapped("gate", ("sigmoid", ("add", "x0", "x1")), b.out, other.out)
    m = mapped("m", ("add", ("mul", "x0", "x1"), "x2"), a.out, gate.out, other.out)
    (found,) = paired(program(a, b, other, gate, m))
    assert found.xs == (other.out,)


def test_a_gate_that_is_read_again_is_the_second_sum():
    a, g = linear("a", X), linear("g", X)
    m = mapped("m", ("mul", "x0", ("sigmoid", "x1")), a.out, g.out)
    last = mapped("last", ("add", ("mul", "x0", ("sigmoid", "x0")), "x1"), m.out, g.out)
    (found,) = paired(program(a, g, m, last))
    assert not found.xs


def test_a_gate_of_which_a_column_is_read_apart_stays():
    a, g = linear("a", X), linear("g", X)
    expression = ("mul", ("mul", "x0", ("sigmoid", "x1")), "x2")
    m = mapped("m", expression, a.out, g.out, g.out.columns(3, 1))
    assert not paired(program(a, g, m))


def test_products_of_other_operands_or_with_other_readers_stay():
    a, b = linear("a", X), linear("b", X.columns(1, N - 1))
    m = mapped("m", ("mul", "x0", ("sigmoid", "x1")), a.out, b.out)
    assert not paired(program(a, b, m))
    a, b = linear("a", X), linear("b", X)
    m = mapped("m", ("mul", "x0", ("sigmoid", "x1")), a.out, b.out)
    c = linear("c", b.out, relu=True)  # reads b, too
    assert not paired(program(a, b, m, c, mapped("sum", ("add", "x0", "x1"), m.out, c.out)))


def test_small_products_are_left_to_groups(monkeypatch):
    a, b = linear("a", X), linear("b", X)
    before = fuse_epilogue(program(a, b, mapped("m", ("mul", "x0", "x1"), a.out, b.out)))
    monkeypatch.setattr("dpiframe_core.lowering.device.fuse_epilogue.LEAST_WEIGHT", 10_000)
    assert pair_products(before) is before


def test_a_pair_whose_operand_is_not_aligned_is_split():
    x = View(DENSE, 3, 8)
    a, b = linear("a", x), linear("b", x)
    before = program(a, b, mapped("m", ("mul", "x0", ("sigmoid", "x1")), a.out, b.out))
    after = pair_products(fuse_epilogue(before))
    assert kinds(after) == ["MappedLinear", "Head"]
    assert kinds(same(before, split_epilogues(after))) == ["Linear", "Linear", "TensorStep", "Head"]


def test_rows_of_two_weights_in_turn():
    one, other = np.arange(10), np.arange(100, 110)
    expected = [*range(8), *range(100, 108), 8, 9, *[0] * 6, 108, 109, *[0] * 6]
    assert in_turn(one, other).tolist() == expected
