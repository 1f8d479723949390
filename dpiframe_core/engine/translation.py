"""Steps of a program as operations over tensors, which compiled groups of steps are made of."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from dpiframe_core.program import steps as p
from dpiframe_core.program.expression import Expression
from dpiframe_core.program.program import Program
from dpiframe_core.program.tensor_ops import (
    FieldPairs,
    Join,
    Map,
    MatMul,
    Operand,
    TensorOp,
    row_major,
)
from dpiframe_core.program.views import View

Source = View | np.ndarray  # columns of a buffer, or a constant's numbers


@dataclass(frozen=True)
class Operation:
    """out = op of operands, which read the sources."""

    op: TensorOp  # or FieldPairs, on a CPU
    sources: tuple[Source, ...]
    operands: tuple[Operand, ...]
    out: View


class Translation:
    """Steps as operations, with buffers of their own for what lies between these. An operand of a
    product that has several inner axes is copied first, so that it has one; products of up to
    `most_read_apart` columns read it where it lies.
    """

    def __init__(self, program: Program, most_read_apart: int = 0) -> None:
        self.program, self.most_read_apart = program, most_read_apart
        self.added: dict[str, int] = {}  # widths of further buffers

    def operations(self, step: p.Step) -> list[Operation]:
        """The operations that compute a step; none where there is no way."""
        make = HOST_TRANSLATE.get(type(step))
        return make(self, step) if make else []

    def temporary(self, width: int) -> View:
        """A new buffer."""
        name = f"temporary.{len(self.added)}"
        self.added[name] = width
        return View(name, 0, width)

    def _tensor(self, step: p.TensorStep) -> list[Operation]:
        sources: list[Source] = [*step.xs, *(self._weight(w) for w in step.constants)]
        if isinstance(step.op, MatMul):
            return self._product(step.op, sources, step.operands, step.out)
        return [Operation(step.op, tuple(sources), step.operands, step.out)]

    def _product(
        self, op: MatMul, sources: Sequence[Source], operands: Sequence[Operand], out: View
    ) -> list[Operation]:
        """A product; operands whose inner or column axes are not one axis are copied first."""
        found: list[Operation] = []
        made: list[tuple[Source, Operand]] = []
        is_one = _inner_is_one(op, operands), _columns_are_one(op, operands)
        columns = math.prod(operands[1].shape[op.batch + op.inner :])
        if is_one[1] and columns <= self.most_read_apart:
            return [Operation(op, tuple(sources), tuple(operands), out)]
        for i, (source, operand) in enumerate(zip(sources, operands, strict=True)):
            if is_one[0] and (i == 0 or is_one[1]):
                made.append((source, operand))
                continue
            whole = Operand.whole(*operand.shape)
            if isinstance(source, np.ndarray):
                made.append((_read(source, operand), whole))
                continue
            copy = self.temporary(operand.size)
            found.append(Operation(Join(), (source,), (operand,), copy))
            made.append((copy, whole))
        return [*found, Operation(op, (made[0][0], made[1][0]), (made[0][1], made[1][1]), out)]

    def _copy(self, step: p.Copy) -> list[Operation]:
        return [self._map("x0", [step.x], step.out)]

    def _linear(self, step: p.Linear) -> list[Operation]:
        matrix: np.ndarray = np.asarray(self.program.weights[step.weight], np.float32)
        rows, columns = matrix.shape
        operands = Operand.whole(columns), Operand((columns, rows), (1, columns))
        sources: list[Source] = [step.x, np.ascontiguousarray(matrix).reshape(-1)]
        if step.bias is None and not step.relu:
            return [Operation(MatMul(0, 0, 1), tuple(sources), operands, step.out)]
        product = self.temporary(rows)
        expression: Expression = "x0"
        terms: list[Source] = [product]
        if step.bias is not None:
            expression = ("add", expression, "x1")
            terms.append(self._weight(step.bias))
        if step.relu == ((0, rows),):
            expression = ("relu", expression)
        elif step.relu:
            chosen = np.zeros(rows, np.float32)
            for first, end in step.relu:
                chosen[first:end] = 1
            terms.append(chosen)
            flag = f"x{len(terms) - 1}"
            expression = ("where", flag, ("relu", expression), expression)
        return [
            Operation(MatMul(0, 0, 1), tuple(sources), operands, product),
            self._map(expression, terms, step.out),
        ]

    def _linear_rows(self, step: p.LinearRows) -> list[Operation]:
        matrix: np.ndarray = np.asarray(self.program.weights[step.weight], np.float32)
        rows, columns = matrix.shape
        operands = (
            Operand((step.rows, columns), (step.stride, 1)),
            Operand((columns, rows), (1, columns)),
        )
        weight = np.ascontiguousarray(matrix).reshape(-1)
        return [Operation(MatMul(0, 1, 1), (step.x, weight), operands, step.out)]

    def _relu(self, step: p.Relu) -> list[Operation]:
        return [self._map(("relu", "x0"), [step.x], step.out)]

    def _affine(self, step: p.Affine) -> list[Operation]:
        weights = [self._weight(step.scale), self._weight(step.shift)]
        return [self._map(("add", ("mul", "x0", "x1"), "x2"), [step.x, *weights], step.out)]

    def _batch_norm(self, step: p.BatchNorm) -> list[Operation]:
        weight, bias, mean, var = (self._weight(w).astype(np.float64) for w in step.parts)
        scale = weight / np.sqrt(var + step.eps)
        parts = [mean.astype(np.float32), scale.astype(np.float32), bias.astype(np.float32)]
        expression = ("add", ("mul", ("sub", "x0", "x1"), "x2"), "x3")
        return [self._map(expression, [step.x, *parts], step.out)]

    def _add(self, step: p.Add) -> list[Operation]:
        sources: list[Source] = list(step.xs)
        if step.bias:
            sources.append(np.broadcast_to(self._weight(step.bias), step.out.width))
        return [self._map(_sum(len(sources)), sources, step.out)]

    def _cross_combine(self, step: p.CrossCombine) -> list[Operation]:
        expression = ("add", ("mul", "x0", "x1"), "x2")
        return [self._map(expression, [step.x0, step.wx, step.xl], step.out)]

    def _head(self, step: p.Head) -> list[Operation]:
        found, terms = [], [*step.scalars]
        dots: list[tuple[View, Source]] = [(x, self._weight(w)) for x, w in step.dots]
        for x, other in [*dots, *step.products]:
            terms.append(self.temporary(1))
            operands = (Operand.whole(x.width),) * 2
            found.append(Operation(MatMul(0, 0, 1), (x, other), operands, terms[-1]))
        bias = float(self._weight(step.bias).item()) if step.bias else 0.0
        expression = ("add", _sum(len(terms)), bias) if terms else bias
        return [*found, self._map(expression, terms, step.out)]

    def _outer(self, step: p.Outer) -> list[Operation]:
        rows, columns = self.program.weights[step.weight].shape
        operands = Operand((rows, columns), (1, 0)), Operand.whole(rows, columns)
        sources = step.x, self._weight(step.weight)
        return [Operation(Map(("mul", "x0", "x1")), sources, operands, step.out)]

    def _cross_scalar(self, step: p.CrossScalar) -> list[Operation]:
        alpha: Expression = 1.0
        for layer, shift in enumerate(self._weight(step.shift).tolist()):
            alpha = ("add", ("mul", alpha, ("add", f"x{layer}", 1.0)), shift)
        dots = [step.dots.columns(layer, 1) for layer in range(step.dots.width)]
        return [self._map(alpha, dots, step.out)]

    def _scale_shift(self, step: p.ScaleShift) -> list[Operation]:
        width = step.out.width
        operands = Operand.whole(width), Operand((width,), (0,)), Operand.whole(width)
        sources = step.x, step.alpha, self._weight(step.beta)
        expression = ("add", ("mul", "x0", "x1"), "x2")
        return [Operation(Map(expression), sources, operands, step.out)]

    def _fm(self, step: p.FM) -> list[Operation]:
        operands = tuple(Operand.whole(x.width) for x in step.xs)
        pairs = cast(TensorOp, FieldPairs(step.dim))
        return [Operation(pairs, step.xs, operands, step.out)]

    def _map(self, expression: Expression, sources: Sequence[Source], out: View) -> Operation:
        operands = tuple(Operand.whole(out.width) for _ in sources)
        return Operation(Map(expression), tuple(sources), operands, out)

    def _weight(self, name: str) -> np.ndarray:
        weight: np.ndarray = self.program.weights[name]
        return np.ascontiguousarray(weight, np.float32).reshape(-1)


TRANSLATE: dict[type[p.Step], Callable[[Translation, Any], list[Operation]]] = {
    p.TensorStep: Translation._tensor,
    p.Linear: Translation._linear,
    p.LinearRows: Translation._linear_rows,
    p.Copy: Translation._copy,
    p.Relu: Translation._relu,
    p.Affine: Translation._affine,
    p.BatchNorm: Translation._batch_norm,
    p.Add: Translation._add,
    p.CrossCombine: Translation._cross_combine,
    p.Head: Translation._head,
}
# On the CPU these, too: a GPU runs each by a kernel of its own.
HOST_TRANSLATE: dict[type[p.Step], Callable[[Translation, Any], list[Operation]]] = {
    **TRANSLATE,
    p.Outer: Translation._outer,
    p.FM: Translation._fm,
    p.CrossScalar: Translation._cross_scalar,
    p.ScaleShift: Translation._scale_shift,
}


def _sum(count: int) -> Expression:
    total: Expression = "x0"
    for i in range(1, count):
        total = ("add", total, f"x{i}")
    return total


def _read(numbers: np.ndarray, operand: Operand) -> np.ndarray:
    """The numbers that an operand reads, one after another."""
    return np.ascontiguousarray(operand.numbers(numbers)).reshape(-1)


def _inner_is_one(op: MatMul, operands: Sequence[Operand]) -> bool:
    a, b = operands
    rows, end = op.batch + op.rows, op.batch + op.inner
    return _is_one(a.shape[rows:], (a.strides[rows:], b.strides[op.batch : end]))


def _columns_are_one(op: MatMul, operands: Sequence[Operand]) -> bool:
    shape = operands[1].shape[op.batch + op.inner :]
    return _is_one(shape, (operands[1].strides[op.batch + op.inner :], row_major(shape)))


def _is_one(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> bool:
    axes = [i for i, n in enumerate(shape) if n > 1]
    return all(s[i] == shape[j] * s[j] for s in strides for i, j in itertools.pairwise(axes))
