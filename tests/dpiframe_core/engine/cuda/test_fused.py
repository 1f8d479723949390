"""Which fused forward kernel takes a program, in which precision, and for batches of which size."""

from __future__ import annotations

from functools import lru_cache

import model_zoo
import pytest

from dpiframe_core import FieldSpec, _core
from dpiframe_core.engine.cuda.chain.grouping import chain_products
from dpiframe_core.engine.cuda.fused import fused_form, mlp_microseconds, steps_up_to
from dpiframe_core.lowering import COMPILED_PASSES, DEVICE_FORM, DEVICE_PASSES, lower
from dpiframe_core.model.builtin import MODELS, Deep, Features
from dpiframe_core.program.program import CrossForm, MlpForm, Program

pytestmark = pytest.mark.skipif(
    not _core.build_info()["cuda"], reason="needs a build with CUDA, though no GPU"
)
FORMS = [((33, 20, 5), 3), ((400, 400, 400), 3), ((8,), 1), ((40, 24), 1), ((7,), 4), ((512,), 2)]


@lru_cache
def made(
    name: str, hidden=(33, 20, 5), dims=16, dense=None, passes=DEVICE_PASSES, **options
) -> Program:
    features = Features(model_zoo.fields(dims), ["I1", "I2"] if dense else [], dense or "field")
    model = model_zoo.random_model(MODELS[name](features, Deep(hidden), **options))
    return lower(model.spec, model.state_dict(), passes)


@pytest.mark.parametrize("hidden", [(33, 20, 5), (400, 400, 400), (8,)])
@pytest.mark.parametrize("name", ["wdl", "deepfm", "dcn"])
def test_models_that_mlp_takes(name, hidden):
    program = made(name, hidden)
    assert isinstance(fused_form(program, "fp16"), MlpForm)
    assert fused_form(program, "bf16") is program.form
    assert fused_form(program, "fp32") is fused_form(program, "tf32") is None


@pytest.mark.parametrize(("hidden", "layers"), FORMS)
def test_models_that_cross_takes(hidden, layers):
    program = made("dcnv2", hidden, layers=layers)
    assert isinstance(fused_form(program, "fp16"), CrossForm)
    assert fused_form(program, "bf16") is program.form
    assert fused_form(program, "tf32") is None


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("wdl", {"dims": 10}),
        ("wdl", {"dims": (8, 8, 8, 8, 8, 8, 4)}),
        ("wdl", {"hidden": (513,)}),
        ("wdl", {"hidden": (8,) * 5}),
        ("wdl", {"dense": "raw"}),
        ("deepfm", {"dense": "field"}),
        ("deepfm", {"dims": 40}),
        ("wdl", {"passes": DEVICE_FORM}),
        ("dcnv2", {"dims": 10}),
        ("dcnv2", {"dims": 104}),
        ("dcnv2", {"dims": (8, 8, 8, 8, 8, 8, 4)}),
        ("dcnv2", {"hidden": (513,)}),
        ("dcnv2", {"hidden": (8,) * 5}),
        ("dcnv2", {"layers": 5}),
        ("dcnv2", {"dense": "raw"}),
        ("dcnv2", {"dense": "field"}),
        ("dcnv2", {"structure": "stacked"}),
        ("dcnv2", {"structure": "cross_only"}),
        ("dcnv2", {"passes": DEVICE_FORM}),
    ],
)
def test_programs_that_no_16_bit_kernel_takes(name, options):
    assert fused_form(made(name, **options), "fp16") is None


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
    program = made("dcnv2", **options)
    assert (fused_form(program, "fp32") is not None) == taken


@pytest.mark.parametrize(
    ("name", "hidden", "precision", "samples"),
    [
        ("dcnv2", (33,), "fp16", 0),
        ("dcnv2", (33,), "fp32", 2048),
        ("dcnv2", (512,) * 4, "fp16", 1024),
        ("dcnv2", (33,), "bf16", 0),
        ("wdl", (512,) * 4, "fp16", 0),
    ],
)
def test_batches_of_few_samples_run_as_steps(name, hidden, precision, samples):
    program = made(name, hidden, dims=72)
    form = fused_form(program, precision)
    assert form is not None
    assert steps_up_to(program, form, precision, 65536) == samples


# Measured on an H200 (docs/decisions/fused_mlp.md): microseconds of the kernel and of the steps.
@pytest.mark.parametrize(
    ("name", "fields", "dim", "hidden", "samples", "one", "steps"),
    [
        ("wdl", 10, 8, (512, 512), 512, 12.5, 14.3),
        ("wdl", 26, 16, (400, 400, 400), 4096, 16.0, 23.3),
        ("wdl", 26, 32, (512, 512), 1024, 19.2, 17.2),
        ("wdl", 26, 32, (512, 256), 4096, 20.8, 21.1),
        ("dcn", 10, 32, (400, 400, 400), 1024, 14.5, 17.4),
        ("dcn", 39, 16, (400, 400, 400), 4096, 17.9, 28.0),
        ("deepfm", 26, 8, (256, 128, 64), 4096, 15.3, 14.2),
        ("deepfm", 39, 16, (256, 128, 64), 512, 17.7, 13.2),
        ("deepfm", 39, 16, (400, 400, 400), 2048, 18.2, 23.9),
        ("deepfm", 26, 32, (400, 400, 400), 1024, 34.5, 20.4),
    ],
)
def test_the_model_of_the_time_is_near_what_was_measured(
    name, fields, dim, hidden, samples, one, steps
):
    features = Features(
        [FieldSpec(name=f"C{i}", rows=50, dim=dim) for i in range(fields)], [], "field"
    )
    model = model_zoo.random_model(MODELS[name](features, Deep(hidden)))
    program = lower(model.spec, model.state_dict(), COMPILED_PASSES)
    program = chain_products(program, "fp16", samples)
    found = mlp_microseconds(program, program.form, "fp16", samples)
    assert found == pytest.approx((one, steps), rel=0.15)
    above = steps_up_to(program, program.form, "fp16", samples)
    assert (above >= samples) == (steps < one)
