"""Models nobody tuned for, drawn by a seed: any model, 1 to 200 fields, dims 1 to 128; and how far
a logit of theirs may be from float64's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from model_zoo import random_model

from dpiframe_core.engine.precision import FM_BOUNDS, LOGIT_BOUNDS
from dpiframe_core.model.builtin import Deep, Features, dcn, dcnv2, deepfm, wdl
from dpiframe_core.model.spec import FieldSpec, ModelSpec
from dpiframe_core.model.torch_module import CTRModel

# Fields and dim whose FM rounds by more than the bound of all else.
WIDE_FM = [(64, 96), (200, 7), (100, 40), (26, 128)]
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


def wide_fm(fields: int, dim: int) -> ModelSpec:
    """DeepFM with so many numbers in its FM."""
    rows = [FieldSpec(name=f"C{i}", rows=111, dim=dim) for i in range(fields)]
    return deepfm(Features(rows, ["I1", "I2"]), Deep((33,)))


def random_weights(spec: ModelSpec, seed: int) -> CTRModel:
    """Embeddings of deviation 0.3, cross layers that do not grow."""
    model = random_model(spec, seed)
    for name, tensor in model.state_dict().items():
        if name.startswith("cross/") and tensor.ndim == 2:
            tensor.mul_(0.5)
    return model


def error_bound(
    model: CTRModel, precision: str, ids: np.ndarray, dense: np.ndarray, logits: np.ndarray
) -> np.ndarray:
    """What is promised of each logit [B] (docs/engine.md, "Precision")."""
    rest = LOGIT_BOUNDS[precision] * np.maximum(1, np.abs(logits))
    return rest + FM_BOUNDS[precision] * fm_magnitude(model, ids, dense)


def fm_magnitude(model: CTRModel, ids: np.ndarray, dense: np.ndarray) -> np.ndarray:
    """sum_f sum_d |v_fd| |s_d - v_fd| [B], s the sum of FM's v over the fields; 0 without FM."""
    if "fm" not in {module.name for module in model.spec.modules}:
        return np.zeros(ids.shape[1])
    vectors = list(_fm_vectors(model, ids, dense))
    total = sum(vectors)
    return sum((v * (total - v)).abs().sum(1).double() for v in vectors).numpy()


def _fm_vectors(model: CTRModel, ids: np.ndarray, dense: np.ndarray) -> Iterator[torch.Tensor]:
    """[B, D] of each field and each dense feature that is one."""
    weights = model.state_dict()
    for field, column in zip(model.spec.fields, ids, strict=True):
        yield weights[f"embedding/tables/{field.table}"][torch.from_numpy(column)]
    for numbers, row in zip(dense, weights.get("dense_fields/weight", ()), strict=False):
        yield torch.from_numpy(numbers)[:, None] * row
