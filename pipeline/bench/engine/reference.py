"""What the logits should be: the model in float64, step by step, without any fusion."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dpiframe_core import ModelSpec
from dpiframe_core.lowering import lower
from dpiframe_core.program.interpreter import run_program
from pipeline.bench.engine.cases import Batch
from pipeline.bench.engine.random_data import TABLE_MARK

SAMPLES = 256  # that are compared


def exact_logits(spec: ModelSpec, weights: Mapping[str, Tensor], batch: Batch) -> np.ndarray:
    """Logits of the batch's first SAMPLES samples, by plain steps in float64."""
    wide = {n: w if _is_large(n, w) else w.double() for n, w in weights.items()}
    # The first weight says what type the interpreter computes in; wide tables stay in theirs.
    ordered = dict(sorted(wide.items(), key=lambda item: item[1].dtype != torch.float64))
    ids = torch.from_numpy(batch.ids[:, :SAMPLES].astype(np.int64))
    program = lower(spec, ordered, ())
    dense = torch.from_numpy(batch.dense[:, :SAMPLES])
    found: np.ndarray = run_program(program, ids, dense).numpy()
    return found


def _is_large(name: str, weight: Tensor) -> bool:
    return TABLE_MARK in name and weight.shape[1] > 1
