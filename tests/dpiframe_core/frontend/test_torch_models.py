"""CTR models in plain PyTorch: converted, they score as PyTorch does."""

from __future__ import annotations

import inspect

import pytest
import torch
from imported_models import Imported
from torch_models import MODELS

from dpiframe_core.frontend.tracing.capture import traced
from dpiframe_core.lowering import lower
from dpiframe_core.program.interpreter import run_program


@pytest.mark.parametrize("name", MODELS)
def test_scores_as_pytorch_does(name):
    torch.manual_seed(sum(map(ord, name)))
    module, inputs = MODELS[name].make().eval(), MODELS[name].inputs()
    for buffer in module.buffers():  # statistics of batch norms that matter
        if buffer.is_floating_point() and name != "Features":
            buffer.data = torch.rand_like(buffer) + 0.5
    found = Imported(traced(module, inputs), torch.float64)

    assert all(bool(weight.isfinite().all()) for weight in found.weights.values())
    names = list(inspect.signature(module.forward).parameters)
    ids, dense = found.rows(dict(zip(names, inputs, strict=True)))
    logits = found.logits(dict(zip(names, inputs, strict=True)))
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    with torch.no_grad():
        expected = module.double()(*wide).reshape(-1)
    ends_in_sigmoid = bool(((expected - logits.sigmoid()).abs() < 1e-6).all())
    scores = logits.sigmoid() if ends_in_sigmoid else logits
    # Both in float64, with sums in another order.
    assert (scores - expected).abs().max() <= 1e-9 * expected.abs().max().clamp(min=1)

    program = lower(found.spec, found.weights)
    nothing = torch.zeros(0, ids.shape[1], dtype=torch.float64)
    lowered = run_program(program, ids, nothing if dense is None else dense)
    assert (lowered - logits).abs().max() <= 1e-9 * logits.abs().max().clamp(min=1)
