"""The kernel of a chain of products, run by the threads of its CTAs on the host."""

from __future__ import annotations

import chain_on_host
import chains
import numpy as np
import pytest
import torch
from epilogue_on_host import cuda_headers
from mapped_programs import gelu, normed_program
from random_specs import random_weights

from dpiframe_core import _core
from dpiframe_core.engine.cuda.chain.grouping import chain_products
from dpiframe_core.engine.cuda.fold_norm import fold_norms
from dpiframe_core.engine.precision import LOGIT_BOUNDS
from dpiframe_core.lowering import COMPILED_PASSES, lower
from dpiframe_core.model.builtin import Deep, Features, dcnv2
from dpiframe_core.model.spec import FieldSpec
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.program import Program
from dpiframe_core.program.views import State

pytestmark = pytest.mark.skipif(
    not _core.build_info()["cuda"] or cuda_headers() is None,
    reason="needs a build with CUDA and its headers, though no GPU",
)


@pytest.fixture(autouse=True)
def every_chain(monkeypatch):
    chains.always(monkeypatch)


def check(program: Program, rows: int, blocks: int, folder, precision: str = "fp16") -> None:
    """The logits, with the chain's kernel in its place, are the program's. `blocks`: of CTAs."""
    made = chain_products(program, precision, 65536)
    (chain,) = chains.chains_of(made)
    random = np.random.default_rng(rows)
    ids = np.zeros((len(program.field_rows), rows), np.int64)
    for column, count in zip(ids, program.field_rows, strict=True):
        column[:] = random.integers(0, count, rows)
    dense = torch.from_numpy(random.normal(size=(program.num_dense, rows)))
    wanted = run_program(program, torch.from_numpy(ids), dense).ravel()
    weights = {name: torch.from_numpy(w.astype(np.float64)) for name, w in program.weights.items()}
    buffers = {
        name: torch.full((rows, width), torch.nan, dtype=torch.float64)
        for name, width in program.buffers.items()
    }
    buffers["dense"] = dense.T.contiguous()
    state = State(buffers, weights, torch.from_numpy(ids))
    for step in made.steps:
        if step is chain:
            chain_on_host.run(chain, program, precision, buffers, blocks, folder)
        else:
            step.run(state)
    found = state[program.output].ravel()
    error = (found - wanted).abs() / wanted.abs().clamp_min(1)
    assert error.max() <= LOGIT_BOUNDS[precision], error.max()


@pytest.mark.parametrize(
    ("widths", "rows", "blocks"),
    [
        ((130, 100, 33), 150, 2),
        ((72, 5, 20, 1), 64, 1),
        ((13, 416, 17), 65, 1),
        ((33, 48, 40), 65, 1),
    ],
)
def test_a_chain_computes_what_its_products_do(widths, rows, blocks, tmp_path):
    check(chains.mlp(*widths), rows, blocks, tmp_path)


@pytest.mark.parametrize("ctas", [2, 4])
@pytest.mark.parametrize(
    ("widths", "options"),
    [
        ((130, 100, 33), {}),
        ((72, 113, 20), {}),
        ((64, 112, 112, 112, 48), {"residual": True}),
        ((33, 208, 40), {"gelu": True}),
    ],
)
def test_ctas_share_a_tile(widths, options, ctas, tmp_path, monkeypatch):
    chains.always(monkeypatch, ctas)
    check(chains.mlp(*widths, **options), 70, 2 * ctas, tmp_path)


@pytest.mark.parametrize("ctas", [1, 2])
def test_norms_of_what_a_layer_made(ctas, tmp_path, monkeypatch):
    chains.always(monkeypatch, ctas)
    check(fold_norms(normed_program(40, 240, gelu), "fp16"), 70, 2 * ctas, tmp_path)


def test_bf16(tmp_path):
    check(chains.mlp(64, 48, 32), 70, 1, tmp_path, "bf16")


@pytest.mark.parametrize("options", [{"gelu": True}, {"residual": True}])
def test_epilogues_read_what_lies_in_shared_memory(options, tmp_path):
    check(chains.mlp(64, 80, 80, 80, 48, **options), 130, 1, tmp_path)


@pytest.mark.parametrize("ctas", [1, 2])
def test_cross_layers_and_dots(ctas, tmp_path, monkeypatch):
    chains.always(monkeypatch, ctas)
    fields = [FieldSpec(name=f"C{i}", rows=9, dim=16) for i in range(5)]
    spec = dcnv2(Features(fields), Deep((48, 32)), 2, "stacked")
    program = lower(spec, random_weights(spec, 0).double().state_dict(), COMPILED_PASSES)
    check(program, 130, 2 if ctas == 1 else 6, tmp_path)
