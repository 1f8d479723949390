"""What the logits should be: the model in float64, step by step, without any fusion."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dpiframe_core import ModelSpec
from dpiframe_core.lowering import lower
from dpiframe_core.program.interpreter import run_program
from pipeline.bench.cases.engine_case import Batch
from pipeline.bench.cases.random_data import TABLE_MARK

SAMPLES = 256  # that are compared


def exact_logits(
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    batch: Batch,
    rounded_to: torch.dtype | None = None,
) -> np.ndarray:
    """Logits of the batch's first SAMPLES samples, by plain steps in float64. `rounded_to`: the
    matrices among the weights are rounded to this type first.
    """

    def widened(name: str, weight: Tensor) -> Tensor:
        if rounded_to is not None and weight.ndim > 1:
            weight = weight.to(rounded_to)
        return weight if _is_large(name, weight) else weight.double()

    wide = {n: widened(n, w) for n, w in weights.items()}
    # The first weight says what type the interpreter computes in; wide tables stay in theirs.
    ordered = dict(sorted(wide.items(), key=lambda item: item[1].dtype != torch.float64))
    ids = torch.from_numpy(batch.ids[:, :SAMPLES].astype(np.int64))
    program = lower(spec, ordered, ())
    dense = torch.from_numpy(batch.dense[:, :SAMPLES])
    found: np.ndarray = run_program(program, ids, dense).numpy()
    return found


def _is_large(name: str, weight: Tensor) -> bool:
    return TABLE_MARK in name and weight.shape[1] > 1
