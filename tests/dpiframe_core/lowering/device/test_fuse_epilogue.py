"""What follows a product element by element becomes its epilogue, where nothing else reads it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from small_programs import WIDTH, X, kinds, linear, mapped, program, same

from dpiframe_core.lowering.device.fuse_epilogue import fuse_epilogue, split_epilogues
from dpiframe_core.program.expression import Expression
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Add, MappedLinear, Step, TensorStep
from dpiframe_core.program.tensor_ops import Map, Operand, row_major
from dpiframe_core.program.views import DENSE, View, Weight


@pytest.fixture(autouse=True)
def small_products(monkeypatch):
    """Are fused, too."""
    monkeypatch.setattr("dpiframe_core.lowering.device.fuse_epilogue.LEAST_WEIGHT", 0)


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


def test_maps_that_only_one_map_reads_go_into_the_epilogue_with_it():
    """Dice: p x + (1 - p) alpha x, where p is the sigmoid of the normalised x."""
    a = linear("a", X)
    whole = Operand((WIDTH,), (1,))
    constants = {name: np.linspace(0.5, 1.5, WIDTH) for name in ("scale", "shift", "alpha")}
    gate = mapped(
        "gate",
        ("sigmoid", ("add", ("mul", "x0", "x1"), "x2")),
        a.out,
        constants=(Weight("scale"), Weight("shift")),
        operands=(whole,) * 3,
    )
    dice = mapped(
        "dice",
        ("add", ("mul", "x0", "x1"), ("mul", ("mul", ("sub", 1.0, "x0"), "x2"), "x1")),
        gate.out,
        a.out,
        constants=(Weight("alpha"),),
        operands=(whole,) * 3,
    )
    before = program(a, gate, dice, **constants)
    assert kinds(same(before, fuse_epilogue(before))) == ["MappedLinear", "Head"]


def test_maps_stay_where_the_product_has_another_reader():
    a = linear("a", X)
    gate = mapped("gate", ("sigmoid", "x0"), a.out)
    swish = mapped("swish", ("mul", "x0", "x1"), gate.out, a.out)
    both = mapped("both", ("add", "x0", "x1"), swish.out, linear("b", a.out).out)
    before = program(a, gate, swish, linear("b", a.out), both)
    after = same(before, fuse_epilogue(before))
    assert [s.name for s in after.steps if isinstance(s, TensorStep)] == ["gate", "swish"]


def test_a_constant_that_repeats_is_an_operand_of_a_number_a_column():
    a = linear("a", X, width=6)
    shape = (2, 3)
    step = TensorStep(
        "m",
        Map(("mul", "x0", "x1")),
        (a.out,),
        (Weight("c"),),
        (Operand.whole(*shape), Operand(shape, (1, 0))),
        View("m", 0, 6),
    )
    before = program(a, step, c=np.array([2.0, -3.0]))
    after = same(before, fuse_epilogue(before))
    (fused,) = [s for s in after.steps if isinstance(s, MappedLinear)]
    np.testing.assert_array_equal(after.weights[fused.constants[0]], [2, 2, 2, -3, -3, -3])


def random_maps(seed: int) -> Program:
    """Products of one operand, and maps of these, of one another, of columns, of constants."""
    rng, width = random.Random(seed), 6
    steps: list[Step] = [linear(f"l{i}", X, width) for i in range(rng.randint(1, 3))]
    steps.append(linear("scalar", X, 1))
    views = [view for step in steps for view in step.writes()]
    for k in range(rng.randint(2, 5)):
        shape = rng.choice([(width,), (2, 3), (3, 2)])
        read: list[tuple[View, Operand]] = []
        for view in rng.choices(views[-3:] + views, k=rng.randint(1, 3)):
            if view.width == 1 or rng.random() < 0.12:
                first = rng.randrange(view.width)
                read.append((view, Operand(shape, (0,) * len(shape), first)))
            elif rng.random() < 0.1 and len(shape) == 2:
                read.append((view, Operand(shape, (1, shape[0]))))
            else:
                read.append((view, Operand.whole(*shape)))
        constants = []
        for _ in range(rng.randint(0, 2)):
            strides = [s if rng.random() < 0.6 else 0 for s in row_major(shape)]
            constants.append(Operand(shape, tuple(strides), rng.randrange(width)))
        operands = (*(operand for _, operand in read), *constants)
        made: Expression = "x0"
        for i in range(1, len(operands)):
            made = rng.choice([("add", made, f"x{i}"), ("mul", made, f"x{i}")])
        if rng.random() < 0.5:
            made = rng.choice([("tanh", made), ("relu", made), ("mul", made, ("sigmoid", "x0"))])
        names = (Weight("c"),) * len(constants)
        out = View(f"m{k}", 0, width)
        xs = tuple(view for view, _ in read)
        steps.append(TensorStep(f"m{k}", Map(made), xs, names, operands, out))
        views.append(out)
        if rng.random() < 0.3:
            steps.append(linear(f"k{k}", out, width))
            views += steps[-1].writes()
    return program(*steps, c=np.random.default_rng(seed).normal(size=4 * width)).changed()


@pytest.mark.parametrize("seed", range(60))
def test_random_maps_of_products(seed):
    before = random_maps(seed)
    same(before, fuse_epilogue(before))


def test_most_random_programs_have_an_epilogue():
    found = [kinds(fuse_epilogue(random_maps(seed))).count("MappedLinear") for seed in range(60)]
    assert sum(count > 0 for count in found) > 30
