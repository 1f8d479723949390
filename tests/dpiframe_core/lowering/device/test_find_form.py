"""Which programs have a form that a fused forward kernel can run, and what the form holds."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import model_zoo
import numpy as np
import pytest
import torch

from dpiframe_core import ModelSpec
from dpiframe_core.lowering import DEVICE_FORM, DEVICE_PASSES, FUSIONS, lower
from dpiframe_core.lowering.device.find_form import find_form
from dpiframe_core.model.builtin import MODELS, Deep, Features
from dpiframe_core.model.calibrated import Curve, calibrated, straight
from dpiframe_core.model.modules import MLP, Add, Concat, Embedding, Linear, Wide
from dpiframe_core.model.torch_module import CTRModel
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.program import CrossForm, Layer, MlpForm, Program
from dpiframe_core.program.steps import Head, Lookup


@lru_cache
def made(
    name: str, hidden=(33, 20, 5), dims=16, dense=None, passes=DEVICE_PASSES, **options
) -> tuple[CTRModel, Program]:
    features = Features(model_zoo.fields(dims), ["I1", "I2"] if dense else [], dense or "field")
    model = model_zoo.random_model(MODELS[name](features, Deep(hidden), **options))
    return model, lower(model.spec, model.state_dict(), passes)


def embeddings(program: Program, lookup: Lookup, ids: np.ndarray) -> np.ndarray:
    assert lookup.out is not None
    x0 = np.zeros((ids.shape[1], lookup.out.width))
    for slot in lookup.slots:
        x0[:, slot.column : slot.column + slot.dim] = program.weights[slot.table][ids[slot.field]]
    return x0


def product(x: np.ndarray, layer: Layer) -> np.ndarray:
    return x @ layer.weight.T.astype(np.float64) + (0 if layer.bias is None else layer.bias)


def sums(program: Program, lookup: Lookup, x0: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The lookup's wide sum and FM term."""
    total = np.zeros(len(x0))
    if lookup.wide_out:
        total += sum(program.weights[s.wide][ids[s.field]][:, 0] for s in lookup.slots)
    if lookup.fm_out:
        v = x0.reshape(len(x0), len(lookup.slots), -1)
        total += 0.5 * (v.sum(1) ** 2 - (v**2).sum(1)).sum(1)
    return total


def logits(program: Program, form: MlpForm | CrossForm, ids: np.ndarray) -> np.ndarray:
    """What a fused forward kernel computes, in float64."""
    x = h = x0 = embeddings(program, form.lookup, ids)
    for layer in form.layers:
        h = np.maximum(product(h, layer), 0)
    total = h @ form.head + form.bias + sums(program, form.lookup, x0, ids)
    if isinstance(form, CrossForm):
        for layer in form.cross:
            x = x0 * product(x, layer) + x
        return total + x @ form.cross_head
    if form.cross is not None:
        alpha = np.ones(len(x0))
        for dot, shift in zip((x0 @ form.cross.dots.T).T, form.cross.shift, strict=True):
            alpha = alpha * (1 + dot) + shift
        total += alpha * (x0 @ form.cross.head[0])
    return total


@pytest.mark.parametrize("hidden", [(33, 20, 5), (400, 400, 400), (8,)])
@pytest.mark.parametrize("name", MODELS)
def test_forms_of_the_built_in_models(name, hidden):
    model, program = made(name, hidden)
    form = program.form
    assert isinstance(form, CrossForm if name == "dcnv2" else MlpForm)
    assert [len(layer.weight) for layer in form.layers] == list(hidden)
    assert len(form.head) == hidden[-1]
    ids, dense = model_zoo.random_inputs(model.spec, 19)
    expected = model_zoo.reference_logits(model, ids, dense)
    np.testing.assert_allclose(logits(program, form, ids), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_forms_of_calibrated_models(name):
    """A scale and a shift go into the weights, but for an FM term, which has none of its own."""
    model, _ = made(name)
    scaled, shifted = straight(0.8, -0.3), straight(1.0, 0.7)
    curve = Curve(((-1.0, -2.0), (1.0, 0.5)))
    ids, dense = model_zoo.random_inputs(model.spec, 19)
    plain = model_zoo.reference_logits(model, ids, dense)
    for fitted, expected in ((scaled, 0.8 * plain - 0.3), (shifted, plain + 0.7)):
        program = lower(calibrated(model.spec, fitted), model.state_dict(), DEVICE_PASSES)
        got = run_program(program, torch.from_numpy(ids), torch.from_numpy(dense))
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-5)
        if name == "deepfm" and fitted is scaled:
            assert program.form is None
            continue
        assert program.form is not None
        found = logits(program, program.form, ids)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert lower(calibrated(model.spec, curve), model.state_dict(), DEVICE_PASSES).form is None


