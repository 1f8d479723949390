"""Interpreter: runs any program with plain torch operations on the CPU.

It is the semantics of a program: in float64 the yardstick of every pass. Ids must be inside their
tables here.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpiframe_core.program.program import Program
from dpiframe_core.program.views import DENSE, State


def run_program(program: Program, ids: Tensor, dense: Tensor) -> Tensor:
    """Logits [B] of ids [F, B] (int64) and dense [N, B], in the type of the weights."""
    weights = {name: as_tensor(weight) for name, weight in program.weights.items()}
    dtype = next((weight.dtype for weight in weights.values()), dense.dtype)
    batch = ids.shape[1]
    buffers = {
        name: torch.full((batch, w), torch.nan, dtype=dtype) for name, w in program.buffers.items()
    }
    buffers[DENSE] = dense.T.to(dtype)
    state = State(buffers, weights, ids)
    for step in program.steps:
        step.run(state)
    return state[program.output].squeeze(1)


def as_tensor(weight: np.ndarray, dtype: type[np.float32] | None = None) -> Tensor:
    """The weight as a contiguous tensor, copied only where it has to be (read-only ones have)."""
    return torch.from_numpy(np.require(weight, dtype, ["C", "W"]))
