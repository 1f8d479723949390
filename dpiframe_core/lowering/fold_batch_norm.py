"""Pass: a batch normalisation after a product becomes part of the product's weights.

With s = weight / sqrt(var + eps): (Wx + b - mean) s + beta = (sW) x + (s (b - mean) + beta).
The folded weights are computed in float64 and rounded once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpiframe_core.errors import SpecError
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import BatchNorm, Linear
from dpiframe_core.program.views import Weight


def fold_batch_norm(program: Program) -> Program:
    """Fold every BatchNorm whose input is a whole Linear that nothing else reads."""
    made_by, weights = program.producers(), dict(program.weights)
    steps = {step.name: step for step in program.steps}
    for bn in [s for s in program.steps if isinstance(s, BatchNorm)]:
        linear = made_by.get(bn.x)
        if not isinstance(linear, Linear) or linear.relu or program.only_reader(bn.x) is not bn:
            continue
        scale, beta, mean, var = (weights[part].astype(np.float64) for part in bn.parts)
        if not (var >= 0).all():
            raise SpecError(f"{bn.name}: a variance is below 0: {var.min():g}")
        scale = scale / np.sqrt(var + bn.eps)
        weight = weights[linear.weight]
        bias = weights[linear.bias].astype(np.float64) if linear.bias else np.zeros_like(mean)
        names = Weight(f"{linear.name}/folded_weight"), Weight(f"{linear.name}/folded_bias")
        weights[names[0]] = (weight.astype(np.float64) * scale[:, None]).astype(weight.dtype)
        weights[names[1]] = ((bias - mean) * scale + beta).astype(weight.dtype)
        steps[bn.name] = replace(linear, weight=names[0], bias=names[1], out=bn.out)
        del steps[linear.name]
    return program.changed(steps=tuple(steps.values()), weights=weights)
