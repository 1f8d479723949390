"""Why a program gets the kernels that it gets, in words."""

from __future__ import annotations

import model_zoo
import pytest
import torch
from mapped_programs import gelu, pair, program_of
from placed_models import placed_models

from dpiframe_core import _core, from_torch
from dpiframe_core.engine.cuda.choices import products_in_words, whole_model_in_words
from dpiframe_core.engine.cuda.places import join_places
from dpiframe_core.lowering import COMPILED_PASSES, DEVICE_PASSES, lower
from dpiframe_core.model.builtin import MODELS, Deep, Features

pytestmark = pytest.mark.skipif(
    not _core.build_info()["cuda"], reason="needs a build with CUDA, though no GPU"
)


def test_the_reason_for_steps_or_a_whole_kernel(monkeypatch):
    def words(name: str, precision: str, fused: bool, most: int) -> str:
        features = Features(model_zoo.fields(16), [], "field")
        model = model_zoo.random_model(MODELS[name](features, Deep((33, 20, 5))))
        program = lower(model.spec, model.state_dict(), DEVICE_PASSES)
        return whole_model_in_words(program, precision, fused, most, 1024)

    assert "batches of the sizes above" in words("dcnv2", "fp16", True, 4096)
    assert "too little memory" in words("dcnv2", "fp16", True, 0)
    taken = words("deepfm", "fp16", True, 1024)
    assert "takes batches of the sizes above" in taken and "samples: 512: " in taken
    assert "this GPU has no kernel" in words("deepfm", "fp16", True, 0)
    monkeypatch.setattr("dpiframe_core.engine.cuda.fused.WORTH_IT", 0)
    slower = words("deepfm", "fp16", True, 0)
    assert slower.startswith("steps: ") and "is slower in batches of all sizes" in slower
    assert "was not wanted" in words("deepfm", "fp16", False, 0)
    assert "fp16 and bf16" in words("deepfm", "fp32", True, 0)
    other = program_of(72, 429, gelu)
    assert "no kernel runs the whole model" in whole_model_in_words(other, "fp16", True, 0, 1024)


def test_products_tell_their_tiles():
    assert products_in_words(program_of(72, 429, gelu), "fp16", 65_536) == (
        "product 72 -> 429, with an epilogue compiled for it: 2048 tiles of 128 x 128 at 65536 "
        "rows, in turn by two warpgroups"
    )


def test_products_tell_that_they_are_two():
    found = products_in_words(program_of(72, 429, pair), "fp16", 65_536)
    assert "product 72 -> 864, of two weights, with an epilogue compiled for both: " in found


def test_products_of_places_tell_how_many_they_are():
    module = placed_models()["tokens"].eval()
    imported = from_torch(module, torch.tensor([1, 2]), precisions=())
    program = lower(imported.spec, imported.weights, COMPILED_PASSES)
    found = products_in_words(join_places(program, "fp16"), "fp16", 1024).splitlines()
    wanted = "product 64 -> 128, 6 places as one, with an epilogue compiled for it: "
    assert found[0].startswith(wanted) and len(found) == 2


def test_products_of_few_tiles_share_a_long_k():
    found = products_in_words(program_of(6400, 128, gelu), "fp16", 1024)
    assert "each shared by 4 CTAs with a part of k each" in found


def test_few_tiles_are_short():
    for precision in ("fp16", "fp32"):
        few = products_in_words(program_of(512, 256, gelu), precision, 1024)
        assert "tiles of 64 x 64 at 1024 rows, by one warpgroup" in few
        many = products_in_words(program_of(512, 256, gelu), precision, 65_536)
        assert "tiles of 128 x" in many and "by one warpgroup" not in many


def _kernel(tiles):
    return tiles.tile_n, tiles.in_turn, tiles.rows


# Clusters have at most 8 CTAs, each has two k tiles or more, and warpgroups in turn share nothing.
@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32", "fp32"])
def test_what_is_split_can_be(precision):
    depth = 128 // (2 if precision in ("fp16", "bf16") else 4)
    for rows in (1, 128, 1024, 4096, 65_536):
        for n in (1, 64, 400, 1000):
            for k in (1, 64, 400, 1664, 10_413):
                tiles = _core.linear_config(precision, rows, n, k)
                assert tiles.split in (1, 2, 4, 8)
                short = tiles.rows == 64 and not tiles.in_turn and tiles.split < 8
                assert short or tiles.rows == 128
                assert tiles.split == 1 or (not tiles.in_turn and -(-k // depth) >= 2 * tiles.split)
                assert _core.head_partials(precision, rows, n, k) == -(-n // tiles.tile_n)
                kernels = _core.linear_configs(precision, rows, n, k)
                assert _kernel(tiles) in map(_kernel, kernels)
