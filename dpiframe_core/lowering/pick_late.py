"""Pass: what is computed of each of several picked rows is computed of the rows, then picked.

`linear(e[:, i]) * e[:, j]` over 325 pairs of 26 fields multiplies 325 rows by a matrix, most of
them many times; linear(e)[:, i] multiplies 26. The same holds for all that treats a picked row like
any other: maps, norms, softmaxes and sums inside of rows, products with one matrix, picked columns.
What is then computed of the same rows twice, as in linear(e[:, i]) * linear(e[:, j]), is so once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Step, TensorStep
from dpiframe_core.program.tensor_ops import (
    LayerNorm,
    Map,
    MatMul,
    Operand,
    Reduce,
    Softmax,
    Take,
)
from dpiframe_core.program.views import View


@dataclass(frozen=True)
class _Picked:
    """What a Take makes: [.., n, ..] of rows [.., m, ..], which lie in `rows` from `offset`."""

    take: TensorStep
    shape: tuple[int, ...]

    @property
    def index(self) -> tuple[int, ...]:
        assert isinstance(self.take.op, Take)
        return self.take.op.index

    @property
    def axis(self) -> int:
        assert isinstance(self.take.op, Take)
        return len(self.shape) - 1 - self.take.op.behind

    @property
    def rows(self) -> int:
        return self.take.operands[0].shape[self.axis]

    def holds(self, view: View, operand: Operand) -> bool:
        """Whether an operand of the view reads columns of the result alone."""
        out = self.take.out
        first, end = view.start + operand.offset, view.start + operand.end
        return view.buffer == out.buffer and out.start <= first and end <= out.start + out.width

    def unpicked(self, view: View, operand: Operand) -> tuple[Operand, int] | None:
        """An operand of the result as one of what is picked from, and which of its axes that is."""
        n, behind = len(self.index), prod(self.shape[self.axis + 1 :])
        first = view.start - self.take.out.start + operand.offset
        inside, strides, axes = first % behind, list[int](), list[int]()
        for axis, (size, stride) in enumerate(zip(operand.shape, operand.strides, strict=True)):
            if size == n and stride == behind and size > 1:
                axes.append(axis)
                strides.append(stride)
            elif size == 1 or stride % (n * behind) == 0:
                strides.append(stride // (n * behind) * self.rows * behind)
            else:
                inside += (size - 1) * stride
                strides.append(stride)
        if len(axes) != 1 or inside >= behind or first // behind % n:
            return None
        shape = tuple(self.rows if axis in axes else s for axis, s in enumerate(operand.shape))
        offset = first // (n * behind) * self.rows * behind + first % behind
        return Operand(shape, tuple(strides), self.take.operands[0].offset + offset), axes[0]


def pick_late(program: Program) -> Program:
    """Move every Take that makes more rows than it picks from behind what reads its rows."""
    picked, steps = defaultdict[str, list[_Picked]](list), list[Step]()  # by the buffers written
    buffers, over_rows = dict(program.buffers), list[TensorStep]()
    for step in program.steps:
        made = _before_picks(step, picked) if isinstance(step, TensorStep) and picked else None
        if made is not None:
            rows, step = made
            known = next((s for s in over_rows if _is_same(program, s, rows)), None)
            if known is None:
                over_rows.append(rows)
                steps.append(rows)
                buffers[rows.out.buffer] = rows.out.width
            else:
                step = replace(step, xs=(known.out,))
        steps.append(step)
        if isinstance(step, TensorStep) and (found := _picks(step)) is not None:
            picked[step.out.buffer].append(found)
    return program.changed(steps=tuple(steps), buffers=buffers) if over_rows else program


def _is_same(program: Program, one: TensorStep, other: TensorStep) -> bool:
    """Whether two steps compute the same of the same."""
    if (one.op, one.xs, one.operands) != (other.op, other.xs, other.operands):
        return False
    weights = [[program.weights[name] for name in s.constants] for s in (one, other)]
    return all(a is b or np.array_equal(a, b) for a, b in zip(*weights, strict=True))


def _picks(step: TensorStep) -> _Picked | None:
    if not isinstance(step.op, Take) or not step.xs or not step.operands[0].is_whole:
        return None
    found = _Picked(step, tuple(step.op.shape(step.operands)))
    return found if len(found.index) > found.rows else None


def _before_picks(
    step: TensorStep, picked: Mapping[str, Sequence[_Picked]]
) -> tuple[TensorStep, TensorStep] | None:
    """The step over what its operands are picked from, and the Take behind it."""
    for k, (view, operand) in enumerate(zip(step.xs, step.operands, strict=False)):
        pick = next((p for p in picked.get(view.buffer, ()) if p.holds(view, operand)), None)
        found = pick.unpicked(view, operand) if pick else None
        places = _places(step, k, found[1]) if found else None
        if pick is None or found is None or places is None:
            continue
        behind, others = places
        xs, operands = list(step.xs), list(step.operands)
        for other, along in ((k, found[1]), *others):
            one = _rows_of(step, other, along, pick, picked)
            if one is None:
                break
            if other < len(xs):
                xs[other] = one[0]
            operands[other] = one[1]
        else:
            return _late(step, pick, behind, tuple(xs), tuple(operands))
    return None


def _late(
    step: TensorStep,
    pick: _Picked,
    behind: int,
    xs: tuple[View, ...],
    operands: tuple[Operand, ...],
) -> tuple[TensorStep, TensorStep]:
    shape = step.op.shape(operands)
    rows = View(f"{step.name}.rows", 0, prod(shape))
    first = replace(step, xs=xs, operands=operands, out=rows, name=f"{step.name}.rows")
    take = Take(pick.index, behind)
    return first, TensorStep(step.name, take, (rows,), (), (Operand.whole(*shape),), step.out)


def _rows_of(
    step: TensorStep, k: int, axis: int, pick: _Picked, picked: Mapping[str, Sequence[_Picked]]
) -> tuple[View, Operand] | None:
    """Another operand where an axis goes along the rows: one that is picked alike, or the same at
    all places; its view, where it is no constant.
    """
    operand = step.operands[k]
    if k < len(step.xs):
        view = step.xs[k]
        for other in picked.get(view.buffer, ()):
            if other.index == pick.index and other.holds(view, operand):
                found = other.unpicked(view, operand)
                if found is not None and found[1] == axis and other.rows == pick.rows:
                    return other.take.xs[0], found[0]
    if operand.strides[axis]:
        return None
    shape = (*operand.shape[:axis], pick.rows, *operand.shape[axis + 1 :])
    return (step.xs[k] if k < len(step.xs) else step.out), replace(operand, shape=shape)


def _places(step: TensorStep, k: int, axis: int) -> tuple[int, list[tuple[int, int]]] | None:
    """Where an axis of an operand is in the result: how many axes come behind it there; and the
    other operands that have it, and as which of their axes. None: it is not kept.
    """
    op, shape = step.op, step.operands[k].shape
    if isinstance(op, Map):
        others = [(other, axis) for other in range(len(step.operands)) if other != k]
        return len(shape) - 1 - axis, others
    if isinstance(op, (Reduce, Softmax)):
        gone = [a for a in op.axes if a > axis] if isinstance(op, Reduce) else []
        return None if axis in op.axes else (len(shape) - 1 - axis - len(gone), [])
    if isinstance(op, LayerNorm):
        kept = k == 0 and axis < len(shape) - op.axes
        return (len(shape) - 1 - axis, []) if kept else None
    if isinstance(op, Take):
        return (len(shape) - 1 - axis, []) if axis != len(shape) - 1 - op.behind else None
    if isinstance(op, MatMul):
        return _places_in_product(step, op, k, axis)
    return None


def _places_in_product(
    step: TensorStep, op: MatMul, k: int, axis: int
) -> tuple[int, list[tuple[int, int]]] | None:
    shapes = [operand.shape for operand in step.operands]
    columns = len(shapes[1]) - op.batch - op.inner
    if axis < op.batch:
        return op.batch - 1 - axis + op.rows + columns, [(1 - k, axis)]
    if k == 0:
        row = axis - op.batch
        return (op.rows - 1 - row + columns, []) if row < op.rows else None
    column = axis - op.batch - op.inner
    return (columns - 1 - column, []) if column >= 0 else None
