"""Models nobody tuned for, drawn by a seed: any model, 1 to 200 fields, dims 1 to 128, odd batches.

`DPIFRAME_RANDOM_SPECS=500 python -m pytest tests/gpu/engine/test_random_specs_cuda.py` draws more.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from cuda_cases import BOUNDS, PRECISIONS, Batch, batches, check_on_device, cuda_engine, logits
from model_zoo import random_model

from dpiframe_core.engine.precision import HALF_PRECISIONS
from dpiframe_core.model.builtin import Deep, Features, dcn, dcnv2, deepfm, wdl
from dpiframe_core.model.spec import FieldSpec, ModelSpec
from dpiframe_core.model.torch_module import CTRModel

COUNT = int(os.environ.get("DPIFRAME_RANDOM_SPECS", "40"))
MOST_X0 = 4096  # columns: wider cross networks take minutes in float64


def random_spec(seed: int) -> ModelSpec:
    """A spec of any built-in model."""
    rng = np.random.default_rng(seed)
    num_fields = int(rng.choice([1, 2, 3, 7, 19, 26, 39, 64, 100, 200]))
    dim = int(rng.choice([1, 2, 3, 4, 7, 8, 10, 16, 24, 32, 33, 64, 96, 128]))
    dim = max(1, min(dim, MOST_X0 // num_fields))
    model = str(rng.choice(["wdl", "deepfm", "dcn", "dcnv2"]))
    mixed = model != "deepfm" and rng.random() < 0.3
    dims = rng.integers(1, dim + 1, num_fields) if mixed else np.full(num_fields, dim)
    fields = [
        FieldSpec(name=f"C{i}", rows=int(rng.choice([1, 2, 7, 111, 5000])), dim=int(d))
        for i, d in enumerate(dims)
    ]
    dense = [f"I{i}" for i in range(int(rng.choice([0, 0, 1, 3, 13])))]
    dense_as = "raw" if mixed or rng.random() < 0.5 else "field"
    features = Features(fields, dense, dense_as)
    hidden = tuple(int(h) for h in rng.choice([1, 5, 33, 64, 128, 400, 520], rng.integers(1, 5)))
    deep = Deep(hidden, batch_norm=bool(rng.random() < 0.3))
    if model in ("wdl", "deepfm"):
        return (wdl if model == "wdl" else deepfm)(features, deep)
    structure = rng.choice(["parallel", "stacked", "cross_only"])
    layers = int(rng.integers(1, 5))
    return (dcn if model == "dcn" else dcnv2)(features, deep, layers, structure)


def fm_magnitude(model: CTRModel, batch: Batch) -> np.ndarray:
    """1/2 sum_d (sum_f |v_fd|)^2 [B]: what the terms of FM add up to without their signs."""
    if "fm" not in {module.name for module in model.spec.modules}:
        return np.zeros(batch.size)
    weights, total = model.state_dict(), 0.0
    for field, ids in zip(model.spec.fields, batch.ids, strict=True):
        total = total + weights[f"embedding/tables/{field.table}"].abs()[torch.from_numpy(ids)]
    if "dense_fields/weight" in weights:
        total = (
            total + torch.from_numpy(np.abs(batch.dense.T)) @ weights["dense_fields/weight"].abs()
        )
    return 0.5 * total.double().square().sum(1).numpy()


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_random_spec_is_within_its_bounds(seed):
    spec = random_spec(seed)
    rng = np.random.default_rng(seed)
    model = random_model(spec, seed)
    for name, tensor in model.state_dict().items():  # sums of about 1, as training leaves them
        if "tables" in name or "dense" in name:
            tensor.mul_(len(spec.fields) ** -0.5)
        elif name.startswith("cross/") and tensor.ndim == 2:
            tensor.mul_(0.5)
    sizes = [1, int(rng.integers(2, 128)), int(rng.integers(128, 9000))]
    cases = batches(model, sizes, seed)
    for precision in PRECISIONS:
        engine = cuda_engine(model, precision=precision, max_batch=max(sizes))
        for case in cases:
            engine.poison()
            got = logits(engine, case.ids, case.dense)
            size = np.maximum(1, np.abs(case.logits))
            if (
                precision in HALF_PRECISIONS
            ):  # FM's terms cancel, the rounding of its tables does not
                size = np.maximum(size, fm_magnitude(model, case))
            error = np.abs(got - case.logits) / size
            assert error.max() < BOUNDS[precision], f"{spec.name} {precision} batch {case.size}"
        check_on_device(engine, cases[1])
        engine.close()
