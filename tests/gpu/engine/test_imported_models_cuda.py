"""CTR models in plain PyTorch, imported, on a GPU: against the module in float64."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from imported_models import Imported
from torch_models import MODELS

from dpiframe_core import load_engine, save_bundle
from dpiframe_core.frontend.tracing.capture import traced

# What the engine promises of any model in float32, and what these models keep in 16 bits; of those
# that take logarithms or pick the largest of near numbers a rounding may change all.
FP32, FP16 = 1e-5, 2e-2
SENSITIVE = {"AFN", "CNN", "Features", "TopK"}


@pytest.mark.parametrize("name", MODELS)
def test_scores_as_pytorch_does(name, tmp_path):
    torch.manual_seed(sum(map(ord, name)))
    module, inputs = MODELS[name].make().eval(), MODELS[name].inputs()
    found = Imported(traced(module, inputs))
    save_bundle(tmp_path / "bundle", found.spec, found.weights)
    given = dict(zip(inspect.signature(module.forward).parameters, inputs, strict=True))
    expected = found.logits(given).numpy()
    ids, dense = found.rows(given)
    numbers = None if dense is None else np.ascontiguousarray(dense.float().numpy())
    for precision, bound in (("fp32", FP32), ("fp16", FP16)):
        if precision == "fp16" and name.split("-")[0] in SENSITIVE:
            continue
        engine = load_engine(
            tmp_path / "bundle", device="cuda", precision=precision, max_batch=1024
        )
        got = engine.logits(np.ascontiguousarray(ids.numpy()), numbers)
        engine.close()
        error = np.abs(got - expected) / np.maximum(1, np.abs(expected))
        assert error.max() <= bound, (precision, error.max())
