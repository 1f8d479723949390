"""Pass: products that read the same input become one wider product.

One launch and one reading of the input instead of several; the outputs are column ranges of one
buffer.
"""

from __future__ import annotations

import numpy as np

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Linear, Step
from dpiframe_core.program.views import View, Weight


def merge_siblings(program: Program) -> Program:
    """Merge every group of Linear steps over one view, each writing a whole buffer."""
    while group := _first_group(program):
        program = _merged(program, group)
    return program


def _first_group(program: Program) -> list[Linear]:
    groups: dict[View, list[Linear]] = {}
    for step in program.steps:
        if not isinstance(step, Linear) or step.out == program.output:
            continue
        if step.out.width == program.buffers[step.out.buffer]:
            groups.setdefault(step.x, []).append(step)
    return next((group for group in groups.values() if len(group) > 1), [])


def _merged(program: Program, group: list[Linear]) -> Program:
    name = "+".join(step.name for step in group)
    weights, buffers = dict(program.weights), dict(program.buffers)
    matrices = [weights[step.weight] for step in group]
    biases = [
        weights[s.bias] if s.bias else np.zeros(w.shape[0], w.dtype)
        for s, w in zip(group, matrices, strict=True)
    ]
    weight, bias = Weight(f"{name}/weight"), Weight(f"{name}/bias")
    weights[weight], weights[bias] = np.concatenate(matrices), np.concatenate(biases)
    start, moved, relu = {}, 0, []
    for step in group:
        start[step.out.buffer] = moved
        relu += [(moved + a, moved + b) for a, b in step.relu]
        moved += step.out.width
    buffers[name] = moved
    out = View(name, 0, moved)
    wide = Linear(name, group[0].x, weight, bias, out, tuple(relu))

    def place(view: View) -> View:
        if view.buffer not in start:
            return view
        return View(name, start[view.buffer] + view.start, view.width)

    steps: list[Step] = []
    for other in program.steps:
        if other is group[0]:
            steps.append(wide)
        elif other not in group:
            steps.append(other.map_views(place))
    return program.changed(steps=tuple(steps), buffers=buffers, weights=weights)
