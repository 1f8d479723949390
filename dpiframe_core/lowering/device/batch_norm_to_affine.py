"""Pass for a device: a batch normalisation that no product took is one multiplication and one
addition, whose numbers are worked out here in float64 and rounded once.
"""

from __future__ import annotations

import numpy as np

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Affine, BatchNorm, Step
from dpiframe_core.program.views import Weight


def batch_norm_to_affine(program: Program) -> Program:
    """Replace every BatchNorm."""
    weights, steps = dict(program.weights), list[Step]()
    for step in program.steps:
        if not isinstance(step, BatchNorm):
            steps.append(step)
            continue
        dtype = weights[step.parts[0]].dtype
        weight, bias, mean, var = (weights[part].astype(np.float64) for part in step.parts)
        factor = weight / np.sqrt(var + step.eps)
        scale, shift = Weight(f"{step.name}/scale"), Weight(f"{step.name}/shift")
        weights[scale] = factor.astype(dtype)
        weights[shift] = (bias - mean * factor).astype(dtype)
        steps.append(Affine(step.name, step.x, scale, shift, step.out))
    return program.changed(steps=tuple(steps), weights=weights)
