"""Chains of products: which steps they take, where their activations lie, when they are chosen."""

from __future__ import annotations

import itertools

import chains
import numpy as np
import pytest
import torch
from chains import mlp
from random_specs import random_spec, random_weights

from dpiframe_core import _core
from dpiframe_core.engine.cuda.chain import grouping
from dpiframe_core.engine.cuda.chain.areas import SHARED, own_columns, place_areas
from dpiframe_core.engine.cuda.chain.choice import chain_rows
from dpiframe_core.engine.cuda.chain.grouping import ProductChain, chain_products
from dpiframe_core.engine.cuda.chain.layers import layer_of
from dpiframe_core.engine.cuda.choices import chains_in_words
from dpiframe_core.engine.cuda.fold_norm import fold_norms
from dpiframe_core.engine.cuda.tile.grouping import group_steps
from dpiframe_core.lowering import COMPILED_PASSES, lower
from dpiframe_core.lowering.device.fuse_dot import fuse_mapped_dot
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.program import Program
from pipeline.bench.cases.engine_case import EngineCase

pytestmark = pytest.mark.skipif(
    not _core.build_info()["cuda"], reason="needs a build with CUDA, though no GPU"
)
ROWS = [512, 1024, 4096, 8192, 65536]


@pytest.fixture(autouse=True)
def every_chain(request, monkeypatch):
    if "chosen" not in request.node.name:
        chains.always(monkeypatch)


def same_results(program: Program, rows: int = 19) -> list[ProductChain]:
    """The chains; what they compute, in their own memory, is what the program computes."""
    made = chain_products(program, "fp16", 65536)
    random = np.random.default_rng(rows)
    ids = [torch.from_numpy(random.integers(0, r, rows)) for r in program.field_rows]
    inputs = torch.stack(ids) if ids else torch.zeros(0, rows, dtype=torch.int64)
    dense = torch.from_numpy(random.normal(size=(program.num_dense, rows)))
    expected = run_program(program, inputs, dense)
    torch.testing.assert_close(run_program(made, inputs, dense), expected)
    torch.testing.assert_close(run_program(chains.in_memory(made), inputs, dense), expected)
    return chains.chains_of(made)


@pytest.mark.parametrize(
    "widths", [(520, 256, 128, 64), (13, 512, 256), (429, 400, 400), (64, 5, 33, 1), (72, 416, 17)]
)
def test_products_behind_one_another_are_a_chain(widths):
    (chain,) = same_results(mlp(*widths))
    assert [layer.n for layer in chain.layers] == list(widths[1:])


@pytest.mark.parametrize("options", [{"gelu": True}, {"residual": True}])
def test_epilogues_read_what_lies_in_shared_memory(options):
    (chain,) = same_results(mlp(64, 240, 240, 240, 48, **options))
    assert len(chain.layers) == 4


@pytest.mark.parametrize(("hidden", "ctas"), [((400, 240), 1), ((400, 400), 1), ((400, 400), 2)])
def test_a_product_of_a_norm_is_in_a_chain_with_the_one_that_made_its_sums(
    hidden, ctas, monkeypatch
):
    chains.always(monkeypatch, ctas)
    case = EngineCase(model="deepgelu", fields=5, dense=13, hidden=hidden, scale=1e-5)
    lowered = fuse_mapped_dot(lower(*case.load(), COMPILED_PASSES))
    folded = fold_norms(lowered, "fp16")
    assert len(folded.steps) < len(lowered.steps)
    found = same_results(group_steps(folded, "fp16"))
    assert any(layer.norm for chain in found for layer in chain.layers)
    for chain in found:
        made = [layer.sums for layer in chain.layers]
        assert all(layer.norm.sums in made for layer in chain.layers if layer.norm)


@pytest.mark.parametrize("model", ["xdeepfm", "finalmlp", "dlrm", "deepgelu"])
def test_models_with_chains_compute_the_same(model):
    case = EngineCase(model=model, fields=5, dense=13, hidden=(400, 240), scale=1e-5)
    assert same_results(group_steps(lower(*case.load(), COMPILED_PASSES), "fp16"))


