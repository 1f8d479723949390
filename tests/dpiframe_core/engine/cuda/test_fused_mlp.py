"""Which programs run as one kernel."""

from __future__ import annotations

from dataclasses import replace

import model_zoo
import pytest
from dpiframe_core.engine.cuda.fused_mlp import OneKernel, one_kernel

from dpiframe_core import _core
from dpiframe_core.lowering import DEVICE_FORM, DEVICE_PASSES, lower
from dpiframe_core.model.builtin import MODELS, Deep, Features
from dpiframe_core.model.torch_module import CTRModel
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Head

pytestmark = pytest.mark.skipif(
    not _core.build_info()["cuda"], reason="needs a build with CUDA, though no GPU"
)


def program(name: str, dims=16, hidden=(33, 20, 5), dense=None, passes=DEVICE_PASSES) -> Program:
    features = Features(model_zoo.fields(dims), ["I1", "I2"] if dense else [], dense or "field")
    spec = MODELS[name](features, Deep(hidden))
    return lower(spec, CTRModel(spec, 0).state_dict(), passes)


@pytest.mark.parametrize("hidden", [(33, 20, 5), (400, 400, 400), (8,)])
@pytest.mark.parametrize("name", ["wdl", "deepfm", "dcn"])
def test_models_that_it_takes(name, hidden):
    made = program(name, hidden=hidden)
    found = one_kernel(made, "fp16")
    assert found is not None
    assert found == one_kernel(made, "bf16")
    assert [stop - start for (start, stop), *_ in (x.rows for x in found.levels)] == list(hidden)
    assert (found.shift is not None) == (name == "dcn")
    assert len(made.weights[found.head]) == hidden[-1]


def test_rows_of_a_cross_network():
    """The dots are as many as shifts, its part of the head is one, and none is a row of the MLP."""
    made = program("dcn")
    found = one_kernel(made, "fp16")
    assert isinstance(found, OneKernel)
    own, dots, part = found.levels[0].rows
    assert dots[1] - dots[0] == len(made.weights[found.shift])
    assert part[1] - part[0] == 1
    assert len(joined([own, dots, part])) <= 3
    assert sum(b - a for a, b in joined([own, dots, part])) == 33 + dots[1] - dots[0] + 1


@pytest.mark.parametrize(
    "other",
    [
        program("dcnv2"),
        program("wdl", dims=10),
        program("wdl", dims=(8, 8, 8, 8, 8, 8, 4)),
        program("wdl", hidden=(513,)),
        program("wdl", hidden=(8,) * 5),
        program("wdl", dense="raw"),
        program("deepfm", dense="field"),
        program("deepfm", dims=40),
        program("wdl", passes=DEVICE_FORM),
    ],
)
def test_programs_that_it_does_not_take(other):
    assert one_kernel(other, "fp16") is None


def test_only_16_bits():
    assert one_kernel(program("wdl"), "fp32") is None
    assert one_kernel(program("wdl"), "tf32") is None


def test_a_head_with_more_terms_is_another_form():
    made = program("dcn")
    head = made.steps[-1]
    assert isinstance(head, Head)
    for other in (
        replace(head, scalars=(*head.scalars, head.scalars[0])),
        replace(head, products=()),
        replace(head, products=head.products * 2),
        replace(head, scalars=()),
    ):
        steps = (*made.steps[:-1], other)
        assert one_kernel(replace(made, steps=steps), "fp16") is None
    assert one_kernel(made.changed(), "fp16") is not None
