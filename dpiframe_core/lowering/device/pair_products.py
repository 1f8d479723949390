"""Pass for a device that compiles kernels at load: a product and the gate that opens it are one.

Where the epilogue of a product reads another product of the same operand, nothing but the epilogue
needs what that made: the kernel multiplies by the weights of both and has the sums of both at hand,
so the other product's output is neither written nor read. (Gated cross layers, GLU and SwiGLU,
gates of experts.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpiframe_core.lowering.device.fuse_epilogue import MOST_FUNCTIONS, MOST_OPERANDS, is_small
from dpiframe_core.program.expression import Expression, count_functions, replaced
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import PRODUCTS_IN_TURN, Linear, MappedLinear
from dpiframe_core.program.views import View, Weight


def pair_products(program: Program) -> Program:
    """Pair every such product with one whose output its epilogue reads."""
    for name in [step.name for step in program.steps]:
        step = next((s for s in program.steps if s.name == name), None)
        if not isinstance(step, MappedLinear) or step.products != 1:
            continue
        for view in dict.fromkeys(step.xs):
            other = _maker(program, view, step)
            if other is not None and (paired := _paired(program, step, other)):
                program = paired
                break
    return program


def in_turn(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The rows of both, PRODUCTS_IN_TURN of the one and as many of the other in turn; zeros fill
    the last ones.
    """
    each, missing = PRODUCTS_IN_TURN, -len(one) % PRODUCTS_IN_TURN
    padding = ((0, missing), *((0, 0) for _ in one.shape[1:]))
    blocks = [np.pad(w, padding).reshape(-1, 1, each, *w.shape[1:]) for w in (one, other)]
    return np.concatenate(blocks, axis=1).reshape(-1, *one.shape[1:])


class _Operands(NamedTuple):
    """What an epilogue reads beside its product, and the expression."""

    expression: Expression
    xs: tuple[View, ...]
    constants: tuple[Weight, ...]


def _maker(program: Program, view: View, reader: MappedLinear) -> Linear | MappedLinear | None:
    """The product of the reader's operand that makes the view, for the reader alone."""
    for step in program.steps:
        if not isinstance(step, (Linear, MappedLinear)) or step is reader or step.out != view:
            continue
        is_plain = not step.relu if isinstance(step, Linear) else step.products == 1
        same = step.x == reader.x and step.out.width == reader.out.width and is_plain
        alone = program.only_reader(view) is reader and not is_small(program, step)
        return step if same and alone else None
    return None


def _paired(program: Program, step: MappedLinear, other: Linear | MappedLinear) -> Program | None:
    """The program with both products in the place of the step; None where that is too much, or
    where the step reads columns of the other one's output apart.
    """
    if isinstance(other, MappedLinear):
        inner = _Operands(other.expression, other.xs, other.constants)
    else:
        inner = _Operands("x0", (), ())
    outer = [view for view in step.xs if view != other.out]
    if any(view.overlaps(other.out) for view in outer):
        return None
    xs = tuple(dict.fromkeys((*outer, *inner.xs)))
    constants = (*step.constants, *inner.constants)
    if len(xs) + len(constants) > MOST_OPERANDS:
        return None

    def name_of(operand: View | int) -> str:
        """Of an operand of the pair; a number: of a constant."""
        at = xs.index(operand) if isinstance(operand, View) else len(xs) + operand
        return f"x{2 + at}"

    gate = {"x0": "x1"}
    gate |= {f"x{1 + i}": name_of(view) for i, view in enumerate(inner.xs)}
    first = len(step.constants)
    gate |= {f"x{1 + len(inner.xs) + i}": name_of(first + i) for i in range(len(inner.constants))}
    opened = replaced(inner.expression, lambda name: gate.get(name, name))
    names: dict[str, Expression] = {"x0": "x0"}
    names |= {
        f"x{1 + i}": opened if view == other.out else name_of(view)
        for i, view in enumerate(step.xs)
    }
    names |= {f"x{1 + len(step.xs) + i}": name_of(i) for i in range(len(step.constants))}
    expression = replaced(step.expression, lambda name: names.get(name, name))
    if count_functions(expression) > MOST_FUNCTIONS:
        return None
    weights = dict(program.weights)
    weight = Weight(f"{step.name}/{other.name}/weight")
    weights[weight] = in_turn(weights[step.weight], weights[other.weight])
    bias = None
    if step.bias or other.bias:
        n = step.out.width
        both = [weights[b] if b else np.zeros(n, np.float32) for b in (step.bias, other.bias)]
        bias = Weight(f"{step.name}/{other.name}/bias")
        weights[bias] = in_turn(both[0], both[1])
    pair = MappedLinear(
        step.name, step.x, weight, bias, expression, xs, constants, step.out, products=2
    )
    steps = [pair if s is step else s for s in program.steps if s is not other]
    return program.changed(steps=tuple(steps), weights=weights)


__all__ = ["in_turn", "pair_products"]
