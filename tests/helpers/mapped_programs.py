"""Programs of one product whose epilogue is an expression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dpiframe_core.lowering.device.pair_products import in_turn
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Head, Linear, LoadDense, MappedLinear, Step, TensorStep
from dpiframe_core.program.tensor_ops import LayerNorm, Operand
from dpiframe_core.program.views import DENSE, View, Weight

GELU = ("mul", ("mul", 0.5, "x0"), ("add", 1.0, ("erf", ("mul", "x0", 2**-0.5))))
GATE = ("add", ("mul", ("mul", "x1", "x0"), ("sigmoid", "x2")), ("mul", "x3", "x4"))

PAIR = ("add", ("mul", "x0", ("sigmoid", "x1")), ("mul", "x2", "x3"))
CROSS = ("add", ("mul", ("mul", "x1", "x0"), ("sigmoid", "x2")), ("add", "x3", ("tanh", "x4")))


def gelu(x: View, n: int) -> list[Step]:
    return [MappedLinear("m", x, Weight("w"), Weight("b"), GELU, (), (), View("out", 0, n))]


def gate(x: View, n: int) -> list[Step]:
    """Operands of every kind: of the activation type, float32 of one column, constants."""
    gate, scalar, out = View("gate", 0, n), View("scalar", 0, 1), View("out", 0, n)
    constants = (Weight("column"), Weight("number"))
    return [
        Linear("gate", x, Weight("w2"), None, gate),
        Linear("scalar", x, Weight("w1"), None, scalar),
        MappedLinear("m", x, Weight("w"), None, GATE, (gate, scalar), constants, out),
    ]


def cross(x: View, n: int) -> list[Step]:
    """Operands of rows, more than are loaded far ahead."""
    rows = tuple(View(f"rows{i}", 0, n) for i in range(4))
    return [
        *(Linear(row.buffer, x, Weight("w2"), None, row) for row in rows),
        MappedLinear("m", x, Weight("w"), Weight("b"), CROSS, rows, (), View("out", 0, n)),
    ]


def pair(x: View, n: int) -> list[Step]:
    """Two products, one of which opens the other."""
    rows = View("rows0", 0, n)
    return [
        Linear("rows0", x, Weight("w2"), None, rows),
        MappedLinear(
            "m", x, Weight("pair"), Weight("pair_bias"), PAIR, (rows,), (Weight("column"),),
            View("out", 0, n), products=2,
        ),
    ]  # fmt: skip


def normed_program(k: int, n: int, then: Callable[[View, int], list[Step]]) -> Program:
    """A product, the layer norm of its result, which is not centred, products of that, the head."""
    first, x = View("first", 0, n), View("normed", 0, n)
    whole = Operand((n,), (1,))
    constants = (Weight("gamma"), Weight("beta"))
    made = Linear("first", View("rows", 0, k), Weight("wide"), Weight("shift"), first)
    norm = TensorStep("norm", LayerNorm(1, 1e-5), (first,), constants, (whole,) * 3, x)
    program = program_of(n, n, then)
    load, *steps = program.steps
    load = LoadDense("load", View(DENSE, 0, k), View("rows", 0, k))
    random = np.random.default_rng(n)
    weights = {
        **program.weights,
        "wide": random.normal(size=(n, k)) / k**0.5,
        "shift": random.normal(1.0, 1.0, size=n),
        "gamma": random.normal(1.0, 0.3, size=n),
        "beta": random.normal(size=n),
    }
    moved = [step.map_views(lambda v: x if v == View("rows", 0, n) else v) for step in steps]
    buffers = program.buffers | {DENSE: k, "rows": k, "first": n, "normed": n}
    steps = (load, made, norm, *moved)
    return replace(program, num_dense=k, buffers=buffers, steps=steps, weights=weights).changed()


def glu(x: View, n: int) -> list[Step]:
    """Two products of one operand, and a constant."""
    expression = ("add", ("mul", "x0", ("sigmoid", "x1")), "x2")
    constants, out = (Weight("column"),), View("out", 0, n)
    pair, bias = Weight("pair"), Weight("pair_bias")
    return [MappedLinear("m", x, pair, bias, expression, (), constants, out, products=2)]


def program_of(k: int, n: int, make: Callable[[View, int], list[Step]]) -> Program:
    """Dense features [k], a product of n columns with its epilogue, the head."""
    random = np.random.default_rng(3)
    x, out, logit = View("rows", 0, k), View("out", 0, n), View("logit", 0, 1)
    steps = (
        LoadDense("load", View(DENSE, 0, k), x),
        *make(x, n),
        Head("head", ((out, Weight("head")),), (), (), None, logit),
    )
    weights = {
        "w": random.normal(size=(n, k)) / k**0.5,
        "w1": random.normal(size=(1, k)) / k**0.5,
        "w2": random.normal(size=(n, k)) / k**0.5,
        "b": random.normal(size=n),
        "column": random.normal(size=n),
        "number": np.array([0.7]),
        "head": random.normal(size=n) / n**0.5,
    }
    weights["pair"] = in_turn(weights["w"], weights["w2"])
    weights["pair_bias"] = in_turn(weights["b"], weights["column"])
    buffers = {v.buffer: v.width for s in steps for v in (*s.reads(), *s.writes())}
    return Program((), (), (), k, buffers, steps, weights, logit).changed()
