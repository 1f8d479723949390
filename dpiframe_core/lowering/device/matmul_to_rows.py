"""Pass for a device: a generic product of rows with a constant matrix becomes a product of the gemm
family over the rows of all samples.

That needs rows that lie evenly over the borders of samples: a sample's rows fill its part of the
buffer, which a device does not pad then. It runs after align_columns, which moves columns.
"""

from __future__ import annotations

import math

from dpiframe_core.lowering.device.align_columns import ALIGNMENT
from dpiframe_core.lowering.matmul_to_linear import constant_matrix
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import LinearRows, Step, TensorStep
from dpiframe_core.program.tensor_ops import MatMul, Operand
from dpiframe_core.program.views import View, Weight

LEAST = 8  # rows and columns of the weight: below, the generic product does as well


def matmul_to_rows(program: Program) -> Program:
    """Replace every MatMul whose layout allows it."""
    steps, weights = list[Step](), dict(program.weights)
    for step in program.steps:
        made = _as_rows(step, program) if isinstance(step, TensorStep) else None
        if made is not None:
            assert isinstance(step, TensorStep)
            weights[made.weight] = constant_matrix(program, step)
        steps.append(made or step)
    return program.changed(steps=tuple(steps), weights=weights)


def _as_rows(step: TensorStep, program: Program) -> LinearRows | None:
    op = step.op
    if not isinstance(op, MatMul) or op.batch or len(step.xs) != 1:
        return None
    (x,), (a, b) = step.xs, step.operands
    width, height = math.prod(b.shape[: op.inner]), math.prod(b.shape[op.inner :])
    rows = math.prod(a.shape[: op.rows])
    stride = _even_stride(a, op.rows, width)
    if stride is None or min(width, height) < LEAST:
        return None
    if not _fill(program, x, rows, stride) or not _fill(program, step.out, rows, height):
        return None
    read = x.columns(a.offset, (rows - 1) * stride + width)
    return LinearRows(step.name, read, Weight(f"{step.name}/rows_weight"), rows, stride, step.out)


def _even_stride(a: Operand, row_axes: int, width: int) -> int | None:
    """Columns from one row of a to the next; None where they are not even, or a row has gaps."""
    if not Operand(a.shape[row_axes:], a.strides[row_axes:]).is_whole:
        return None
    rows = zip(a.shape[:row_axes], a.strides[:row_axes], strict=True)
    outer = [(size, step) for size, step in rows if size > 1]
    stride = outer[-1][1] if outer else width
    expected = stride
    for size, step in reversed(outer):
        if step != expected:
            return None
        expected *= size
    return stride if stride >= width else None


def _fill(program: Program, view: View, rows: int, stride: int) -> bool:
    """Whether the rows of a sample fill its part of the buffer, so that all rows are even."""
    width = program.buffers[view.buffer]
    return rows == 1 or (width == rows * stride and width % ALIGNMENT == 0)
