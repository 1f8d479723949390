"""The first lookup brings the dense features along, and does what needs them alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_specs import random_weights

from dpiframe_core.lowering import DEVICE_PASSES, lower
from dpiframe_core.lowering.device.lookup_dense import MOST_COLUMNS, lookup_dense
from dpiframe_core.model.builtin import Deep, Features, dcnv2, deepfm
from dpiframe_core.model.spec import FieldSpec, ModelSpec
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.number_bounds import input_bounds
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import FM, LoadDense, Lookup, Outer

FIELDS = [FieldSpec(name=f"C{i}", rows=7, dim=4) for i in range(3)]
DENSE = ["a", "b", "c"]
BEFORE = DEVICE_PASSES[: DEVICE_PASSES.index(lookup_dense)]


def both(spec: ModelSpec) -> tuple[Program, Program]:
    weights = {name: w.double() for name, w in random_weights(spec, 1).state_dict().items()}
    before = lower(spec, weights, BEFORE)
    return before, lookup_dense(before)


def lookup_of(program: Program) -> Lookup:
    (lookup,) = [step for step in program.steps if isinstance(step, Lookup)]
    return lookup


def same(spec: ModelSpec, before: Program, after: Program) -> None:
    rng = np.random.default_rng(3)
    ids = torch.from_numpy(rng.integers(0, 7, (len(spec.fields), 11)))
    dense = torch.from_numpy(rng.normal(size=(len(spec.dense), 11)))
    wanted, got = (run_program(program, ids, dense) for program in (before, after))
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


def test_embeddings_fm_and_the_wide_sum_of_dense_features():
    spec = deepfm(Features(FIELDS, dense=DENSE, dense_as="field"), Deep(hidden=(8,)))
    before, after = both(spec)
    assert not any(isinstance(step, (LoadDense, Outer, FM)) for step in after.steps)
    lookup = lookup_of(after)
    assert lookup.fm_out and lookup.wide_out and all(slot.in_fm for slot in lookup.slots)
    assert sorted((s.in_fm, s.wide is not None) for s in lookup.dense) == [
        (False, True),
        (True, False),
    ]
    same(spec, before, after)


def test_numbers_of_a_concat():
    spec = dcnv2(Features(FIELDS, dense=DENSE, dense_as="raw"), Deep(hidden=(8,)))
    before, after = both(spec)
    assert after.steps[0] is lookup_of(after)
    assert not any(isinstance(step, LoadDense) for step in after.steps)
    same(spec, before, after)


def test_dense_embeddings_that_would_make_its_accesses_narrow_are_a_step():
    fields = [FieldSpec(name=f"C{i}", rows=7, dim=8) for i in range(3)]
    spec = dcnv2(Features(fields, dense=DENSE, dense_as="field"), Deep(hidden=(8,)))
    before, _ = both(spec)
    outer = next(step for step in before.steps if isinstance(step, Outer))
    narrow = np.asarray(before.weights[outer.weight])[:, :6]
    weights = {**before.weights, outer.weight: narrow}
    after = lookup_dense(before.changed(weights=weights))
    assert any(isinstance(step, Outer) for step in after.steps)
    assert not any(isinstance(step, LoadDense) for step in after.steps)


def test_a_wide_sum_that_others_read_stays_as_it_is():
    spec = deepfm(Features(FIELDS, dense=DENSE, dense_as="field"), Deep(hidden=(8,)))
    before, _ = both(spec)
    lookup = lookup_of(before)
    assert lookup.wide_out
    again = [
        step.map_views(lambda v: lookup.wide_out if v.width == 1 and v.buffer == "fm" else v)
        for step in before.steps
        if not isinstance(step, FM)
    ]
    after = lookup_dense(before.changed(steps=tuple(again)))
    assert lookup_of(after).dense and not any(slot.wide for slot in lookup_of(after).dense)


def test_more_dense_features_than_a_tile_takes_are_loaded_by_a_step():
    dense = [f"d{i}" for i in range(MOST_COLUMNS + 1)]
    spec = dcnv2(Features(FIELDS, dense=dense, dense_as="raw"), Deep(hidden=(8,)))
    before, after = both(spec)
    assert after is before


@pytest.mark.parametrize("dense_as", ["field", "raw"])
def test_bounds_are_no_smaller(dense_as):
    spec = deepfm(Features(FIELDS, dense=DENSE, dense_as=dense_as), Deep(hidden=(8,)))
    found = []
    for program in both(spec):
        bounds = input_bounds(program, [1.0, 2.0, 3.0])
        for step in program.steps:
            step.bound(bounds)
        found.append(bounds[program.output].item())
    assert found[1] == pytest.approx(found[0], rel=0.5)
    assert found[1] >= found[0] * (1 - 1e-9)
