"""Pass for a device: dot products of picked pairs of rows are picked of all dot products.

Inner products of pairs of fields are often written as (e[:, i] * e[:, j]).sum(-1). Row by row that
takes a load of two rows for each pair; all dot products of the rows are one small product, which
tensor cores do at once.
"""

from __future__ import annotations

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import TensorStep
from dpiframe_core.program.tensor_ops import Map, MatMul, Operand, Reduce, Take
from dpiframe_core.program.views import View

LEAST_SHARE = 4  # at least one of so many dot products is picked
MOST_ROWS = 128


def pair_dots(program: Program) -> Program:
    """Replace every such sum."""
    for step in program.steps:
        if isinstance(step, TensorStep) and step.op == Reduce("sum", (1,)):
            program = _replaced(program, step)
    return program


def _replaced(program: Program, step: TensorStep) -> Program:
    product = _made_for(program, step, 0)
    if product is None or product.op != Map(("mul", "x0", "x1")) or len(product.xs) != 2:
        return program
    if program.only_reader(product.out) is not step:
        return program  # the products are wanted, too
    first, second = (_made_for(program, product, k) for k in range(2))
    if first is None or second is None or not first.xs or not second.xs:
        return program
    if not isinstance(first.op, Take) or not isinstance(second.op, Take):
        return program
    (a,), (b,) = first.operands, second.operands
    picked = (len(first.op.index), a.shape[-1])
    shapes = {step.operands[0].shape, *(operand.shape for operand in product.operands)}
    if shapes != {picked} or second.op.shape(second.operands) != picked:
        return program  # something is read in another shape between
    if len(a.shape) != 2 or len(b.shape) != 2 or (first.op.behind, second.op.behind) != (1, 1):
        return program
    rows, columns = a.shape[0], b.shape[0]
    if max(rows, columns) > MOST_ROWS or picked[0] * LEAST_SHARE < rows * columns:
        return program
    dots = View(f"{step.name}.dots", 0, rows * columns)
    turned = Operand(b.shape[::-1], b.strides[::-1], b.offset)
    all_dots = TensorStep(
        dots.buffer, MatMul(0, 1, 1), (first.xs[0], second.xs[0]), (), (a, turned), dots
    )
    index = [i * columns + j for i, j in zip(first.op.index, second.op.index, strict=True)]
    pick = TensorStep(
        step.name, Take(tuple(index)), (dots,), (), (Operand.whole(dots.width),), step.out
    )
    at = program.steps.index(step)
    steps = (*program.steps[:at], all_dots, pick, *program.steps[at + 1 :])
    return program.changed(steps=steps, buffers={**program.buffers, dots.buffer: dots.width})


def _made_for(program: Program, step: TensorStep, k: int) -> TensorStep | None:
    """The generic step that makes an operand in whole."""
    if k >= len(step.xs):
        return None
    maker, operand = program.producers().get(step.xs[k]), step.operands[k]
    if not isinstance(maker, TensorStep):
        return None
    return maker if operand.is_whole and operand.size == step.xs[k].width else None
