"""Chains of products in one kernel, compiled at load, against float64."""

from __future__ import annotations

import chains
import numpy as np
import pytest
import torch
from chains import mlp
from mapped_programs import gelu, glu, normed_program

from dpiframe_core.engine.cuda.backend import CudaBackend, CudaOptions
from dpiframe_core.engine.cuda.chain.choice import CLUSTERS
from dpiframe_core.engine.cuda.mapped_linear import device_passes
from dpiframe_core.engine.precision import LOGIT_BOUNDS
from dpiframe_core.lowering import COMPILED_PASSES, DEVICE_PASSES, lower
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.program import Program
from pipeline.bench.cases.engine_case import EngineCase

pytestmark = pytest.mark.skipif(
    device_passes(0) is DEVICE_PASSES, reason="no Hopper GPU or no NVRTC"
)
WIDTHS = [(520, 256, 128, 64), (429, 400, 400, 400), (72, 416, 17)]
WIDE = [(520, 512, 256, 64), (320, 1000, 512), (96, 250, 33)]
ROUNDS = 17_000  # more tiles than a GPU has multiprocessors, twice


@pytest.fixture(autouse=True)
def every_chain(monkeypatch):
    chains.always(monkeypatch)


def check(program: Program, precision: str, sizes: tuple[int, ...]) -> CudaBackend:
    """Random batches of each size, in poisoned memory, the largest first."""
    engine = CudaBackend(
        program,
        CudaOptions(precision=precision, max_batch=max(sizes), fused=False),
    )
    random = np.random.default_rng(len(sizes))
    for size in (max(sizes), *sizes):
        ids = np.zeros((len(program.field_rows), size), np.int32)
        for column, rows in zip(ids, program.field_rows, strict=True):
            column[:] = random.integers(0, rows, size)
        dense = random.normal(size=(program.num_dense, size)).astype(np.float32)
        inputs = torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(dense).double()
        wanted = run_program(program, *inputs).numpy().ravel()
        engine.poison()
        found = np.full(size, np.nan, np.float32)
        engine.run(ids, dense, False, found)
        error = np.abs(found - wanted) / np.maximum(1, np.abs(wanted))
        assert error.max() <= LOGIT_BOUNDS[precision], (size, error.max())
    return engine


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(
    "widths", [(520, 256, 128, 64), (13, 512, 256), (429, 400, 400), (64, 5, 33, 1), (72, 416, 17)]
)
def test_a_chain_computes_what_its_products_do(widths, precision):
    engine = check(mlp(*widths), precision, (1, 63, 64, 65, 700))
    assert "in one kernel in batches of" in engine.describe()
    engine.close()


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("ctas", "widths"),
    [
        *((ctas, widths) for ctas in (2, 4) for widths in WIDTHS),
        *((ctas, widths) for ctas in (4, 8) for widths in WIDE),
    ],
)
def test_ctas_share_a_tile(widths, ctas, precision, monkeypatch):
    chains.always(monkeypatch, ctas)
    engine = check(mlp(*widths), precision, (1, 63, 64, 65, 129, 700, 9000))
    assert f"{ctas} multiprocessors a tile" in engine.describe()
    engine.close()


@pytest.mark.parametrize("ctas", list(CLUSTERS))
@pytest.mark.parametrize("options", [{"gelu": True}, {"residual": True}])
def test_epilogues_read_what_lies_in_shared_memory(options, ctas, monkeypatch):
    chains.always(monkeypatch, ctas)
    check(mlp(64, 240, 240, 240, 48, **options), "fp16", (1, 130)).close()


@pytest.mark.parametrize("ctas", list(CLUSTERS))
@pytest.mark.parametrize("then", [gelu, glu])
def test_norms_of_what_a_layer_made(then, ctas, monkeypatch):
    chains.always(monkeypatch, ctas)
    check(normed_program(139, 240, then), "fp16", (1, 130, 700)).close()


@pytest.mark.parametrize("widths", [(130, 240, 100), (429, 400, 400)])
def test_a_multiprocessor_takes_one_tile_after_the_other(widths):
    check(mlp(*widths), "fp16", (64 * 132 + 1, ROUNDS)).close()


@pytest.mark.parametrize("ctas", [1, 2, 4])
@pytest.mark.parametrize(
    "model", ["dcn", "dcnv2", "xdeepfm", "finalmlp", "dlrm", "gdcn", "deepgelu"]
)
def test_models_with_chains(model, ctas, monkeypatch):
    chains.always(monkeypatch, ctas)
    case = EngineCase(model=model, fields=5, dense=13, hidden=(256, 240), scale=1e-5)
    spec, weights = case.load()
    program = lower(spec, weights, COMPILED_PASSES)
    check(program, "fp16", (1, 333)).close()
