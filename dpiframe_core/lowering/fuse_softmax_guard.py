"""Pass: a softmax and the guard that makes its rows 0 where all is -infinity become one step.

torch.export writes scaled_dot_product_attention, and so nn.MultiheadAttention, as

    where(not any(not x == -inf), 0, softmax(x))
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dpiframe_core.program.expression import Expression
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import TensorStep
from dpiframe_core.program.tensor_ops import Map, Reduce, Softmax
from dpiframe_core.program.views import View

IS_FINITE: Expression = ("ne", ("not", ("eq", "x0", -math.inf)), 0.0)


def fuse_softmax_guard(program: Program) -> Program:
    """Let a guarded softmax write what its guard wrote, where nothing else reads it."""
    for step in program.steps:
        if not isinstance(step, TensorStep) or not isinstance(step.op, Map):
            continue
        softmax = _guarded(program, step)
        if softmax is None or program.only_reader(softmax.out) is not step:
            continue
        assert isinstance(softmax.op, Softmax)
        fused = replace(softmax, op=replace(softmax.op, guarded=True), out=step.out)
        steps = [fused if s is softmax else s for s in program.steps if s is not step]
        program = program.changed(steps=tuple(steps))
    return program


def _guarded(program: Program, step: TensorStep) -> TensorStep | None:
    """The softmax that a map passes on but where all of a row is -infinity."""
    assert isinstance(step.op, Map)
    parts = step.op.expression
    if not isinstance(parts, tuple) or parts[0] != "where" or len(step.xs) != 2:
        return None
    condition, nothing, kept = parts[1:]
    if condition not in (("not", "x0"), ("not", "x1")) or kept not in ("x0", "x1"):
        return None
    if kept == condition[1] or not _is_zero(program, step, nothing):
        return None
    place = int(kept[1:])
    softmax, most = _maker(program, step.xs[place]), _maker(program, step.xs[1 - place])
    truths = _maker(program, most.xs[0]) if most is not None else None
    if softmax is None or most is None or truths is None or truths.op != Map(IS_FINITE):
        return None
    if not isinstance(softmax.op, Softmax) or most.op != Reduce("max", softmax.op.axes):
        return None
    x, rows = softmax.operands[0], most.operands[0]
    same = softmax.xs == truths.xs and x == truths.operands[0] and rows.shape == x.shape
    whole = rows.is_whole and step.operands[place].is_whole
    return softmax if same and whole and softmax.out.width == step.out.width else None


def _is_zero(program: Program, step: TensorStep, part: Expression) -> bool:
    """Whether a part of an expression is the number 0, or a constant of zeros."""
    if isinstance(part, str) and int(part[1:]) >= len(step.xs):
        return not np.any(program.weights[step.constants[int(part[1:]) - len(step.xs)]])
    return part == 0.0


def _maker(program: Program, view: View) -> TensorStep | None:
    step = program.producers().get(view)
    return step if isinstance(step, TensorStep) else None
