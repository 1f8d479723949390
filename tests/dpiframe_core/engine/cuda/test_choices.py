"""Why a program gets the kernels that it gets, in words."""

from __future__ import annotations

import model_zoo
import pytest
from mapped_programs import gelu, program_of

from dpiframe_core import _core
from dpiframe_core.engine.cuda.choices import products_in_words, whole_model_in_words
from dpiframe_core.lowering import DEVICE_PASSES, lower
from dpiframe_core.model.builtin import MODELS, Deep, Features

pytestmark = pytest.mark.skipif(
    not _core.build_info()["cuda"], reason="needs a build with CUDA, though no GPU"
)


def test_the_reason_for_steps_or_a_whole_kernel():
    features = Features(model_zoo.fields(16), [], "field")
    model = model_zoo.random_model(MODELS["deepfm"](features, Deep((33, 20, 5))))
    program = lower(model.spec, model.state_dict(), DEVICE_PASSES)
    assert "batches of the sizes above" in whole_model_in_words(program, "fp16", True, 4096)
    assert "too little memory" in whole_model_in_words(program, "fp16", True, 0)
    assert "was not wanted" in whole_model_in_words(program, "fp16", False, 0)
    assert "fp16 and bf16" in whole_model_in_words(program, "fp32", True, 0)
    other = program_of(72, 429, gelu)
    assert "no kernel runs the whole model" in whole_model_in_words(other, "fp16", True, 0)


def test_products_tell_their_tiles():
    assert products_in_words(program_of(72, 429, gelu), "fp16", 65_536) == (
        "product 72 -> 429, with an epilogue compiled for it: 1536 tiles of 128 x 144 at 65536 "
        "rows, in turn by two warpgroups"
    )
