"""Models of FuxiCTR and DeepCTR-Torch, carried over weight by weight: the engine gives the logits
that those libraries computed themselves.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpiframe_core import FieldSpec, ModelSpec, load_engine, save_bundle
from dpiframe_core.model.builtin import Deep, Features, dcn, dcnv2, deepfm, wdl
from dpiframe_core.model.modules import Add, Wide

INTEGERS = [f"I{i}" for i in range(1, 14)]
CATEGORIES = [f"C{i}" for i in range(1, 27)]
FUXI_TABLES = "embedding_layer.embedding_layer.embedding_layers"


def _features(vocab, dense_as):
    fields = [FieldSpec(name=c, rows=vocab[c], dim=8) for c in CATEGORIES]
    return Features(fields, INTEGERS, dense_as)


def _mlp(state, prefix, indices):
    weights = {}
    for layer, index in enumerate(indices):
        for part in ("weight", "bias"):
            weights[f"mlp/{layer}/{part}"] = state[f"{prefix}.{index}.{part}"]
    return weights


def _fuxi(state, wide_prefix=None):
    """Embeddings, and the wide part where there is one."""
    weights = {f"embedding/tables/{c}": state[f"{FUXI_TABLES}.{c}.weight"] for c in CATEGORIES}
    dense = [state[f"{FUXI_TABLES}.{i}.weight"].T for i in INTEGERS]
    weights["dense_fields/weight"] = torch.cat(dense)
    if wide_prefix:
        tables = f"{wide_prefix}.{FUXI_TABLES}"
        for c in CATEGORIES:
            weights[f"wide/tables/{c}"] = state[f"{tables}.{c}.weight"]
        weights["wide/dense"] = torch.cat([state[f"{tables}.{i}.weight"] for i in INTEGERS], dim=1)
    return weights


def fuxictr_wide_deep(state, vocab, batch_norm):
    spec = wdl(_features(vocab, "field"), Deep((32, 16), batch_norm=batch_norm))
    linear = (0, 4, 8) if batch_norm else (0, 2, 4)
    weights = _fuxi(state, "lr_layer") | _mlp(state, "dnn.mlp", linear[:2])
    for layer, index in enumerate((1, 5) if batch_norm else ()):
        for part, theirs in zip(
            ("weight", "bias", "mean", "var"),
            ("weight", "bias", "running_mean", "running_var"),
            strict=True,
        ):
            weights[f"mlp/{layer}/bn/{part}"] = state[f"dnn.mlp.{index}.{theirs}"]
    for part in ("weight", "bias"):
        weights[f"deep_logit/{part}"] = state[f"dnn.mlp.{linear[2]}.{part}"]
    return spec, weights


def fuxictr_deepfm(state, vocab):
    spec = deepfm(_features(vocab, "field"), Deep((32, 16)))
    weights = _fuxi(state, "fm.lr_layer") | _mlp(state, "mlp.mlp", (0, 2))
    weights["wide/bias"] = state["fm.lr_layer.bias"]
    for part in ("weight", "bias"):
        weights[f"deep_logit/{part}"] = state[f"mlp.mlp.4.{part}"]
    return spec, weights


def fuxictr_dcn(state, vocab):
    spec = dcn(_features(vocab, "field"), Deep((32, 16)), layers=3)
    weights = _fuxi(state) | _mlp(state, "dnn.mlp", (0, 2))
    for layer in range(3):
        weights[f"cross/{layer}/weight"] = state[f"crossnet.cross_net.{layer}.weight.weight"]
        weights[f"cross/{layer}/bias"] = state[f"crossnet.cross_net.{layer}.bias"]
    return spec, weights | {f"logit/{p}": state[f"fc.{p}"] for p in ("weight", "bias")}


def fuxictr_dcnv2(state, vocab):
    spec = dcnv2(_features(vocab, "field"), Deep((32, 16)), layers=2)
    weights = _fuxi(state) | _mlp(state, "parallel_dnn.mlp", (0, 2))
    for layer in range(2):
        for part in ("weight", "bias"):
            weights[f"cross/{layer}/{part}"] = state[f"crossnet.cross_layers.{layer}.{part}"]
    return spec, weights | {f"logit/{p}": state[f"fc.{p}"] for p in ("weight", "bias")}


def _deepctr(state):
    """Embeddings, wide part, MLP: every DeepCTR model has them."""
    weights = _mlp(state, "dnn.linears", (0, 1))
    for c in CATEGORIES:
        weights[f"embedding/tables/{c}"] = state[f"embedding_dict.{c}.weight"]
        weights[f"wide/tables/{c}"] = state[f"linear_model.embedding_dict.{c}.weight"]
    weights["wide/dense"] = state["linear_model.weight"].T
    return weights


def deepctr_sum(state, vocab, model):
    spec = model(_features(vocab, "raw"), Deep((32, 16)))
    weights = _deepctr(state) | {"deep_logit/weight": state["dnn_linear.weight"]}
    weights["deep_logit/bias"] = state["out.bias"]
    if "wide/bias" in spec.parameters():
        weights["wide/bias"] = torch.zeros(1)
    return spec, weights


def deepctr_cross(state, vocab, model, layers):
    """DeepCTR adds its linear part to DCN: a spec is data, so the test adds the modules."""
    plain = model(_features(vocab, "raw"), Deep((32, 16)), layers=layers)
    wide = Wide(name="wide", inputs=("dense",), bias=False)
    total = Add(name="total", inputs=("wide", "logit"))
    spec = ModelSpec(
        fields=plain.fields,
        dense=plain.dense,
        modules=(*plain.modules, wide, total),
        output="total",
    )
    weights = _deepctr(state)
    for layer in range(layers):
        kernel = state["crossnet.kernels"][layer]
        weights[f"cross/{layer}/weight"] = kernel.T if kernel.shape[1] == 1 else kernel
        weights[f"cross/{layer}/bias"] = state["crossnet.bias"][layer][:, 0]
    weights["logit/weight"], weights["logit/bias"] = state["dnn_linear.weight"], state["out.bias"]
    return spec, weights


CASES = {
    "fuxictr_WideDeep": lambda s, v: fuxictr_wide_deep(s, v, False),
    "fuxictr_WideDeep_bn": lambda s, v: fuxictr_wide_deep(s, v, True),
    "fuxictr_DeepFM": fuxictr_deepfm,
    "fuxictr_DCN": fuxictr_dcn,
    "fuxictr_DCNv2_parallel": fuxictr_dcnv2,
    "deepctr_WDL": lambda s, v: deepctr_sum(s, v, wdl),
    "deepctr_DeepFM": lambda s, v: deepctr_sum(s, v, deepfm),
    "deepctr_DCN_vector": lambda s, v: deepctr_cross(s, v, dcn, 3),
    "deepctr_DCNv2_matrix": lambda s, v: deepctr_cross(s, v, dcnv2, 2),
}


def _inputs(reference):
    inputs = reference["inputs"]
    if isinstance(inputs, dict):
        ids = torch.stack([inputs[c].reshape(-1) for c in CATEGORIES])
        return ids.long().numpy(), torch.stack([inputs[i].reshape(-1) for i in INTEGERS]).numpy()
    return inputs[:, :26].T.long().numpy(), inputs[:, 26:].T.contiguous().numpy()


@pytest.mark.parametrize("name", CASES)
def test_the_engine_gives_the_other_library_s_logits(shared_reference, tmp_path, name):
    reference = torch.load(shared_reference / f"{name}.pt", weights_only=True)
    spec, weights = CASES[name](reference["state_dict"], reference["vocab_size"])
    bundle = save_bundle(tmp_path / "bundle", spec, weights)
    ids, dense = _inputs(reference)
    expected = reference["logits"].numpy()
    error = np.abs(load_engine(bundle).logits(ids, dense) - expected)
    # Both sides are float32, each within 1e-5 of the exact logit.
    assert (error / np.maximum(1, np.abs(expected))).max() < 2e-5
