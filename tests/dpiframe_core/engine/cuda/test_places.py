"""Products that differ in their place alone become one step, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from placed_models import Experts, PerToken, placed_models
from torch import nn

from dpiframe_core import from_torch
from dpiframe_core.engine.cuda.places import LEAST_PLACES, PlacedLinear, join_places
from dpiframe_core.engine.cuda.tile.grouping import group_steps
from dpiframe_core.lowering import COMPILED_PASSES, lower
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.program import Program

STEPS = {"tokens": 2, "stacked experts": 1, "experts": 1}  # that are products of places


def lowered(model: nn.Module) -> Program:
    imported = from_torch(model.eval(), torch.tensor([1, 2]), precisions=())
    return lower(imported.spec, imported.weights, COMPILED_PASSES)


def scores(program: Program) -> np.ndarray:
    ids = torch.arange(19).unsqueeze(0)
    return np.asarray(run_program(program, ids, torch.zeros(0, 19)))


@pytest.mark.parametrize("name", STEPS)
def test_products_of_places_are_one(name):
    program = lowered(placed_models()[name])
    joined = join_places(program, "fp16")
    found = [step for step in joined.steps if isinstance(step, PlacedLinear)]
    assert len(found) == STEPS[name]
    np.testing.assert_allclose(scores(joined), scores(program), atol=1e-5)
    # The same with the other steps in groups.
    np.testing.assert_allclose(scores(group_steps(joined, "fp16")), scores(program), atol=1e-5)


@pytest.mark.parametrize("name", STEPS)
def test_the_whole_is_its_parts(name):
    program = join_places(lowered(placed_models()[name]), "bf16")
    for step in program.steps:
        if not isinstance(step, PlacedLinear):
            continue
        whole, n = step.whole, step.parts[0].out.width
        weight = np.asarray(program.weights[whole.weight])
        assert weight.shape[0] == whole.out.width == n * len(step.parts)
        for i, part in enumerate(step.parts):
            rows = slice(i * n, (i + 1) * n)
            np.testing.assert_array_equal(weight[rows], program.weights[part.weight])
            assert part.out == whole.out.columns(i * n, n)
            assert part.x.start == whole.x.start + i * step.x_step
            for x, view, columns in zip(part.xs, whole.xs, step.xs_steps, strict=True):
                assert x.start == view.start + i * (columns if view.width == 1 else n)


def test_what_stays_apart():
    program = lowered(PerToken())
    assert join_places(program, "fp32") is program
    small = lowered(Experts(stacked=False, hidden=64))  # for generated kernels
    assert join_places(small, "fp16") is small
    few = lowered(PerToken(tokens=LEAST_PLACES - 1))
    assert join_places(few, "fp16") is few
    narrow = lowered(PerToken(width=56, hidden=152))  # no whole groups of 16 columns
    assert not any(isinstance(s, PlacedLinear) for s in join_places(narrow, "fp16").steps)
