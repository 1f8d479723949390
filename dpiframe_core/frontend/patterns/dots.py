"""Products that are summed next, as matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpiframe_core.frontend.draft import Compute, Draft
from dpiframe_core.program.tensor_ops import Map, MatMul, Operand, Reduce

PRODUCTS = (Map(("mul", "x0", "x1")), Map(("mul", "x1", "x0")))
LEAST_INNER = 4  # numbers of a sum: below, a product element by element does as well


def find_dots(draft: Draft) -> None:
    """sum over some axes of x * w: where w is fixed and the same along all others, or where each
    has axes of its own, as in `(x.unsqueeze(2) * w).sum(3)`.
    """
    for reduce in [m for m in draft.modules if isinstance(m, Compute)]:
        if not isinstance(reduce.op, Reduce) or reduce.op.function != "sum":
            continue
        product = draft.module(reduce.inputs[0]) if reduce.inputs else None
        if not isinstance(product, Compute) or product.op not in PRODUCTS:
            continue
        if draft.only_reader(product.name) is not reduce:
            continue
        (read,) = reduce.operands
        x, w = product.operands
        if read != Operand.whole(*x.shape):
            continue
        gone = reduce.op.axes
        kept = [i for i in range(len(x.shape)) if i not in gone]
        inputs = list(product.inputs)
        found: tuple[int, int] | None
        if len(inputs) == 1 and not any(_varies(w, i) for i in kept):
            found = 0, len(kept)
        else:
            found = _axes(x, w, kept, gone)
            if found is None and len(inputs) == 2:
                x, w, inputs = w, x, inputs[::-1]
                found = _axes(x, w, kept, gone)
            if found and len(inputs) == 2 and not found[1]:
                found = None  # a row by a matrix: as many loads as products either way
        if found is None:
            continue
        batch, rows = found
        columns = kept[batch + rows :]
        reduce.op = MatMul(batch, rows, len(gone))
        reduce.inputs, reduce.constants = inputs, product.constants
        reduce.operands = [
            _picked(x, [*kept[: batch + rows], *gone]),
            _picked(w, [*kept[:batch], *gone, *columns]),
        ]
        draft.modules.remove(product)


def _axes(
    x: Operand, w: Operand, kept: Sequence[int], gone: Sequence[int]
) -> tuple[int, int] | None:
    """How many of the kept axes both vary along, and then x alone; w alone varies along the others,
    of which there are some. None where they lie in another order, or few numbers are summed.
    """
    size = math.prod(x.shape[i] for i in gone)
    if size < LEAST_INNER or not all(_varies(each, i) for each in (x, w) for i in gone):
        return None
    counts, stage = [0, 0, 0], 0  # both, x alone, w alone
    for i in kept:
        if x.shape[i] > 1:
            whose = 2 if not _varies(x, i) else 1 if not _varies(w, i) else 0
            if whose < stage:
                return None
            stage = whose
        counts[stage] += 1
    return (counts[0], counts[1]) if stage == 2 else None


def _varies(operand: Operand, axis: int) -> bool:
    return operand.strides[axis] != 0 and operand.shape[axis] > 1


def _picked(operand: Operand, axes: list[int]) -> Operand:
    """The operand's axes in this order."""
    shape, strides = (tuple(part[i] for i in axes) for part in (operand.shape, operand.strides))
    return Operand(shape, strides, operand.offset)
