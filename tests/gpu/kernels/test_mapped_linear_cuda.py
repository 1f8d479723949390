"""Products whose epilogue is an expression, compiled at load, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mapped_programs import cross, gate, gelu, pair, program_of

from dpiframe_core.engine.cuda.backend import CudaBackend, CudaOptions
from dpiframe_core.engine.cuda.mapped_linear import device_passes
from dpiframe_core.engine.precision import LOGIT_BOUNDS
from dpiframe_core.lowering import DEVICE_PASSES
from dpiframe_core.program.interpreter import run_program

pytestmark = pytest.mark.skipif(
    device_passes(0) is DEVICE_PASSES, reason="no Hopper GPU or no NVRTC"
)


@pytest.mark.parametrize("precision", LOGIT_BOUNDS)
@pytest.mark.parametrize(("k", "n"), [(13, 5), (64, 64), (429, 429), (72, 1000), (4200, 72)])
@pytest.mark.parametrize("make", [gelu, gate, cross, pair])
def test_a_compiled_epilogue_is_its_formula(precision, k, n, make):
    program = program_of(k, n, make)
    options = CudaOptions(precision=precision, max_batch=4099)
    backend = CudaBackend(program, options)
    for size in (1, 111, 4099):
        dense = np.random.default_rng(size).normal(size=(k, size)).astype(np.float32)
        expected = run_program(
            program, torch.zeros(0, size, dtype=torch.int64), torch.from_numpy(dense).double()
        )
        got = np.empty(size, np.float32)
        backend.run(np.zeros((0, size), np.int32), dense, False, got)
        wanted = expected.numpy().ravel()
        error = np.abs(got - wanted) / np.maximum(1, np.abs(wanted))
        assert error.max() <= LOGIT_BOUNDS[precision], (size, error.max())
    backend.close()
