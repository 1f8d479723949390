"""Specs, weights and inputs that several tests share: every built-in model in every form."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import torch

from dpiframe_core import FieldSpec, ModelSpec
from dpiframe_core.model.builtin import Deep, Features, dcn, dcnv2, deepfm, wdl
from dpiframe_core.model.torch_module import CTRModel

ROWS = (1, 2, 7, 19, 111, 1000, 3)


def fields(dims: int | tuple[int, ...]) -> list[FieldSpec]:
    """Seven fields of odd sizes; `dims` one width for all or one each."""
    widths = (dims,) * len(ROWS) if isinstance(dims, int) else dims
    return [
        FieldSpec(name=f"C{i}", rows=rows, dim=dim)
        for i, (rows, dim) in enumerate(zip(ROWS, widths, strict=True))
    ]


def all_specs() -> dict[str, ModelSpec]:
    """Every model x dense form x batch norm x dim, by a name that says which."""
    specs = {}
    dense = ["I1", "I2", "I3"]
    mixed = (1, 10, 16, 64, 4, 7, 2)
    for dim, dense_as, bn in itertools.product((1, 10, 16, 64), ("field", "raw", None), (0, 1)):
        features = Features(fields(dim), dense if dense_as else [], dense_as or "field")
        for name, spec in _models(features, bool(bn)).items():
            specs[f"{name}-d{dim}-{dense_as or 'onehot'}{'-bn' if bn else ''}"] = spec
    for dense_as in ("raw", None):
        features = Features(fields(mixed), dense if dense_as else [], "raw")
        for name, spec in _models(features, True).items():
            specs[f"{name}-mixed-{dense_as or 'onehot'}-bn"] = spec
    return specs


def _models(features: Features, batch_norm: bool) -> dict[str, ModelSpec]:
    deep = Deep(hidden=(33, 20, 5), batch_norm=batch_norm, dropout=0.2)
    models = {
        "wdl": wdl(features, deep),
        "dcn": dcn(features, deep),
        "dcn_stacked": dcn(features, deep, structure="stacked"),
        "dcnv2": dcnv2(features, deep),
        "dcnv2_stacked": dcnv2(features, deep, structure="stacked"),
        "dcnv2_cross_only": dcnv2(features, deep, structure="cross_only"),
    }
    if len({f.dim for f in features.fields}) == 1:
        models["deepfm"] = deepfm(features, deep)
    return models


def random_model(spec: ModelSpec, seed: int = 0) -> CTRModel:
    """A model whose every weight is random and matters, batch statistics included."""
    model = CTRModel(spec, seed).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("bn/var"):
            tensor.copy_(noise.square() + 0.3)
        elif "tables" in name or tensor.ndim == 1 or "dense" in name:
            tensor.copy_(0.3 * noise)
        else:
            tensor.copy_(noise / tensor.shape[1] ** 0.5)
    return model


def random_inputs(spec: ModelSpec, batch: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """ids [F, B] int64 with first and last ids among them, dense [N, B] float32."""
    rng = np.random.default_rng(seed)
    ids = np.array([rng.integers(0, f.rows, batch) for f in spec.fields], np.int64)
    ids = ids.reshape(len(spec.fields), batch)
    if batch > 2:
        ids[:, 0] = 0
        ids[:, 1] = [f.rows - 1 for f in spec.fields]
    return ids, rng.standard_normal((len(spec.dense), batch)).astype(np.float32)


def reference_logits(model: CTRModel, ids: np.ndarray, dense: np.ndarray) -> np.ndarray:
    """Logits [B] of the unlowered model in float64."""
    double = copy.deepcopy(model).double().eval()
    with torch.no_grad():
        return double(torch.from_numpy(ids), torch.from_numpy(dense).double()).numpy()
