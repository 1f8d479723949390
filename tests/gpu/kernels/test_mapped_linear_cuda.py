"""Products whose epilogue is an expression, compiled at load, against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mapped_programs import cross, gate, gelu, pair, program_of

from dpiframe_core.engine.cuda.backend import CudaBackend, CudaOptions
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
    backend = CudaBackend(program, CudaOptions(precision=precision, max_batch=4099))
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
    check(program_of(k, n, make), precision, k)


@pytest.mark.parametrize("precision", LOGIT_BOUNDS)
@pytest.mark.parametrize(("k", "n"), [(13, 5), (64, 80), (429, 429), (4200, 72)])
@pytest.mark.parametrize("make", MAKES)
def test_the_heads_dot_is_part_of_it(precision, k, n, make):
    program = fuse_mapped_dot(program_of(k, n, make))
    assert not program.steps[-2].stored
    check(program, precision, k)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_dot_of_what_others_read_too(precision):
    program = program_of(72, 100, gelu)
    (view, weight), *_ = program.steps[-1].dots
    twice = replace(program.steps[-1], dots=((view, weight), (view, weight)))
    program = fuse_mapped_dot(program.changed(steps=(*program.steps[:-1], twice)))
    assert program.steps[-2].head and program.steps[-2].stored
    check(program, precision, 72)
