"""Pass: what is computed of each of several picked rows is computed of the rows, then picked.

`linear(e[:, i]) * e[:, j]` over 325 pairs of 26 fields multiplies 325 rows by a matrix, most of
them many times; linear(e)[:, i] multiplies 26. The same holds for all that treats a picked row like
any other: maps, norms, softmaxes and sums inside of rows, products with one matrix, picked columns.
What is then computed of the same rows twice, as in linear(e[:, i]) * linear(e[:, j]), is so once.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

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

# How many times as many rows are picked at least: below, picking results, which may be wider, can
# take what is saved.
LEAST_PICKED = 1.5


@dataclass(frozen=True)
class _Picked:
    """What a Take makes: [.., n, ..] of rows [.., m, ..]."""

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


class _Picks:
    """Takes that make more rows than they pick from, by the columns that they write."""

    def __init__(self) -> None:
        self._of_buffer: dict[str, list[_Picked]] = {}  # by their first columns

    def add(self, step: TensorStep) -> None:
        """If it is such a Take."""
        if not isinstance(step.op, Take) or not step.xs or not step.operands[0].is_whole:
            return
        found = _Picked(step, tuple(step.op.shape(step.operands)))
        if len(found.index) >= LEAST_PICKED * found.rows:
            insort(self._of_buffer.setdefault(step.out.buffer, []), found, key=_first_column)

    def find(self, view: View, operand: Operand) -> _Picked | None:
        """That of which an operand of a view reads columns, and of nothing else."""
        made = self._of_buffer.get(view.buffer)
        if made is None:
            return None
        number = bisect_right(made, view.start + operand.offset, key=_first_column)
        if number == 0:
            return None
        out = made[number - 1].take.out
        return made[number - 1] if view.start + operand.end <= out.start + out.width else None


def _first_column(picked: _Picked) -> int:
    return picked.take.out.start


class _OverRows:
    """Steps over rows; what computes the same of the same is one of them."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self._weights, self._digests = weights, dict[str, bytes]()
        self._made: dict[Any, TensorStep] = {}

    def __len__(self) -> int:
        return len(self._made)

    def one(self, step: TensorStep) -> TensorStep:
        """The step, or one before it that does the same."""
        constants = tuple(self._digest(name) for name in step.constants)
        return self._made.setdefault((step.op, step.xs, step.operands, constants), step)

    def _digest(self, name: str) -> bytes:
        if name not in self._digests:
            array = np.ascontiguousarray(self._weights[name])
            kind = f"{array.dtype} {array.shape} ".encode()
            self._digests[name] = hashlib.sha256(kind + array.tobytes()).digest()
        return self._digests[name]


def pick_late(program: Program) -> Program:
    """Move every Take that makes more rows than it picks from behind what reads its rows."""
    picks, over_rows = _Picks(), _OverRows(program.weights)
    buffers, steps = dict(program.buffers), list[Step]()
    for step in program.steps:
        if isinstance(step, TensorStep):
            made = _before_picks(step, picks, buffers)
            if made is not None:
                rows = over_rows.one(made[0])
                if rows is made[0]:
                    steps.append(rows)
                    buffers[rows.out.buffer] = rows.out.width
                step = replace(made[1], xs=(rows.out,))
            picks.add(step)
        steps.append(step)
    return program.changed(steps=tuple(steps), buffers=buffers) if len(over_rows) else program


def _before_picks(
    step: TensorStep, picks: _Picks, buffers: Mapping[str, int]
) -> tuple[TensorStep, TensorStep] | None:
    """The step over what its operands are picked from, and the Take behind it."""
    for k, (view, operand) in enumerate(zip(step.xs, step.operands, strict=False)):
        pick = picks.find(view, operand)
        found = pick.unpicked(view, operand) if pick else None
        places = _places(step, k, found[1]) if found else None
        if pick is None or found is None or places is None:
            continue
        behind, others = places
        xs, operands = list(step.xs), list(step.operands)
        for other, along in ((k, found[1]), *others):
            own = step.xs[other] if other < len(xs) else None
            one = _over_rows(own, step.operands[other], along, pick, picks)
            if one is None:
                break
            operands[other] = one[0]
            if one[1] is not None:
                xs[other] = one[1]
        else:
            name = f"{step.name}.rows"
            while name in buffers:
                name += ".rows"
            shape = step.op.shape(operands)
            out = View(name, 0, prod(shape))
            bare = replace(step, name=name, xs=tuple(xs), operands=tuple(operands), out=out)
            take, whole = Take(pick.index, behind), (Operand.whole(*shape),)
            return bare, TensorStep(step.name, take, (out,), (), whole, step.out)
    return None


def _over_rows(
    view: View | None, operand: Operand, axis: int, pick: _Picked, picks: _Picks
) -> tuple[Operand, View | None] | None:
    """An operand of a view, or of a constant, where an axis of it goes along the rows, and what it
    is then of: one that is picked alike, or one that is the same at all places.
    """
    if view is not None and (other := picks.find(view, operand)) is not None:
        found = other.unpicked(view, operand)
        alike = (other.index, other.rows) == (pick.index, pick.rows)
        if alike and found is not None and found[1] == axis:
            return found[0], other.take.xs[0]
    if operand.strides[axis]:
        return None
    shape = (*operand.shape[:axis], pick.rows, *operand.shape[axis + 1 :])
    return replace(operand, shape=shape), view


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
