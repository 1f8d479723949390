"""Pass for a device: a reduction over a few tensors side by side becomes a map of these.

Experts are mixed by gates (MMoE, PLE, low-rank crosses), towers are averaged, windows are pooled: a
few tensors are stacked, weighted, and summed over the new axis. As a map of the parts each is read
once, in the order in which it lies, a stack that is interleaved never exists, and the epilogue of a
product can take the sum.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from dpiframe_core.program.expression import Expression, count_functions, replaced
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Copy, Step, TensorStep
from dpiframe_core.program.tensor_ops import Join, Map, MatMul, Operand, Reduce
from dpiframe_core.program.views import View, Weight

MOST_OPERANDS = 16  # of the map
MOST_FUNCTIONS = 64
LEAST_WIDTH = 8  # columns of the result: fewer are as well reduced
MOST_POOLED = 4  # places of one tensor that are reduced as they are
Makers = Mapping[View, Step]
JOINED_BY = {"sum": "add", "mean": "add", "prod": "mul", "max": "max", "min": "min"}


def sum_parts(program: Program) -> Program:
    """Replace every such reduction that is short."""
    made_by = program.producers()
    for step in program.steps:
        if not isinstance(step, TensorStep) or step.out.width < LEAST_WIDTH:
            continue
        if (summed := _summed(program, made_by, step)) is not None:
            program = _replaced(program, made_by, step, summed)
    return program


class _Leaf(NamedTuple):
    """An operand of the map."""

    source: View | Weight
    operand: Operand


class _Summed(NamedTuple):
    """What a step reduces over an axis of `size`: an expression of operands that have the axis."""

    expression: Expression
    leaves: list[_Leaf]
    axis: int  # of every operand
    size: int
    function: str = "sum"


def _summed(program: Program, made_by: Makers, step: TensorStep) -> _Summed | None:
    leaves, op = _leaves(step), step.op
    if isinstance(op, Reduce) and len(op.axes) == 1:
        (leaf,) = leaves
        size = leaf.operand.shape[op.axes[0]]
        expression, made = _expanded(program, made_by, step, leaf)
        return _Summed(expression, made, op.axes[0], size, op.function)
    if isinstance(op, MatMul) and (op.batch, op.inner) == (0, 1):
        a, b = leaves
        rows, columns = a.operand.shape[:-1], b.operand.shape[1:]
        axis, size = len(rows), a.operand.shape[-1]
        if rows and columns:
            return None  # a product of matrices
        wide = Operand(
            (*rows, size, *columns), (*a.operand.strides, *(0 for _ in columns)), a.operand.offset
        )
        other = Operand(wide.shape, (*(0 for _ in rows), *b.operand.strides), b.operand.offset)
        both = [_Leaf(a.source, wide), _Leaf(b.source, other)]
        return _Summed(("mul", "x0", "x1"), both, axis, size)
    return None


def _expanded(
    program: Program, made_by: Makers, reader: TensorStep, leaf: _Leaf
) -> tuple[Expression, list[_Leaf]]:
    """The operand as the map that makes it for this reader alone, if one does."""
    maker = _maker(made_by, leaf.source)
    if (
        maker is None
        or not isinstance(maker.op, Map)
        or program.only_reader(maker.out) is not reader
        or not leaf.operand.is_whole
        or leaf.operand.shape != maker.op.shape(maker.operands)
        or leaf.operand.size != maker.out.width
    ):
        return "x0", [leaf]
    return maker.op.expression, _leaves(maker)


def _leaves(step: TensorStep) -> list[_Leaf]:
    sources: list[View | Weight] = [*step.xs, *step.constants]
    return [_Leaf(s, o) for s, o in zip(sources, step.operands, strict=True)]


def _maker(made_by: Makers, source: View | Weight) -> TensorStep | None:
    maker = made_by.get(source) if isinstance(source, View) else None
    return maker if isinstance(maker, TensorStep) else None


def _replaced(program: Program, made_by: Makers, step: TensorStep, summed: _Summed) -> Program:
    """The program with a map of the parts in the place of the step; as it is where the map would be
    too long, parts are interleaved and no join has made them, or a long axis of one tensor is
    reduced as it is.
    """
    if summed.size * (count_functions(summed.expression) + 1) > MOST_FUNCTIONS:
        return program
    joins = [_join(made_by, leaf.source) for leaf in summed.leaves]
    leaves: list[_Leaf] = []
    terms: list[Expression] = []
    for i in range(summed.size):
        names: dict[str, str] = {}
        for k, (leaf, join) in enumerate(zip(summed.leaves, joins, strict=True)):
            part = _at(leaf, summed.axis, i)
            if join is not None:
                part = _part(join, part.operand) or part
            part = _copied(program, part)
            if part.operand.strides and part.operand.strides[-1] > 1:
                return program
            if part not in leaves:
                leaves.append(part)
            names[f"x{k}"] = f"x{leaves.index(part)}"
        terms.append(replaced(summed.expression, names.__getitem__))
    if len(leaves) > MOST_OPERANDS:
        return program
    as_it_is = summed.expression == "x0" and leaves[0].source == summed.leaves[0].source
    if as_it_is and summed.size > MOST_POOLED:
        return program
    total = functools.reduce(lambda a, b: (JOINED_BY[summed.function], a, b), terms)
    if summed.function == "mean":
        total = ("mul", total, 1 / summed.size)
    made = _map(step, total, leaves)
    return program.changed(steps=tuple(made if s is step else s for s in program.steps))


def _map(step: TensorStep, expression: Expression, leaves: list[_Leaf]) -> TensorStep:
    """The step as a map; operands of constants are behind those of views."""
    order = sorted(range(len(leaves)), key=lambda n: isinstance(leaves[n].source, Weight))
    places = {f"x{n}": f"x{place}" for place, n in enumerate(order)}
    sources = [leaves[n].source for n in order]
    return replace(
        step,
        op=Map(replaced(expression, places.__getitem__)),
        xs=tuple(source for source in sources if isinstance(source, View)),
        constants=tuple(source for source in sources if isinstance(source, Weight)),
        operands=tuple(leaves[n].operand for n in order),
    )


def _join(made_by: Makers, source: View | Weight) -> TensorStep | None:
    """The join that makes the view of whole tensors."""
    maker = _maker(made_by, source)
    if maker is None or not isinstance(maker.op, Join) or maker.constants:
        return None
    return maker if all(operand.is_whole for operand in maker.operands) else None


def _at(leaf: _Leaf, axis: int, i: int) -> _Leaf:
    """The operand at a place of an axis, which is gone then."""
    shape, strides, offset = leaf.operand.shape, leaf.operand.strides, leaf.operand.offset
    rest = (*shape[:axis], *shape[axis + 1 :]), (*strides[:axis], *strides[axis + 1 :])
    return _Leaf(leaf.source, Operand(*rest, offset + i * strides[axis]))


def _copied(program: Program, part: _Leaf) -> _Leaf:
    """What reads the same of what was copied, where one step copied all of it."""
    if not isinstance(part.source, View):
        return part
    read = part.source.columns(part.operand.offset, part.operand.end - part.operand.offset)
    for step in program.steps:
        if isinstance(step, Copy) and step.out.contains(read):
            offset = read.start - step.out.start
            return _Leaf(step.x, replace(part.operand, offset=offset))
    return part


def _part(join: TensorStep, read: Operand) -> _Leaf | None:
    """What reads the same of one of the join's operands, if it does not read several of them."""
    assert isinstance(join.op, Join)
    widths = [operand.size // join.op.outer for operand in join.operands]
    row, begin = sum(widths), 0
    first, column = divmod(read.offset, row)
    along = [s % row != 0 for s in read.strides]  # axes within a row
    last = column + sum(
        (n - 1) * s for n, s, a in zip(read.shape, read.strides, along, strict=True) if a
    )
    for x, operand, width in zip(join.xs, join.operands, widths, strict=True):
        if begin <= column and last < begin + width:
            strides = tuple(
                s if a else s // row * width for s, a in zip(read.strides, along, strict=True)
            )
            offset = operand.offset + first * width + column - begin
            return _Leaf(x, Operand(read.shape, strides, offset))
        begin += width
    return None
