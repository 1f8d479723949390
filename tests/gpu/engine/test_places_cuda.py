"""Products at the places of an axis, in one launch: against the module in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from placed_models import placed_models

from dpiframe_core import from_torch, load_engine, save_bundle
from dpiframe_core.engine.cuda.places import PlacedLinear
from dpiframe_core.engine.precision import LOGIT_BOUNDS


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("name", placed_models())
def test_scores_as_the_module(name, precision, tmp_path):
    module = placed_models()[name].eval()
    imported = from_torch(module, torch.tensor([1, 2]), precisions=())
    save_bundle(tmp_path / "bundle", imported.spec, imported.weights)
    engine = load_engine(tmp_path / "bundle", device="cuda", precision=precision, max_batch=20_000)
    steps = engine._backend.program.steps
    assert any(isinstance(step, PlacedLinear) for step in steps) == (precision != "fp32")
    random = np.random.default_rng(7)
    for batch in (1, 63, 130, 1024, 8191, 20_000):
        ids = random.integers(0, 19, (1, batch))
        with torch.no_grad():
            wanted = module.double()(torch.from_numpy(ids[0])).numpy()[:, 0]
        got = engine.logits(ids, None)
        error = np.abs(got - wanted) / np.maximum(1, np.abs(wanted))
        assert error.max() <= LOGIT_BOUNDS[precision], (batch, error.max())
    engine.close()
