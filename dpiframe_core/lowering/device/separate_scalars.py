"""Pass for a device: a lookup's sums get buffers of their own, which hold float32 in any precision.

Where such a sum is a column of a wider buffer, or an operand of a product, a Copy takes it there.
"""

from __future__ import annotations

from dataclasses import replace

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Copy, FusedLinear, Linear, Lookup, MappedLinear, Step
from dpiframe_core.program.views import View


def separate_scalars(program: Program) -> Program:
    """Separate the FM term and the wide sum of each Lookup."""
    steps: list[Step] = []
    buffers = dict(program.buffers)
    products = [s for s in program.steps if isinstance(s, (Linear, FusedLinear, MappedLinear))]
    operands = {view.buffer for s in products for view in s.reads()}
    for step in program.steps:
        if not isinstance(step, Lookup):
            steps.append(step)
            continue
        copies: list[Step] = []
        own: dict[View, View] = {}
        for view in (step.fm_out, step.wide_out):
            if view is None or (buffers[view.buffer] == 1 and view.buffer not in operands):
                continue
            own[view] = View(f"{step.name}.scalar{len(own)}", 0, 1)
            buffers[own[view].buffer] = 1
            copies.append(Copy(f"{own[view].buffer}.copy", own[view], view))
        fm_out = step.fm_out and own.get(step.fm_out, step.fm_out)
        wide_out = step.wide_out and own.get(step.wide_out, step.wide_out)
        steps += [replace(step, fm_out=fm_out, wide_out=wide_out), *copies]
    return program.changed(steps=tuple(steps), buffers=buffers)
