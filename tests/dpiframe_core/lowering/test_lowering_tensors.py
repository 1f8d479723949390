"""Random graphs of generic tensor operations: lowering changes no result (float64)."""

from __future__ import annotations

import model_zoo
import numpy as np
import pytest
import torch
from random_tensors import random_tensor_model

from dpiframe_core.lowering import COMPILED_PASSES, DEVICE_FORM, DEVICE_PASSES, PASSES, lower
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.steps import LinearRows

SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_pass_keeps_the_logits(seed):
    model = random_tensor_model(seed).double()
    ids, dense = model_zoo.random_inputs(model.spec, 19, seed)
    expected = model_zoo.reference_logits(model, ids, dense)
    for passes in ((), PASSES, DEVICE_FORM, DEVICE_PASSES, COMPILED_PASSES):
        program = lower(model.spec, model.state_dict(), passes)
        got = run_program(program, torch.from_numpy(ids), torch.from_numpy(dense).double())
        np.testing.assert_allclose(got.numpy(), expected, 1e-9, 1e-9)


def test_products_of_rows_reach_the_gemm_family():
    found = [
        step for seed in SEEDS for step in _program(seed).steps if isinstance(step, LinearRows)
    ]
    assert len({(step.rows > 1, step.stride > 8) for step in found}) > 1


def _program(seed):
    model = random_tensor_model(seed)
    return lower(model.spec, model.state_dict(), DEVICE_PASSES)
