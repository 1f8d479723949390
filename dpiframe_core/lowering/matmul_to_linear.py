"""Pass: a generic product of a sample's columns with a constant matrix becomes a linear layer, with
the bias and the ReLU of the map behind it.

An importer finds linear layers of whole tensors; those of slices, such as a tower's share of the
embeddings, come as generic products. So do stacked experts, which multiply the same columns by a
matrix each: together they are one wide layer.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Linear, Step, TensorStep
from dpiframe_core.program.tensor_ops import Map, MatMul, Operand
from dpiframe_core.program.views import Weight

LEAST = 8  # rows and columns of the weight: below, the generic product does as well


def matmul_to_linear(program: Program) -> Program:
    """Replace every such product."""
    readers: dict[str, list[Step]] = {}
    for step in program.steps:
        for buffer in dict.fromkeys(view.buffer for view in step.reads()):
            readers.setdefault(buffer, []).append(step)
    made: dict[int, Linear | None] = {}  # by the ids of steps that are replaced, or gone
    weights = dict(program.weights)
    for step in program.steps:
        product = _of_one_row(step)
        if product is not None and _is_linear(program, product):
            behind = readers.get(product.out.buffer, [])
            linear, last = _linear(program, product, behind, weights)
            made[id(step)] = None
            made[id(step if last is product else last)] = linear
    if not made:
        return program
    steps = [made.get(id(step), step) for step in program.steps]
    return program.changed(steps=tuple(s for s in steps if s is not None), weights=weights)


def _of_one_row(step: Step) -> TensorStep | None:
    """A product with a constant; where all places of its batch axes multiply the same row, these
    are columns of the constant.
    """
    if not isinstance(step, TensorStep) or not isinstance(step.op, MatMul) or len(step.xs) != 1:
        return None
    op, (a, b) = step.op, step.operands
    n, end = op.batch, op.batch + op.inner
    if not n or any(a.strides[:n]) or math.prod(a.shape[n : n + op.rows]) != 1:
        return step
    row = Operand(a.shape[n:], a.strides[n:], a.offset)
    shape = (*b.shape[n:end], *b.shape[:n], *b.shape[end:])
    strides = (*b.strides[n:end], *b.strides[:n], *b.strides[end:])
    op = MatMul(0, op.rows, op.inner)
    return replace(step, op=op, operands=(row, Operand(shape, strides, b.offset)))


def constant_matrix(program: Program, step: TensorStep) -> np.ndarray:
    """The constant operand of a product as the weight [height, width] of a linear layer."""
    assert isinstance(step.op, MatMul)
    b = step.operands[1]
    width = math.prod(b.shape[: step.op.inner])
    matrix = b.numbers(program.weights[step.constants[0]])
    return np.ascontiguousarray(matrix.reshape(width, -1).T)


def _is_linear(program: Program, step: TensorStep) -> bool:
    op = step.op
    if not isinstance(op, MatMul) or op.batch or len(step.xs) != 1:
        return False
    a, b = step.operands
    width = math.prod(b.shape[: op.inner])
    return (
        a.size == width
        and Operand(a.shape, a.strides).is_whole
        and min(width, step.out.width) >= LEAST
        and not step.out.overlaps(program.output)
    )


def _linear(
    program: Program, step: TensorStep, behind: list[Step], weights: dict[str, np.ndarray]
) -> tuple[Linear, TensorStep]:
    """The layer, whose weights are added, and the step in whose place it is; `behind`: the steps
    that read the product's buffer.
    """
    a = step.operands[0]
    weight = Weight(f"{step.name}/matrix")
    weights[weight] = constant_matrix(program, step)
    x, bias, relu, last = step.xs[0].columns(a.offset, a.size), None, False, step
    (reader,) = behind if len(behind) == 1 else (None,)
    if isinstance(reader, TensorStep) and (found := _bias(program, step, reader)) is not None:
        numbers, relu = found
        if numbers is not None:
            bias = Weight(f"{step.name}/bias")
            weights[bias] = numbers
        last = reader
    out = last.out
    return Linear(step.name, x, weight, bias, out, ((0, out.width),) if relu else ()), last


def _bias(
    program: Program, step: TensorStep, reader: TensorStep
) -> tuple[np.ndarray | None, bool] | None:
    """What a map adds to the product, and whether a ReLU follows; None where it does other things
    or more.
    """
    if not isinstance(reader.op, Map) or reader.xs != (step.out,):
        return None
    if reader.out.overlaps(program.output) or reader.out.width != step.out.width:
        return None
    x, *constants = reader.operands
    if not x.is_whole or x.offset:
        return None
    expression, relu = reader.op.expression, False
    if isinstance(expression, tuple) and expression[0] == "relu":
        expression, relu = expression[1], True
    if expression == "x0" and relu:
        return None, True
    if expression != ("add", "x0", "x1") or len(constants) != 1:
        return None
    (added,) = constants
    numbers = program.weights[reader.constants[0]].reshape(-1)[added.offset :]
    if added.is_whole:
        return numbers[: added.size].copy(), relu
    return None if any(added.strides) else (np.full(added.size, numbers[0]), relu)