@pytest.mark.parametrize("seed", range(40))
def test_random_models_compute_the_same(seed):
    spec = random_spec(seed)
    weights = random_weights(spec, seed).double().state_dict()
    same_results(lower(spec, weights, COMPILED_PASSES), rows=7)


@pytest.mark.parametrize("seed", range(20))
def test_areas_that_are_there_at_a_time_do_not_meet(seed):
    random = np.random.default_rng(seed)
    widths = random.choice([1, 16, 33, 64, 100, 200, 400, 512], random.integers(3, 9))
    program = mlp(*map(int, widths), residual=True)
    layers = [x for s in program.steps if (x := layer_of(s, program.weights))]
    areas = place_areas(layers, program.buffers)
    if areas is None:
        return
    assert areas.shared_bytes <= SHARED
    every = [*areas.inputs, *areas.own]
    for a, b in itertools.combinations(every, 2):
        early, late = sorted((a, b), key=lambda area: area.first)
        apart = a.end <= b.offset or b.end <= a.offset
        assert apart or early.last <= late.first
        assert apart or early.last_read < late.first
    assert all(areas.inputs_free >= area.last for area in areas.inputs)


def test_wide_products_are_a_chain_of_ctas_that_share_a_tile(monkeypatch):
    assert not same_results(mlp(64, 1000, 512))
    assert own_columns(512) == 256
    chains.always(monkeypatch, 4)
    assert same_results(mlp(64, 1000, 512))


def test_ctas_that_share_a_tile_have_columns_of_each_layer_but_the_last():
    def places(*widths, ctas):
        program = mlp(*widths)
        layers = [x for s in program.steps if (x := layer_of(s, program.weights))]
        return place_areas(layers, program.buffers, ctas) is not None

    assert places(64, 128, 64, 5, ctas=2)
    assert places(64, 128, 5, ctas=4)
    assert not places(64, 96, 5, ctas=4)  # three times 32 columns
    assert not places(64, 5, 33, ctas=2)
    assert places(64, 5, 33, ctas=1)


def test_a_chain_is_chosen_where_the_model_of_its_time_is_less():
    def faster(*widths, ctas=1):
        program = mlp(*widths)
        layers = [x for s in program.steps if (x := layer_of(s, program.weights))]
        return chain_rows(layers, place_areas(layers, program.buffers, ctas), ROWS, "fp16")

    assert faster(520, 256, 128, 64) == (4096, 8192)
    assert 1024 in faster(520, 256, 128, 64, ctas=4)
    assert 1024 not in faster(429, 400, 400)
    assert 4096 not in faster(429, 400, 400)
    assert 4096 not in faster(429, 400, 400, ctas=2)
    assert 4096 in faster(429, 512, 256, 128, ctas=2)


def test_chosen_chains_are_for_16_bits():
    program = mlp(520, 256, 128, 64)
    assert chains.chains_of(chain_products(program, "fp16", 8192))
    for precision in ("fp32", "tf32"):
        assert chain_products(program, precision, 8192) is program


def test_no_chain_is_chosen_that_the_largest_batches_do_not_take(monkeypatch):
    program = mlp(64, 48, 32)
    for taken in ((512,), (512, 65_536), (65_536,)):
        monkeypatch.setattr(grouping, "chain_rows", lambda *_, rows=taken: rows)
        made = chains.chains_of(chain_products(program, "fp16", 65_536))
        assert [chain.rows for chain in made] == ([taken] if 65_536 in taken else [])


def test_chosen_chains_in_words():
    chained = chain_products(mlp(520, 256, 128, 64), "fp16", 1024)
    words = chains_in_words(chained, "fp16")
    assert words.startswith(
        "products 520 -> 256 -> 128 -> 64 in one kernel in batches of 512, 1024"
    )
    assert chains_in_words(mlp(64, 48), "fp16") == "no products in chains"


def test_what_other_steps_read_goes_to_memory():
    program = mlp(64, 48, 32)
    (chain,) = chains.chains_of(chain_products(program, "fp16", 512))
    assert chain.stored == {1}
    source = chain.source("fp16").text
    assert "kStores = true" in source
    assert "m64n16k16.f32.f16.f16" in source
    assert "bf16.bf16" in chain.source("bf16").text
