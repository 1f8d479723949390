"""The bounds of 16 bits hold: programs run in float32 with everything rounded that a GPU rounds.

`DPIFRAME_RANDOM_SPECS=300 python -m pytest tests/dpiframe_core/engine/test_precision.py` draws more
models.
"""

from __future__ import annotations

import os

import model_zoo
import numpy as np
import pytest
import torch
from random_specs import WIDE_FM, error_bound, random_spec, random_weights, wide_fm

from dpiframe_core.engine.precision import HALF_PRECISIONS, LOGIT_BOUNDS, bound_in_words
from dpiframe_core.lowering import DEVICE_PASSES, lower
from dpiframe_core.model.spec import ModelSpec
from dpiframe_core.model.torch_module import CTRModel
from dpiframe_core.program.steps import FusedLinear, Linear, Lookup
from dpiframe_core.program.views import DENSE, State

COUNT = int(os.environ.get("DPIFRAME_RANDOM_SPECS", "8"))
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def logits_in_16_bits(
    model: CTRModel, ids: np.ndarray, dense: np.ndarray, precision: str
) -> np.ndarray:
    """Logits [B] where tables, products' weights and activations are rounded, nothing else is."""
    program = lower(model.spec, model.state_dict(), DEVICE_PASSES)
    floats, weights = program.float_buffers(), dict(program.weights)
    slots = [slot for s in program.steps if isinstance(s, Lookup) for slot in s.slots]
    products = [s for s in program.steps if isinstance(s, (Linear, FusedLinear))]
    halves = {slot.table for slot in slots if slot.table} | {s.weight for s in products}

    def rounded(values: torch.Tensor) -> torch.Tensor:
        return values.to(TYPES[precision]).float()

    tensors = {name: torch.from_numpy(np.array(weight)) for name, weight in weights.items()}
    tensors |= {name: rounded(tensors[name]) for name in halves}
    shape = ids.shape[1]
    buffers = {name: torch.full((shape, w), torch.nan) for name, w in program.buffers.items()}
    buffers[DENSE] = torch.from_numpy(dense).T
    state = State(buffers, tensors, torch.from_numpy(ids))
    for step in program.steps:
        step.run(state)
        for view in step.writes():
            if view.buffer not in floats:
                state[view].copy_(rounded(state[view]))
    return state[program.output][:, 0].numpy()


def errors(spec: ModelSpec, seed: int, precision: str, batch: int = 300) -> tuple[float, float]:
    """The largest error in terms of the bound, and in terms of the bound of all but FM."""
    model = random_weights(spec, seed)
    ids, dense = model_zoo.random_inputs(spec, batch, seed)
    expected = model_zoo.reference_logits(model, ids, dense)
    error = np.abs(logits_in_16_bits(model, ids, dense, precision) - expected)
    bound = error_bound(model, precision, ids, dense, expected)
    rest = LOGIT_BOUNDS[precision] * np.maximum(1, np.abs(expected))
    return float((error / bound).max()), float((error / rest).max())


@pytest.mark.parametrize("precision", HALF_PRECISIONS)
@pytest.mark.parametrize("seed", range(COUNT))
def test_random_specs_are_within_their_bounds(seed: int, precision: str) -> None:
    of_bound, of_rest = errors(random_spec(seed), seed, precision, 200)
    assert of_bound < (0.1 if of_rest > 1 else 1)  # FM's bound is of the worst case


@pytest.mark.parametrize("precision", HALF_PRECISIONS)
def test_fm_has_a_bound_of_its_own(precision: str) -> None:
    found = [errors(wide_fm(*shape), sum(shape), precision, 700) for shape in WIDE_FM]
    assert max(of_bound for of_bound, _ in found) < 1
    assert max(of_rest for _, of_rest in found) > 1  # so it needs one


def test_roundings_that_all_go_one_way() -> None:
    """The worst case of FM: every number is rounded by half a unit, and all in one direction."""
    spec = wide_fm(200, 7)
    for precision, unit in (("fp16", 2.0**-10), ("bf16", 2.0**-7)):
        model = random_weights(spec, 1)
        for name, tensor in model.state_dict().items():
            if "tables" in name:
                tensor.fill_(0.25 * (1 + 0.499 * unit))
        ids, dense = model_zoo.random_inputs(spec, 19)
        dense[:] = 0
        expected = model_zoo.reference_logits(model, ids, dense)
        error = np.abs(logits_in_16_bits(model, ids, dense, precision) - expected)
        assert (error < error_bound(model, precision, ids, dense, expected)).all()


def test_describe_states_the_bound() -> None:
    spec = wide_fm(3, 4)
    program = lower(spec, random_weights(spec, 0).state_dict(), DEVICE_PASSES)
    assert bound_in_words("fp32", program) == "logits within 1e-05 max(1, |logit|) of float64's"
    assert bound_in_words("bf16", program) == (
        "logits within 0.06 max(1, |logit|) + 0.0078125 sum |v| |s - v| "
        "(FM: v of a field, s of all) of float64's"
    )
