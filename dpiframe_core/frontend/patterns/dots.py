"""Products that are summed next, as matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpiframe_core.frontend.draft import Compute, Draft
from dpiframe_core.program.tensor_ops import Map, MatMul, Operand, Reduce, row_major

PRODUCTS = (Map(("mul", "x0", "x1")), Map(("mul", "x1", "x0")))
LEAST_INNER = 4  # numbers of a sum: below, a product element by element does as well
Axes = tuple[list[int], list[int], list[int]]


def find_dots(draft: Draft) -> None:
    """sum over some axes of x * w: where w is fixed and the same along all others, or where each
    has axes of its own, as in `(x.unsqueeze(2) * w).sum(3)`.
    """
    for reduce in [m for m in draft.modules if isinstance(m, Compute)]:
        if not isinstance(reduce.op, Reduce) or reduce.op.function != "sum":
            continue
        product = draft.module(reduce.inputs[0]) if reduce.inputs else None
        if not isinstance(product, Compute) or product.op not in PRODUCTS or not product.inputs:
            continue
        if draft.only_reader(product.name) is not reduce:
            continue
        (read,) = reduce.operands
        shape = product.operands[0].shape
        if read == Operand.whole(*shape):
            kept = [i for i in range(len(shape)) if i not in reduce.op.axes]
            _as_matrix_product(draft, product, reduce, kept, reduce.op.axes)


def _as_matrix_product(
    draft: Draft, product: Compute, reduce: Compute, kept: list[int], gone: Sequence[int]
) -> None:
    """Where it is one; the axes `gone` are summed, `kept` are left."""
    (x, w), inputs = product.operands, product.inputs
    both_vary = len(inputs) == 2
    if not both_vary and not any(_varies(w, i) for i in kept):
        axes: Axes | None = ([], kept, [])
    else:
        axes = _axes(x, w, kept, gone)
        if axes and both_vary and [*axes[0], *axes[1], *axes[2]] != kept:
            x, w, inputs = w, x, inputs[::-1]
            axes = axes[0], axes[2], axes[1]
        if axes and both_vary and all(x.shape[i] == 1 for i in axes[1]):
            return  # a row by a matrix: as many loads as products either way
    if axes is None:
        return
    both, rows, columns = axes
    op = MatMul(len(both), len(rows), len(gone))
    operands = [_picked(x, [*both, *rows, *gone]), _picked(w, [*both, *gone, *columns])]
    made = [*both, *rows, *columns]
    if made == kept:
        reduce.op, reduce.inputs, reduce.operands = op, inputs, operands
        reduce.constants = product.constants
        draft.modules.remove(product)
        return
    matmul = Compute(draft.name(op.kind), op, inputs, product.constants, operands)
    draft.replace(product, matmul)
    strides = dict(zip(made, row_major(op.shape(operands)), strict=True))
    in_order = Operand(tuple(x.shape[i] for i in kept), tuple(strides[i] for i in kept))
    reduce.op, reduce.inputs, reduce.operands = Map("x0"), [matmul.name], [in_order]


def _axes(x: Operand, w: Operand, kept: Sequence[int], gone: Sequence[int]) -> Axes | None:
    """The kept axes that both vary along, x alone, and w alone. None where there are none of the
    last, or few numbers are summed.
    """
    size = math.prod(x.shape[i] for i in gone)
    if size < LEAST_INNER or not all(_varies(each, i) for each in (x, w) for i in gone):
        return None
    whose: Axes = ([], [], [])
    last = 0
    for i in kept:
        if x.shape[i] > 1:
            last = 2 if not _varies(x, i) else 1 if not _varies(w, i) else 0
        whose[last].append(i)
    return whose if any(x.shape[i] > 1 for i in whose[2]) else None


def _varies(operand: Operand, axis: int) -> bool:
    return operand.strides[axis] != 0 and operand.shape[axis] > 1


def _picked(operand: Operand, axes: list[int]) -> Operand:
    """The operand's axes in this order."""
    shape, strides = (tuple(part[i] for i in axes) for part in (operand.shape, operand.strides))
    return Operand(shape, strides, operand.offset)
