"""Products whose epilogue is an expression, compiled at load, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpiframe_core.engine.cuda.backend import CudaBackend, CudaOptions
from dpiframe_core.engine.cuda.mapped_linear import device_passes
from dpiframe_core.engine.precision import LOGIT_BOUNDS
from dpiframe_core.lowering import DEVICE_PASSES
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Head, Linear, LoadDense, MappedLinear, Step
from dpiframe_core.program.views import DENSE, View, Weight

GELU = ("mul", ("mul", 0.5, "x0"), ("add", 1.0, ("erf", ("mul", "x0", 2**-0.5))))
GATE = ("add", ("mul", ("mul", "x1", "x0"), ("sigmoid", "x2")), ("mul", "x3", "x4"))


pytestmark = pytest.mark.skipif(
    device_passes(0) is DEVICE_PASSES, reason="no Hopper GPU or no NVRTC"
)


def _gelu(x: View, n: int) -> list[Step]:
    return [MappedLinear("m", x, Weight("w"), Weight("b"), GELU, (), (), View("out", 0, n))]


def _gate(x: View, n: int) -> list[Step]:
    """Operands of every kind: of the activation type, float32 of one column, constants."""
    gate, scalar, out = View("gate", 0, n), View("scalar", 0, 1), View("out", 0, n)
    constants = (Weight("column"), Weight("number"))
    return [
        Linear("gate", x, Weight("w2"), None, gate),
        Linear("scalar", x, Weight("w1"), None, scalar),
        MappedLinear("m", x, Weight("w"), None, GATE, (gate, scalar), constants, out),
    ]


def _program(k: int, n: int, make) -> Program:
    random = np.random.default_rng(3)
    x, out, logit = View("rows", 0, k), View("out", 0, n), View("logit", 0, 1)
    steps = (
        LoadDense("load", View(DENSE, 0, k), x),
        *make(x, n),
        Head("head", ((out, Weight("head")),), (), (), None, logit),
    )
    weights = {
        "w": random.normal(size=(n, k)) / k**0.5,
        "w1": random.normal(size=(1, k)) / k**0.5,
        "w2": random.normal(size=(n, k)) / k**0.5,
        "b": random.normal(size=n),
        "column": random.normal(size=n),
        "number": np.array([0.7]),
        "head": random.normal(size=n) / n**0.5,
    }
    buffers = {v.buffer: v.width for s in steps for v in (*s.reads(), *s.writes())}
    return Program((), (), (), k, buffers, steps, weights, logit).changed()


@pytest.mark.parametrize("precision", LOGIT_BOUNDS)
@pytest.mark.parametrize(("k", "n"), [(13, 5), (64, 64), (429, 429), (72, 1000)])
@pytest.mark.parametrize("make", [_gelu, _gate])
def test_a_compiled_epilogue_is_its_formula(precision, k, n, make):
    program = _program(k, n, make)
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
