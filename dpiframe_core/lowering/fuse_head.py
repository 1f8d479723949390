"""Pass: everything between the branches and the logit becomes one step.

The logit is a sum; each summand is traced back: a product with one output is a dot of its input; a
dot of a concat is the dots of its parts (so that the concat is not needed); a dot of a scaled
vector, h . (alpha x0 + beta), is alpha (h . x0) + h . beta, where h . x0 is one more column of a
product of x0. A scale and a shift of the sum, such as a calibration, go into the summands' weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dpiframe_core.program.expression import Expression
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import (
    Add,
    Copy,
    Head,
    Linear,
    Lookup,
    ScaleShift,
    Step,
    TensorStep,
)
from dpiframe_core.program.tensor_ops import Map, Operand
from dpiframe_core.program.views import View, Weight


@dataclass
class _Terms:
    dots: list[tuple[View, np.ndarray]] = field(default_factory=list)
    scalars: list[View] = field(default_factory=list)
    products: list[tuple[View, View, np.ndarray]] = field(default_factory=list)
    bias: np.ndarray = field(default_factory=lambda: np.zeros(1))


def fuse_head(program: Program) -> Program:
    """Replace the steps that only sum up into the logit by one Head."""
    program, terms = _terms(program)
    buffers, weights = dict(program.buffers), dict(program.weights)
    dtype = next((weight.dtype for weight in weights.values()), np.dtype(np.float32))
    dots, products, steps = [], [], list(program.steps)
    for i, (view, row) in enumerate(terms.dots):
        weights[name := Weight(f"head.logit/dot{i}")] = row
        dots.append((view, name))
    for i, (alpha, x, row) in enumerate(terms.products):
        weights[name := Weight(f"head.logit/product{i}")] = row[None, :]
        dot = View(f"head.logit.product{i}", 0, 1)
        buffers[dot.buffer] = 1
        steps.append(Linear(dot.buffer, x, name, None, dot))
        products.append((alpha, dot))
    bias = None
    if terms.bias.item() != 0.0:
        weights[bias := Weight("head.logit/bias")] = terms.bias.astype(dtype)
    out = View("head.logit", 0, 1)
    buffers[out.buffer] = 1
    steps.append(Head("head.logit", tuple(dots), tuple(terms.scalars), tuple(products), bias, out))
    return program.changed(steps=tuple(steps), buffers=buffers, weights=weights, output=out)


def _terms(program: Program) -> tuple[Program, _Terms]:
    """What the logit is the sum of; a last step that scales and shifts it is left out, where the
    weights can take that over: not those of an FM term, which is no linear function of them.
    """
    made_by, terms = program.producers(), _Terms()
    last = made_by.get(program.output)
    straight = _straight(last)
    if straight is None or not isinstance(last, TensorStep):
        _trace(program.output, program, made_by, terms)
        return program, terms
    scale, shift = straight
    _trace(last.xs[0], program, made_by, terms)
    scaled = program if scale == 1 else _with_scaled_sums(program, terms.scalars, scale)
    if scaled is None:
        terms = _Terms(scalars=[program.output])
        return program, terms
    terms.dots = [(x, row * row.dtype.type(scale)) for x, row in terms.dots]
    terms.products = [(a, x, row * row.dtype.type(scale)) for a, x, row in terms.products]
    terms.bias = terms.bias * scale + shift
    return scaled, terms


def _straight(step: Step | None) -> tuple[float, float] | None:
    """(scale, shift) of a step that does no more than that to one number a sample."""
    if not isinstance(step, TensorStep) or not isinstance(step.op, Map) or len(step.xs) != 1:
        return None
    if step.operands != (Operand.whole(1),) or step.xs[0].width != 1:
        return None
    return _line(step.op.expression)


def _line(expression: Expression) -> tuple[float, float] | None:
    """(scale, shift) of `add(mul(x0, scale), shift)`."""
    match expression:
        case ("add", ("mul", "x0", float(scale)), float(shift)):
            return scale, shift
    return None


def _with_scaled_sums(program: Program, sums: Sequence[View], scale: float) -> Program | None:
    """The program with wide sums of scaled weights; None where one of the sums is another, or is
    read elsewhere, too.
    """
    if any(len(program.readers(view)) > 1 for view in sums):
        return None
    steps, weights = list(program.steps), dict(program.weights)
    for i, step in enumerate(steps):
        if isinstance(step, Lookup) and step.wide_out in sums:
            slots = []
            for slot in step.slots:
                name = None
                if slot.wide is not None:
                    table = weights[slot.wide]
                    weights[name := Weight(f"{slot.wide}/scaled")] = table * table.dtype.type(scale)
                slots.append(replace(slot, wide=name))
            steps[i] = replace(step, slots=tuple(slots))
    made = [step.wide_out for step in steps if isinstance(step, Lookup)]
    if any(view not in made for view in sums):
        return None
    return program.changed(steps=tuple(steps), weights=weights)


def _trace(view: View, program: Program, made_by: dict[View, Step], terms: _Terms) -> None:
    """Add what makes the summand `view` [B, 1] to the terms."""
    step = made_by.get(view)
    if isinstance(step, Add):
        for x in step.xs:
            _trace(x, program, made_by, terms)
        terms.bias = terms.bias + _scalar(program, step.bias)
    elif isinstance(step, Linear) and not step.relu and view.width == 1:
        _dot(step.x, program.weights[step.weight][0], program, made_by, terms)
        terms.bias = terms.bias + _scalar(program, step.bias)
    else:
        terms.scalars.append(view)


def _dot(
    x: View,
    row: np.ndarray,
    program: Program,
    made_by: dict[View, Step],
    terms: _Terms,
) -> None:
    """Add the summand x . row."""
    step = made_by.get(x)
    parts = [s for s in program.steps if isinstance(s, Copy) and s.out.overlaps(x)]
    if isinstance(step, ScaleShift):
        terms.products.append((step.alpha, step.x, row))
        terms.bias = terms.bias + program.weights[step.beta].astype(np.float64) @ row
    elif parts and sum(p.out.width for p in parts) == x.width == program.buffers[x.buffer]:
        for part in parts:
            _dot(part.x, row[part.out.start :][: part.out.width], program, made_by, terms)
    else:
        terms.dots.append((x, np.ascontiguousarray(row)))


def _scalar(program: Program, bias: Weight | None) -> np.ndarray | float:
    return program.weights[bias].astype(np.float64) if bias else 0.0