@pytest.mark.parametrize(("hidden", "layers"), [((8,), 1), ((40, 24), 1), ((7,), 4), ((512,), 2)])
@pytest.mark.parametrize("name", ["dcn", "dcnv2"])
def test_cross_networks_of_any_depth(name, hidden, layers):
    model, program = made(name, hidden, layers=layers)
    form = program.form
    assert form is not None and form.cross is not None
    assert len(form.cross if isinstance(form, CrossForm) else form.cross.shift) == layers
    ids, dense = model_zoo.random_inputs(model.spec, 19)
    expected = model_zoo.reference_logits(model, ids, dense)
    np.testing.assert_allclose(logits(program, form, ids), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("wdl", {"dense": "raw"}),
        ("deepfm", {"dense": "field"}),
        ("dcnv2", {"dense": "raw"}),
        ("dcnv2", {"dense": "field"}),
        ("dcn", {"structure": "stacked"}),
        ("dcn", {"structure": "cross_only"}),
        ("dcnv2", {"structure": "stacked"}),
        ("dcnv2", {"structure": "cross_only"}),
        ("wdl", {"passes": DEVICE_FORM}),
        ("dcnv2", {"passes": DEVICE_FORM}),
    ],
)
def test_programs_of_another_form(name, options):
    assert made(name, **options)[1].form is None


def test_a_concat_of_one_input_is_no_step():
    modules = (
        Embedding(name="embedding"),
        Concat(name="x0", inputs=("embedding",)),
        MLP(name="mlp", inputs=("x0",), hidden=(8, 4)),
        Linear(name="logit", inputs=("mlp",)),
    )
    spec = ModelSpec(fields=tuple(model_zoo.fields(4)), modules=modules, output="logit")
    model = model_zoo.random_model(spec)
    form = lower(spec, model.state_dict(), DEVICE_PASSES).form
    assert isinstance(form, MlpForm) and len(form.layers) == 2


@pytest.mark.parametrize("more", ["wide", "mlp", "layer"])
def test_a_second_one_of_anything_is_another_form(more):
    added = {
        "wide": (Wide(name="other"),),
        "mlp": (
            MLP(name="mlp2", inputs=("embedding",), hidden=(8,)),
            Linear(name="other", inputs=("mlp2",)),
        ),
        "layer": (Linear(name="other", inputs=("embedding",)),),
    }[more]
    modules = (
        Embedding(name="embedding"),
        Wide(name="wide"),
        MLP(name="mlp", inputs=("embedding",), hidden=(8, 4)),
        Linear(name="deep", inputs=("mlp",)),
        *added,
        Add(name="logit", inputs=("wide", "deep", "other")),
    )
    spec = ModelSpec(fields=tuple(model_zoo.fields(4)), modules=modules, output="logit")
    weights = model_zoo.random_model(spec).state_dict()
    assert lower(spec, weights, DEVICE_PASSES).form is None


@pytest.mark.parametrize("name", MODELS)
def test_a_head_with_other_terms_is_another_form(name):
    program = made(name, passes=FUSIONS)[1]
    head = program.steps[-1]
    assert isinstance(head, Head)
    sums = head.scalars or tuple(view.columns(0, 1) for view, _ in head.dots)
    others = [
        replace(head, scalars=(*head.scalars, sums[0])),
        replace(head, dots=(*head.dots, *head.dots)),
        replace(head, dots=head.dots[1:]),
        replace(head, products=(*head.products, (sums[0], sums[0]))),
    ]
    if head.scalars:
        others.append(replace(head, scalars=()))
    if head.products:
        others.append(replace(head, products=()))
    for other in others:
        assert find_form(replace(program, steps=(*program.steps[:-1], other))).form is None
    assert find_form(program.changed()).form is not None
