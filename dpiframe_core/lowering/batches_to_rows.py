"""Pass: a product with one and the same constant matrix in all places of its batch axes is one
product over the rows of all places.

A Linear over tensors whose first axis is not the batch, as in nn.MultiheadAttention, comes as such.
"""

from __future__ import annotations

from dataclasses import replace

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import TensorStep
from dpiframe_core.program.tensor_ops import MatMul, Operand


def batches_to_rows(program: Program) -> Program:
    """Make the batch axes of such products rows."""
    steps = [_as_rows(s, program) if isinstance(s, TensorStep) else s for s in program.steps]
    return program.changed(steps=tuple(steps))


def _as_rows(step: TensorStep, program: Program) -> TensorStep:
    op = step.op
    if not isinstance(op, MatMul) or not op.batch or len(step.xs) != 1:
        return step
    a, b = step.operands
    matrices = b.numbers(program.weights[step.constants[0]])
    first = matrices[(0,) * op.batch]
    if not (matrices == first).all():
        return step
    shared = Operand(b.shape[op.batch :], b.strides[op.batch :], b.offset)
    rows = MatMul(0, op.batch + op.rows, op.inner)
    return replace(step, op=rows, operands=(a, shared))
