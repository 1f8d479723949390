"""Pass for a device: products write whole groups of columns, whatever their number.

A product's kernel stores 16 bytes at a time where the number of its columns allows; else it stores
them one by one, which takes several times as long. Rows of a buffer are padded on a device anyway:
where a product's output ends its buffer, rows of zeros at the end of the weight fill the padding.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpiframe_core.lowering.device.align_columns import ALIGNMENT
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import FusedLinear, Linear, Step
from dpiframe_core.program.views import View, Weight


def pad_products(program: Program) -> Program:
    """Pad the weight and the bias of every such product."""
    steps = list[Step]()
    buffers, weights = dict(program.buffers), dict(program.weights)
    for step in program.steps:
        out = step.out if isinstance(step, (Linear, FusedLinear)) else None
        missing = -(out.start + out.width) % ALIGNMENT if out else 0
        if out is None or not missing or out.buffer == program.output.buffer or out.width == 1:
            steps.append(step)
            continue
        if out.start + out.width != buffers[out.buffer] or out.start % ALIGNMENT:
            steps.append(step)
            continue
        assert isinstance(step, (Linear, FusedLinear))
        buffers[out.buffer] += missing
        weight = Weight(f"{step.name}/padded_weight")
        weights[weight] = np.pad(weights[step.weight], ((0, missing), (0, 0)))
        bias = None
        if step.bias:
            bias = Weight(f"{step.name}/padded_bias")
            weights[bias] = np.pad(weights[step.bias], (0, missing))
        wider = View(out.buffer, out.start, out.width + missing)
        steps.append(replace(step, weight=weight, bias=bias, out=wider))
    return program.changed(steps=tuple(steps), buffers=buffers, weights=weights)
