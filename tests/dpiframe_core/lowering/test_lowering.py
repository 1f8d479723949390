"""Each pass, alone and in its place in the row, changes no result (float64)."""

from __future__ import annotations

import model_zoo
import numpy as np
import pytest
import torch

from dpiframe_core import SpecError
from dpiframe_core.lowering import COMPILED_PASSES, DEVICE_FORM, DEVICE_PASSES, PASSES, lower
from dpiframe_core.model.builtin import Deep, Features, dcn, dcnv2, deepfm
from dpiframe_core.model.modules import MLP
from dpiframe_core.program import steps as p
from dpiframe_core.program.interpreter import run_program

SPECS = model_zoo.all_specs()


@pytest.fixture(autouse=True)
def one_thread():
    """19 rows are computed sooner than a thread is woken."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _double_weights(model):
    return {name: w.double() for name, w in model.state_dict().items()}


@pytest.mark.parametrize("name", SPECS)
def test_no_pass_changes_a_result(name):
    spec = SPECS[name]
    model = model_zoo.random_model(spec)
    ids, dense = model_zoo.random_inputs(spec, 19)
    expected = model_zoo.reference_logits(model, ids, dense)
    weights = _double_weights(model)
    rows = [(), *[(one,) for one in PASSES], DEVICE_FORM]
    rows += [DEVICE_PASSES[: i + 1] for i in range(1, len(DEVICE_PASSES))] + [COMPILED_PASSES]
    for passes in rows:
        program = lower(spec, weights, passes)
        got = run_program(program, torch.from_numpy(ids), torch.from_numpy(dense).double())
        np.testing.assert_allclose(
            got.numpy(), expected, rtol=1e-11, atol=1e-11, err_msg=f"{passes}"
        )


@pytest.mark.parametrize("name", SPECS)
def test_lowered_program_keeps_only_what_it_needs(name):
    spec = SPECS[name]
    program = lower(spec, model_zoo.random_model(spec).state_dict())
    kinds = [type(step) for step in program.steps]
    assert p.BatchNorm not in kinds and p.Relu not in kinds
    assert kinds.count(p.Lookup) == 1 and kinds[-1] is p.Head
    if "deepfm" in name and ("onehot" in name or "raw" in name):
        assert p.FM not in kinds
    assert not [s for s in program.steps if isinstance(s, p.Copy) and s.x == s.out]
    if name.startswith("dcn-"):
        assert p.CrossV1 not in kinds and p.ScaleShift not in kinds


@pytest.mark.parametrize("passes", [DEVICE_FORM, DEVICE_PASSES, COMPILED_PASSES])
@pytest.mark.parametrize("name", SPECS)
def test_all_other_steps_of_a_device_program_come_before_the_head(name, passes):
    """Which therefore may tell that a batch is done; a module that nothing reads is left out."""
    spec = SPECS[name]
    modules = (*spec.modules, MLP(name="unread", inputs=("embedding",), hidden=(8,)))
    model = model_zoo.random_model(spec.model_copy(update={"modules": modules}))
    program = lower(model.spec, model.state_dict(), passes)
    assert isinstance(program.steps[-1], p.Head)
    for i, step in enumerate(program.steps[:-1]):
        later = [view for after in program.steps[i + 1 :] for view in after.reads()]
        assert any(view.overlaps(made) for view in later for made in step.writes()), step


def test_a_negative_variance_is_refused():
    # Not a number, which a fused ReLU would hide behind a zero.
    spec = SPECS["wdl-d16-raw-bn"]
    weights = model_zoo.random_model(spec).state_dict()
    weights["mlp/1/bn/var"][3] = -0.5
    with pytest.raises(SpecError, match=r"mlp\.1\.bn: a variance is below 0: -0\.5"):
        lower(spec, weights)


def test_siblings_of_dcnv2_are_one_product():
    spec = dcnv2(Features(model_zoo.fields(16)), Deep((33, 20)))
    program = lower(spec, model_zoo.random_model(spec).state_dict())
    first = next(s for s in program.steps if isinstance(s, p.Linear))
    assert first.out.width == 7 * 16 + 33
    assert first.relu == ((112, 145),)


def test_collapsed_cross_rides_on_the_first_mlp_product():
    spec = dcn(Features(model_zoo.fields(16)), Deep((33, 20)))
    program = lower(spec, model_zoo.random_model(spec).state_dict())
    widths = [s.out.width for s in program.steps if isinstance(s, p.Linear)]
    assert widths == [3 + 33 + 1, 20]


def test_wide_before_embedding_still_runs_in_order():
    spec = deepfm(Features(model_zoo.fields(4)), Deep((8,)))
    wide = next(m for m in spec.modules if m.name == "wide")
    rest = [m for m in spec.modules if m.name != "wide"]
    spec = spec.model_copy(update={"modules": (wide, *rest)})
    model = model_zoo.random_model(spec)
    ids, dense = model_zoo.random_inputs(spec, 19)
    program = lower(spec, _double_weights(model))
    got = run_program(program, torch.from_numpy(ids), torch.from_numpy(dense).double())
    np.testing.assert_allclose(
        got.numpy(), model_zoo.reference_logits(model, ids, dense), rtol=1e-11
    )


def test_weights_are_shared_and_may_be_arrays_or_tensors():
    spec = SPECS["dcn-d16-field-bn"]
    tensors = model_zoo.random_model(spec).state_dict()
    arrays = {name: w.numpy() for name, w in tensors.items()}
    ours, theirs = (lower(spec, w, DEVICE_PASSES) for w in (arrays, tensors))
    assert ours.steps == theirs.steps
    for name, weight in ours.weights.items():
        np.testing.assert_array_equal(weight, theirs.weights[name])
    tables = [name for name in tensors if "tables/" in name]
    for program in (ours, theirs):
        assert all(np.shares_memory(program.weights[name], arrays[name]) for name in tables)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_widened_before_anything_is_computed(dtype):
    spec = SPECS["wdl-d16-raw-bn"]
    halves = {n: w.to(dtype) for n, w in model_zoo.random_model(spec).state_dict().items()}
    got, wanted = lower(spec, halves), lower(spec, {n: w.float() for n, w in halves.items()})
    for name, weight in wanted.weights.items():
        assert got.weights[name].dtype == np.float32
        np.testing.assert_array_equal(got.weights[name], weight)


@pytest.mark.filterwarnings("error")
def test_weights_that_must_not_be_written_run_too():
    spec = SPECS["deepfm-d10-field-bn"]
    model = model_zoo.random_model(spec)
    weights = {name: w.numpy().copy() for name, w in _double_weights(model).items()}
    for array in weights.values():
        array.flags.writeable = False
    ids, dense = model_zoo.random_inputs(spec, 19)
    got = run_program(lower(spec, weights), torch.from_numpy(ids), torch.from_numpy(dense).double())
    expected = model_zoo.reference_logits(model, ids, dense)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-11, atol=1e-11)
