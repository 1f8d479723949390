"""Small programs of products and maps, and whether two compute the same."""

from __future__ import annotations

import numpy as np
import torch

from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Head, Linear, TensorStep
from dpiframe_core.program.tensor_ops import Map, Operand
from dpiframe_core.program.views import DENSE, View, Weight

N, WIDTH = 11, 7
X = View(DENSE, 0, N)


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
    buffers: dict[str, int] = {}
    for view in (v for step in steps for v in (*step.reads(), *step.writes())):
        buffers[view.buffer] = max(view.start + view.width, buffers.get(view.buffer, 0))
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
