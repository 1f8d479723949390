"""Pass for a device: a lookup's sums get buffers of their own, which hold float32 in any precision.

Where such a sum is a column of a wider buffer, or an operand of a product, a Copy takes it there.
"""

from __future__ import annotations

from dataclasses import replace

from dpiframe_core.program import Copy, FusedLinear, Linear, Lookup, Program, Step, View, changed


def separate_scalars(program: Program) -> Program:
    """Separate the FM term and the wide sum of each Lookup."""
    steps: list[Step] = []
    buffers = dict(program.buffers)
    products = [s for s in program.steps if isinstance(s, (Linear, FusedLinear))]
    operands = {view.buffer for s in products for view in s.reads()}
    for step in program.steps:
        if not isinstance(step, Lookup):
            steps.append(step)
            continue
        copies = []
        for part in ("fm_out", "wide_out"):
            view: View | None = getattr(step, part)
            if view is None or (buffers[view.buffer] == 1 and view.buffer not in operands):
                continue
            own = View(f"{step.name}.{part}", 0, 1)
            buffers[own.buffer] = 1
            copies.append(Copy(f"{step.name}.{part}.copy", own, view))
            step = replace(step, **{part: own})
        steps += [step, *copies]
    return changed(program, steps=tuple(steps), buffers=buffers)
