"""Which programs with cross layers run as one kernel, and as what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import model_zoo
import numpy as np
import pytest
from dpiframe_core.engine.cuda.fused_cross import OneCrossKernel, one_cross_kernel, steps_up_to
from dpiframe_core.engine.cuda.fused_mlp import Level, one_kernel

from dpiframe_core import _core
from dpiframe_core.lowering import DEVICE_FORM, DEVICE_PASSES, lower
from dpiframe_core.model.builtin import MODELS, Deep, Features
from dpiframe_core.model.torch_module import CTRModel
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Head

pytestmark = pytest.mark.skipif(
    not _core.build_info()["cuda"], reason="needs a build with CUDA, though no GPU"
)
FORMS = [((33, 20, 5), 3), ((400, 400, 400), 3), ((8,), 1), ((40, 24), 1), ((7,), 4), ((512,), 2)]


@lru_cache
def made(hidden=(33, 20, 5), layers=3, dims=16, **options) -> tuple[CTRModel, Program]:
    dense, passes = options.pop("dense", None), options.pop("passes", DEVICE_PASSES)
    features = Features(model_zoo.fields(dims), ["I1", "I2"] if dense else [], dense or "field")
    name = options.pop("name", "dcnv2")
    layered = {"layers": layers} if name.startswith("dcn") else {}
    model = model_zoo.random_model(MODELS[name](features, Deep(hidden), **layered, **options))
    return model, lower(model.spec, model.state_dict(), passes)


def products(program: Program, levels: Sequence[Level]) -> list[tuple[np.ndarray, np.ndarray]]:
    found = []
    for level in levels:
        rows = np.concatenate([np.arange(*r) for r in level.rows])
        bias = program.weights[level.bias][rows] if level.bias else np.zeros(len(rows))
        found.append((program.weights[level.weight][rows].astype(np.float64), bias))
    return found


def logits(program: Program, found: OneCrossKernel, ids: np.ndarray) -> np.ndarray:
    """What the kernel computes, in float64."""
    weights, out = program.weights, found.lookup.out
    assert out is not None
    x0 = np.zeros((ids.shape[1], out.width))
    for slot in found.lookup.slots:
        x0[:, slot.column : slot.column + slot.dim] = weights[slot.table][ids[slot.field]]
    x = h = x0
    for w, bias in products(program, found.cross):
        x = x0 * (x @ w.T + bias) + x
    for w, bias in products(program, found.deep):
        h = np.maximum(h @ w.T + bias, 0)
    bias = weights[found.bias].item() if found.bias else 0.0
    return x @ weights[found.cross_head] + h @ weights[found.deep_head] + bias


@pytest.mark.parametrize(("hidden", "layers"), FORMS)
def test_models_that_it_takes(hidden, layers):
    model, program = made(hidden, layers)
    found = one_cross_kernel(program, "fp16")
    assert found is not None
    assert found == one_cross_kernel(program, "bf16")
    assert one_kernel(program, "fp16") is None
    assert (len(found.cross), len(found.deep)) == (layers, len(hidden))
    ids, dense = model_zoo.random_inputs(model.spec, 19)
    expected = model_zoo.reference_logits(model, ids, dense)
    np.testing.assert_allclose(logits(program, found, ids), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "dcn"},
        {"name": "wdl"},
        {"dims": 10},
        {"dims": 104},
        {"dims": (8, 8, 8, 8, 8, 8, 4)},
        {"hidden": (513,)},
        {"hidden": (8,) * 5},
        {"layers": 5},
        {"dense": "raw"},
        {"dense": "field"},
        {"structure": "stacked"},
        {"structure": "cross_only"},
        {"passes": DEVICE_FORM},
    ],
)
def test_programs_that_it_does_not_take(options):
    assert one_cross_kernel(made(**options)[1], "fp16") is None


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({}, True),
        ({"hidden": (8,), "layers": 1}, True),
        ({"dims": 12}, True),
        ({"dims": (20, 4, 4, 8, 16, 8, 4)}, True),
        ({"dims": (20, 4, 4, 8, 16, 4, 4)}, False),
        ({"dims": 10}, False),
        ({"dims": 104}, False),
        ({"hidden": (40, 130, 8)}, False),  # h has no place where x was
        ({"layers": 5}, False),
        ({"structure": "stacked"}, False),
        ({"passes": DEVICE_FORM}, False),
    ],
)
def test_fp32_has_limits_of_its_own(options, taken):
    program = made(**options)[1]
    found = one_cross_kernel(program, "fp32")
    assert (found is not None) == taken
    assert found in (None, one_cross_kernel(program, "fp16")) or options.get("dims")


def test_tf32_has_no_kernel():
    assert one_cross_kernel(made()[1], "tf32") is None


@pytest.mark.parametrize(
    ("hidden", "precision", "rows"),
    [((33,), "fp16", 0), ((33,), "fp32", 2048), ((512,) * 4, "fp16", 1024), ((33,), "bf16", 0)],
)
def test_batches_of_few_rows_run_in_steps(hidden, precision, rows):
    program = made(hidden, dims=72)[1]
    found = one_cross_kernel(program, precision)
    assert found is not None
    assert steps_up_to(program, found, precision) == rows


@pytest.mark.parametrize(("hidden", "layers"), FORMS)
def test_a_head_with_other_terms_is_another_form(hidden, layers):
    program = made(hidden, layers)[1]
    head = program.steps[-1]
    assert isinstance(head, Head)
    sums = head.scalars or tuple(view.columns(0, 1) for view, _ in head.dots)
    for other in (
        replace(head, scalars=(*head.scalars, sums[0])),
        replace(head, dots=(*head.dots, *head.dots), scalars=head.scalars[1:]),
        replace(head, products=((sums[0], sums[0]),)),
        replace(head, scalars=()),
    ):
        steps = (*program.steps[:-1], other)
        assert one_cross_kernel(replace(program, steps=steps), "fp16") is None
    assert one_cross_kernel(program.changed(), "fp16") is not None
