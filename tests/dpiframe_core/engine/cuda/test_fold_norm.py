"""A layer norm between products is part of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mapped_programs import gelu, glu, normed_program

from dpiframe_core.engine.cuda.fold_norm import fold_norms, rounded
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Copy, MappedLinear
from dpiframe_core.program.views import View

N = 240


def logits(program: Program) -> np.ndarray:
    generator = torch.Generator().manual_seed(1)
    dense = torch.randn(program.num_dense, 37, dtype=torch.float64, generator=generator)
    return run_program(program, torch.zeros(0, 37, dtype=torch.int64), dense).numpy()


@pytest.mark.parametrize(("precision", "bound"), [("fp16", 4e-3), ("bf16", 3e-2)])
@pytest.mark.parametrize("then", [gelu, glu])
def test_the_norm_goes(then, precision, bound):
    program = normed_program(139, N, then)
    folded = fold_norms(program, precision)
    assert "norm" not in [step.name for step in folded.steps]
    (first, *others) = [s for s in folded.steps if isinstance(s, MappedLinear)]
    assert first.sums_out and all(other.x == first.out for other in others if other.norm)
    # The weights are rounded, and the mean is far from 0; the sums are taken of rounded ones.
    wanted, found = logits(program), logits(folded)
    assert np.abs(found - wanted).max() < bound * max(1, np.abs(wanted).max())


def test_float32_keeps_it():
    program = normed_program(139, N, gelu)
    assert fold_norms(program, "fp32") is program and fold_norms(program, "tf32") is program


def test_what_others_read_stays():
    program = normed_program(139, N, gelu)
    copied = Copy("copy", View("normed", 0, 8), View("copied", 0, 8))
    head = program.steps[-1]
    more = (*head.dots, (View("copied", 0, 8), "copied"))
    steps = (*program.steps[:-1], copied, type(head)("head", more, (), (), None, head.out))
    weights = {**program.weights, "copied": np.ones(8)}
    kept = program.changed(steps=steps, weights=weights, buffers={**program.buffers, "copied": 8})
    assert "norm" in [step.name for step in fold_norms(kept, "fp16").steps]


def test_a_weight_that_16_bits_do_not_hold_keeps_it():
    program = normed_program(139, N, gelu)
    weights = {**program.weights, "gamma": np.full(N, 1e6)}
    kept = fold_norms(program.changed(weights=weights), "fp16")
    assert "norm" in [step.name for step in kept.steps]


def test_rounding_is_that_of_the_types():
    values = np.random.default_rng(0).normal(size=1000) * 10.0 ** np.arange(-5, 5).repeat(100)
    for precision, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        wanted = torch.from_numpy(values.astype(np.float32)).to(dtype).double().numpy()
        np.testing.assert_array_equal(rounded(values.astype(np.float32), precision), wanted)
