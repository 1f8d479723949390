"""Pass: DCN's cross network becomes one skinny product, a scalar recurrence and one scaling.

Every layer keeps the form x_l = alpha_l x0 + beta_l, alpha_l one number a sample, beta_l the same
for all samples, since with d_l = x0 . w_l
    x_{l+1} = x0 (alpha_l d_l + beta_l . w_l) + b_l + x_l
so alpha_{l+1} = alpha_l (1 + d_l) + beta_l . w_l and beta_{l+1} = beta_l + b_l. The d_l are one
product x0 [w_0 .. w_{L-1}]^T: 2 W L FLOP a sample, and no intermediate of width W.
"""

from __future__ import annotations

import numpy as np

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import CrossScalar, CrossV1, Linear, ScaleShift, Step
from dpiframe_core.program.views import View, Weight


def collapse_cross_v1(program: Program) -> Program:
    """Collapse every chain of CrossV1 steps over one x0."""
    steps: list[Step] = []
    buffers, weights = dict(program.buffers), dict(program.weights)
    chains = {chain[-1].name: chain for chain in _chains(program)}
    inner = {step.name for chain in chains.values() for step in chain}
    for step in program.steps:
        if step.name in chains:
            steps += _collapsed(chains[step.name], buffers, weights)
        elif step.name not in inner:
            steps.append(step)
    return program.changed(steps=tuple(steps), buffers=buffers, weights=weights)


def _chains(program: Program) -> list[list[CrossV1]]:
    """Runs of layers: the first reads x0 as x_l, each next one alone reads the one before."""
    by_input = {s.xl: s for s in program.steps if isinstance(s, CrossV1)}
    chains = []
    for first in [s for s in program.steps if isinstance(s, CrossV1) and s.xl == s.x0]:
        chain = [first]
        while program.only_reader(chain[-1].out) is by_input.get(chain[-1].out, first):
            following = by_input[chain[-1].out]
            if following.x0 != first.x0:
                break
            chain.append(following)
        chains.append(chain)
    return chains


def _collapsed(
    chain: list[CrossV1], buffers: dict[str, int], weights: dict[str, np.ndarray]
) -> list[Step]:
    x0, name = chain[0].x0, chain[0].name
    dots_weight = np.concatenate([weights[layer.weight] for layer in chain])
    beta = np.zeros(x0.width)
    shifts = []
    for layer in chain:
        shifts.append(beta @ weights[layer.weight][0])
        beta = beta + weights[layer.bias]
    made = {
        "dots": dots_weight,
        "shift": np.array(shifts, dots_weight.dtype),
        "beta": beta.astype(dots_weight.dtype),
    }
    names = {part: Weight(f"{name}/{part}") for part in made}
    weights.update({names[part]: values for part, values in made.items()})
    dots, alpha = View(f"{name}.dots", 0, len(chain)), View(f"{name}.alpha", 0, 1)
    buffers[dots.buffer], buffers[alpha.buffer] = dots.width, 1
    return [
        Linear(dots.buffer, x0, names["dots"], None, dots),
        CrossScalar(alpha.buffer, dots, names["shift"], alpha),
        ScaleShift(chain[-1].name, x0, alpha, names["beta"], chain[-1].out),
    ]
