"""Engines on the GPU and what they are compared with."""

from __future__ import annotations

import model_zoo
import numpy as np

from dpiframe_core.cuda_engine import CudaEngine, CudaOptions, Faults
from dpiframe_core.lowering import DEVICE_PASSES, lower
from dpiframe_core.models import MODELS, Deep, Features
from dpiframe_core.spec import ModelSpec
from dpiframe_core.torch_model import CTRModel

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
POLICIES = ("serial", "depth_first", "breadth_first")

# Largest error of a logit against float64, scaled by max(1, |logit|). fp32 is the promise of every
# engine; the others follow from 10, 10 and 7 bits of mantissa in operands (for 16-bit types also in
# tables and activations). Measured on these models: 1.7e-6, 2.1e-3, 3.6e-3, 2.1e-2.
BOUNDS = {"fp32": 1e-5, "tf32": 1e-2, "fp16": 1e-2, "bf16": 6e-2}


def large_model(name: str, seed: int = 0) -> CTRModel:
    """A model with 12 fields of dim 16 and wide products, whose plans have branches."""
    features = Features(
        model_zoo.fields(16)
        + [
            f.model_copy(update={"name": f"D{i}", "table": f"D{i}"})
            for i, f in enumerate(model_zoo.fields(16)[:5])
        ]
    )
    return model_zoo.random_model(MODELS[name](features, Deep((128, 72, 40))), seed)


def cuda_engine(
    model: CTRModel, passes=DEVICE_PASSES, faults: Faults | None = None, **options
) -> CudaEngine:
    """The model on the GPU."""
    program = lower(model.spec, model.state_dict(), passes)
    return CudaEngine(program, CudaOptions(**options), faults)


def logits(engine: CudaEngine, ids: np.ndarray, dense: np.ndarray) -> np.ndarray:
    """Logits [B] of host arrays; NaN where nothing was written."""
    out = np.full(ids.shape[1], np.nan, np.float32)
    for start in range(0, len(out), engine.max_batch):
        rows = slice(start, start + engine.max_batch)
        engine.run(list(ids[:, rows]), dense[:, rows], False, out[rows])
    return out


def scaled_error(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest error, in terms of max(1, |expected|); infinite where a value is NaN."""
    if len(got) == 0:
        return 0.0
    error = np.abs(got - expected) / np.maximum(1, np.abs(expected))
    return float(np.where(np.isnan(error), np.inf, error).max())


def inputs(spec: ModelSpec, batch: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """ids [F, B] and dense [N, B]."""
    return model_zoo.random_inputs(spec, batch, seed)
