"""Products with fixed numbers that are summed next, as matrix products."""

from __future__ import annotations

from dpiframe_core.frontend.draft import Compute, Draft
from dpiframe_core.program.tensor_ops import Map, MatMul, Operand, Reduce


def find_dots(draft: Draft) -> None:
    """sum over some axes of x * w, where w is the same along all others."""
    for reduce in [m for m in draft.modules if isinstance(m, Compute)]:
        if not isinstance(reduce.op, Reduce) or reduce.op.function != "sum":
            continue
        product = draft.module(reduce.inputs[0]) if reduce.inputs else None
        if not isinstance(product, Compute) or product.op != Map(("mul", "x0", "x1")):
            continue
        if len(product.inputs) != 1 or draft.only_reader(product.name) is not reduce:
            continue
        (read,) = reduce.operands
        x, w = product.operands
        if read != Operand.whole(*x.shape):
            continue
        gone = reduce.op.axes
        kept = [i for i in range(len(x.shape)) if i not in gone]
        if any(w.strides[i] for i in kept if x.shape[i] > 1):
            continue
        reduce.op = MatMul(0, len(kept), len(gone))
        reduce.inputs, reduce.constants = product.inputs, product.constants
        reduce.operands = [_picked(x, [*kept, *gone]), _picked(w, list(gone))]
        draft.modules.remove(product)


def _picked(operand: Operand, axes: list[int]) -> Operand:
    """The operand's axes in this order."""
    shape, strides = (tuple(part[i] for i in axes) for part in (operand.shape, operand.strides))
    return Operand(shape, strides, operand.offset)
