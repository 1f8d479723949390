"""Dense features become rows where they are read: in concats alone, or in a buffer of their own."""

from __future__ import annotations

import numpy as np
from imported_models import Imported
from random_specs import random_weights
from torch_models import MODELS

from dpiframe_core.frontend.tracing.capture import traced
from dpiframe_core.lowering import COMPILED_PASSES, DEVICE_PASSES, lower
from dpiframe_core.lowering.device.load_dense import FACTORS, ROWS
from dpiframe_core.lowering.device.lookup_dense import lookup_dense
from dpiframe_core.model.builtin import Deep, Features, dcnv2, deepfm
from dpiframe_core.model.spec import FieldSpec, ModelSpec
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Copy, LoadDense, Lookup

BEFORE = DEVICE_PASSES[: DEVICE_PASSES.index(lookup_dense)]
FIELDS = [FieldSpec(name=f"C{i}", rows=7, dim=4) for i in range(3)]


def lowered(spec: ModelSpec) -> Program:
    return lower(spec, random_weights(spec, 1).state_dict(), BEFORE)


def test_a_concat_is_filled_without_a_copy():
    features = Features(FIELDS, dense=["a", "b", "c"], dense_as="raw")
    program = lowered(dcnv2(features, Deep(hidden=(8,))))
    (load,) = [step for step in program.steps if isinstance(step, LoadDense)]
    assert not any(isinstance(step, Copy) for step in program.steps)
    assert (load.out.start, load.out.width) == (12, 3)


def test_what_other_steps_read_too_has_a_buffer_of_its_own():
    features = Features(FIELDS, dense=["a", "b", "c"], dense_as="field")
    program = lowered(deepfm(features, Deep(hidden=(8,))))
    (load,) = [step for step in program.steps if isinstance(step, LoadDense)]
    assert (program.steps[0], program.buffers[load.out.buffer]) == (load, 3)


def test_products_have_rows_of_their_own_where_ids_are_computed_of_the_numbers():
    model, inputs = MODELS["Times"].make().eval(), MODELS["Times"].inputs()
    found = Imported(traced(model, inputs))
    program = lower(found.spec, found.weights, COMPILED_PASSES)
    (lookup,) = [step for step in program.steps if isinstance(step, Lookup)]
    outs = {out.buffer for out in lookup.dense_out if out}
    assert outs == {ROWS, FACTORS}
    assert outs & program.float_buffers() == {ROWS}
    ids, dense = found.rows(dict(zip(("x", "d"), inputs, strict=True)))
    got = run_program(program, ids, dense)
    np.testing.assert_allclose(got.numpy(), model(*inputs).detach().numpy(), atol=1e-5)
