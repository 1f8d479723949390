"""Pass: everything between the branches and the logit becomes one step.

The logit is a sum; each summand is traced back: a product with one output is a dot of its input; a
dot of a concat is the dots of its parts (so that the concat is not needed); a dot of a scaled
vector, h . (alpha x0 + beta), is alpha (h . x0) + h . beta, where h . x0 is one more column of a
product of x0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Add, Copy, Head, Linear, ScaleShift, Step
from dpiframe_core.program.views import View, Weight


@dataclass
class _Terms:
    dots: list[tuple[View, np.ndarray]] = field(default_factory=list)
    scalars: list[View] = field(default_factory=list)
    products: list[tuple[View, View, np.ndarray]] = field(default_factory=list)
    bias: np.ndarray = field(default_factory=lambda: np.zeros(1))


def fuse_head(program: Program) -> Program:
    """Replace the steps that only sum up into the logit by one Head."""
    terms = _Terms()
    _trace(program.output, program, program.producers(), terms)
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
