"""Products whose epilogue is an expression, compiled at load, against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mapped_programs import cross, gate, gelu, glu, normed_program, pair, program_of

from dpiframe_core.engine.cuda.backend import CudaBackend, CudaOptions
from dpiframe_core.engine.cuda.fold_norm import fold_norms
from dpiframe_core.engine.cuda.mapped_linear import device_passes
from dpiframe_core.engine.precision import LOGIT_BOUNDS
from dpiframe_core.lowering import DEVICE_PASSES
from dpiframe_core.lowering.device.fuse_dot import fuse_mapped_dot
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.program import Program

pytestmark = pytest.mark.skipif(
    device_passes(0) is DEVICE_PASSES, reason="no Hopper GPU or no NVRTC"
)


MAKES = [gelu, gate, cross, pair]


def check(program: Program, precision: str, k: int) -> None:
    """Random batches of several sizes, the last first, in poisoned memory."""
    options = CudaOptions(precision=precision, max_batch=4099)
    backend = CudaBackend(program, options)
    for size in (4099, 1, 111, 4099):
        dense = np.random.default_rng(size).normal(size=(k, size)).astype(np.float32)
        expected = run_program(
            program, torch.zeros(0, size, dtype=torch.int64), torch.from_numpy(dense).double()
        )
        got = np.empty(size, np.float32)
        backend.poison()
        backend.run(np.zeros((0, size), np.int32), dense, False, got)
        wanted = expected.numpy().ravel()
        error = np.abs(got - wanted) / np.maximum(1, np.abs(wanted))
        assert error.max() <= LOGIT_BOUNDS[precision], (size, error.max())
    backend.close()


@pytest.mark.parametrize("precision", LOGIT_BOUNDS)
@pytest.mark.parametrize(("k", "n"), [(13, 5), (64, 64), (429, 429), (72, 1000), (4200, 72)])
@pytest.mark.parametrize("make", MAKES)
def test_a_compiled_epilogue_is_its_formula(precision, k, n, make):
    program = program_of(k, n, make)
    both = (program.steps[-1].dots[0], program.steps[-1].dots[0])  # one of them stays the head's
    head = replace(program.steps[-1], dots=both)
    check(program.changed(steps=(*program.steps[:-1], head)), precision, k)


@pytest.mark.parametrize("precision", LOGIT_BOUNDS)
@pytest.mark.parametrize(("k", "n"), [(13, 5), (64, 80), (429, 429), (4200, 72)])
@pytest.mark.parametrize("make", MAKES)
def test_the_heads_dot_is_part_of_it(precision, k, n, make):
    program = program_of(k, n, make)
    assert not fuse_mapped_dot(program).steps[-2].stored
    check(program, precision, k)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(("k", "n"), [(13, 300), (429, 400), (4200, 429)])
@pytest.mark.parametrize("then", [gelu, glu])
def test_a_norm_is_part_of_the_products_around_it(precision, k, n, then):
    program = normed_program(k, n, then)
    assert "norm" not in [step.name for step in fold_norms(program, precision).steps]
    check(program, precision, k)
