"""Pass: a softmax of what cannot be -infinity loses the guard that makes its rows 0 where all is.

torch.export writes scaled_dot_product_attention, and so nn.MultiheadAttention, as

    where(not any(not x == -inf), 0, softmax(x))

which is softmax(x) where nothing masks x: a product of finite numbers, scaled or with a bias.
"""

from __future__ import annotations

import math

import numpy as np

from dpiframe_core.program.expression import Expression
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Copy, Linear, LinearRows, Lookup, Step, TensorStep
from dpiframe_core.program.tensor_ops import Join, LayerNorm, Map, MatMul, Reduce, Softmax, Take
from dpiframe_core.program.views import View

# Functions whose results are finite where what they are given is.
FINITE = {"add", "sub", "mul", "neg", "abs", "relu", "sigmoid", "tanh", "erf", "min", "max"}
IS_FINITE: Expression = ("ne", ("not", ("eq", "x0", -math.inf)), 0.0)


def drop_softmax_guards(program: Program) -> Program:
    """Let what reads a guarded softmax read the softmax."""
    for name in [step.name for step in program.steps]:
        step = next((s for s in program.steps if s.name == name), None)
        softmax = _guarded(program, step) if isinstance(step, TensorStep) else None
        if softmax is None or not isinstance(step, TensorStep):
            continue
        out, found = step.out, softmax.out
        read = [v for s in program.readers(out) for v in s.reads() if v.overlaps(out)]
        if program.output.overlaps(out) or not all(out.contains(v) for v in read):
            continue

        def moved(view: View, out: View = out, found: View = found) -> View:
            if not out.contains(view):
                return view
            return View(found.buffer, found.start + view.start - out.start, view.width)

        steps = [s.map_views(moved) for s in program.steps if s is not step]
        program = program.changed(steps=tuple(steps))
    return program


def _guarded(program: Program, step: TensorStep) -> TensorStep | None:
    """The softmax that a step passes on but where all of a row is -infinity, which it never is."""
    if not isinstance(step.op, Map):
        return None
    parts = step.op.expression
    if not isinstance(parts, tuple) or parts[0] != "where" or len(step.xs) != 2:
        return None
    condition, _, kept = parts[1:]
    if condition not in (("not", "x0"), ("not", "x1")) or kept not in ("x0", "x1"):
        return None
    place = int(kept[1:])
    softmax, most = _maker(program, step.xs[place]), _maker(program, step.xs[1 - place])
    if softmax is None or most is None or f"x{1 - place}" != condition[1]:
        return None
    truths = _maker(program, most.xs[0])
    if not isinstance(softmax.op, Softmax) or not isinstance(most.op, Reduce) or truths is None:
        return None
    is_any = most.op.function == "max" and truths.op == Map(IS_FINITE)
    whole = step.operands[place].is_whole and truths.operands[0].is_whole
    same = is_any and whole and softmax.xs == truths.xs and softmax.out.width == step.out.width
    return softmax if same and _is_finite(program, softmax.xs[0], {}) else None


def _maker(program: Program, view: View) -> TensorStep | None:
    step = program.producers().get(view)
    return step if isinstance(step, TensorStep) else None


def _is_finite(program: Program, view: View, known: dict[View, bool]) -> bool:
    """Whether a view is made of finite numbers by products, sums and the like."""
    if view not in known:
        makers = [s for s in program.steps if any(v.overlaps(view) for v in s.writes())]
        known[view] = bool(makers) and all(_makes_finite(program, s, known) for s in makers)
    return known[view]


def _makes_finite(program: Program, step: Step, known: dict[View, bool]) -> bool:
    if not isinstance(step, (TensorStep, Copy)):
        return isinstance(step, (Linear, LinearRows, Lookup))
    if isinstance(step, TensorStep):
        if not isinstance(step.op, (Map, MatMul, LayerNorm, Softmax, Reduce, Join, Take)):
            return False
        if isinstance(step.op, Map) and not _keeps_finite(step.op.expression):
            return False
        if not all(np.isfinite(program.weights[name]).all() for name in step.constants):
            return False
    return all(_is_finite(program, x, known) for x in step.reads())


def _keeps_finite(expression: Expression) -> bool:
    if isinstance(expression, tuple):
        function, *parts = expression
        by_number = function == "div" and isinstance(parts[1], float) and parts[1] != 0.0
        known = function in FINITE or by_number
        return known and all(_keeps_finite(part) for part in parts)
    return isinstance(expression, str) or math.isfinite(expression)
