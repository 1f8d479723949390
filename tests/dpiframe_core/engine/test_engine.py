"""The CPU engine against float64, for every model; its inputs, policies and errors."""

from __future__ import annotations

import os
import warnings

import model_zoo
import numpy as np
import pytest
import torch

from dpiframe_core import BadIdError, FieldSpec, load_engine, save_bundle
from dpiframe_core.engine.cuda import loading
from dpiframe_core.engine.cuda.backend import CudaOptions
from dpiframe_core.engine.cuda.kernel_compiler import CompileError
from dpiframe_core.lowering import COMPILED_PASSES
from dpiframe_core.model.builtin import MODELS, Deep, Features, deepfm

SPECS = model_zoo.all_specs()


@pytest.fixture
def engine_of(tmp_path):
    def make(spec, model=None, **options):
        model = model or model_zoo.random_model(spec)
        bundle = save_bundle(tmp_path / "bundle", spec, model.state_dict())
        return model, load_engine(bundle, device="cpu", **options)

    return make


@pytest.fixture
def deepfm_engine(engine_of):
    features = Features(model_zoo.fields(16), ["I1", "I2", "I3"], "field")
    return engine_of(deepfm(features, Deep((33, 20))))


@pytest.mark.parametrize("light", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_logits_are_within_1e_5_of_float64(engine_of, name, light):
    model, engine = engine_of(SPECS[name], light=light)
    for batch in (0, 1, 19, 1111):
        ids, dense = model_zoo.random_inputs(SPECS[name], batch, seed=batch)
        expected = model_zoo.reference_logits(model, ids, dense)
        error = np.abs(engine.logits(ids, dense) - expected) / np.maximum(1, np.abs(expected))
        assert error.size == 0 or error.max() < 1e-5


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("num_dense", [0, 13])
@pytest.mark.parametrize("std", [0.3, 1.0])
@pytest.mark.parametrize("light", [False, True])
def test_the_criteo_shape_is_within_1e_5_of_float64(engine_of, make, num_dense, std, light):
    fields = [FieldSpec(name=f"C{i}", rows=111, dim=16) for i in range(39 - num_dense)]
    dense = [f"I{i}" for i in range(num_dense)]
    spec = make(Features(fields, dense, "field"), Deep(batch_norm=True))
    model = model_zoo.random_model(spec)
    for name, weight in model.state_dict().items():
        if "/tables/" in name:
            weight.mul_(std / 0.3)  # random_model's deviation
    model, engine = engine_of(spec, model, light=light)
    ids, dense = model_zoo.random_inputs(spec, 1111)
    expected = model_zoo.reference_logits(model, ids, dense)
    error = np.abs(engine.logits(ids, dense) - expected) / np.maximum(1, np.abs(expected))
    assert error.max() < 1e-5


def test_scores_are_the_sigmoid_of_the_logits(deepfm_engine):
    model, engine = deepfm_engine
    ids, dense = model_zoo.random_inputs(model.spec, 111)
    expected = 1 / (1 + np.exp(-model_zoo.reference_logits(model, ids, dense)))
    scores = engine.score(ids, dense)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_forms_of_input_give_one_result(deepfm_engine):
    model, engine = deepfm_engine
    ids, dense = model_zoo.random_inputs(model.spec, 111)
    expected = engine.score(ids, dense)
    strided = np.repeat(ids, 2, axis=1)[:, ::2]
    mixed = [c.astype(np.int32) if i % 2 else c for i, c in enumerate(ids)]
    read_only = ids.astype(np.int32)
    read_only.flags.writeable = False
    forms = [
        (strided, dense),
        (mixed, list(dense)),
        (read_only, np.asfortranarray(dense)),
        (torch.from_numpy(ids), torch.from_numpy(dense)),
        ([torch.from_numpy(c) for c in ids], tuple(torch.from_numpy(c) for c in dense)),
    ]
    for form in forms:
        np.testing.assert_array_equal(engine.score(*form), expected)
    np.testing.assert_array_equal(np.concatenate(list(engine.stream([forms[0]]))), expected)


def test_batches_beyond_max_batch_are_cut(engine_of):
    spec = SPECS["dcnv2-d16-raw-bn"]
    model, engine = engine_of(spec, max_batch=100)
    ids, dense = model_zoo.random_inputs(spec, 1111)
    expected = model_zoo.reference_logits(model, ids, dense)
    np.testing.assert_allclose(engine.logits(ids, dense), expected, rtol=1e-5, atol=1e-5)
    assert len(engine.batch_seconds) == 12 and engine.device_seconds == (0, 0, 0)


@pytest.mark.parametrize("value", [-1, 19, 2**40])
def test_a_bad_id_fails_with_its_place(deepfm_engine, value):
    model, engine = deepfm_engine
    ids, dense = model_zoo.random_inputs(model.spec, 1111)
    ids[3, 700], ids[3, 900] = value, value
    with pytest.raises(BadIdError, match=f"id {value} in row 700 of field C3") as error:
        engine.score(ids, dense)
    assert (error.value.field, error.value.row, error.value.value) == ("C3", 700, value)
    assert str(error.value).endswith("; fix the encoding")  # it has no oov row to score it by
    assert engine.bad_ids.tolist() == [0, 0, 0, 2, 0, 0, 0]


def test_a_bad_id_of_a_model_with_oov_rows_says_so(engine_of):
    fields = [f.model_copy(update={"oov_row": 0}) for f in model_zoo.fields(16)]
    model, engine = engine_of(deepfm(Features(fields), Deep((8,))))
    ids, dense = model_zoo.random_inputs(model.spec, 19)
    ids[4, 5] = -7
    with pytest.raises(BadIdError, match="or load the engine with on_bad_id='oov'"):
        engine.score(ids, dense)


def test_a_bad_id_scores_as_the_oov_row(engine_of):
    fields = [f.model_copy(update={"oov_row": f.rows // 2}) for f in model_zoo.fields(16)]
    model, engine = engine_of(deepfm(Features(fields), Deep((8,))), on_bad_id="oov")
    ids, dense = model_zoo.random_inputs(model.spec, 19)
    declared = ids.copy()
    ids[4, 5], ids[4, 6], ids[0, 5] = 111, -7, 1
    declared[4, 5:7], declared[0, 5] = 55, 0
    np.testing.assert_array_equal(engine.score(ids, dense), engine.score(declared, dense))
    engine.score(ids, dense)
    assert engine.bad_ids.tolist() == [1, 0, 0, 0, 2, 0, 0]


def test_wrong_inputs_are_named(deepfm_engine):
    model, engine = deepfm_engine
    ids, dense = model_zoo.random_inputs(model.spec, 19)
    for bad_ids, bad_dense, message in [
        (ids[:3], dense, "ids must have 7 rows"),
        (ids.astype(np.float32), dense, "field C0 must be int32 or int64, got float32"),
        ([*ids[:6], ids[6][:5]], dense, r"field C6 must have shape \[19\]"),
        (ids, dense[:2], r"dense must have shape \[3, 19\], got \[2, 19\]"),
        (ids, dense.astype(np.float64), "dense must be float32"),
        (ids, None, "3 dense features, got none"),
        (ids, [dense[0], dense[1], dense[2][:5]], r"dense must have shape \[3, 19\], got \[3, 5\]"),
        (ids[0], dense, r"expected 2 dimensions, one row a feature, got shape \(19,\)"),
        (torch.from_numpy(ids).bfloat16(), dense, "expected arrays in CPU memory, got Tensor"),
        (ids.tolist(), dense, "expected arrays in CPU memory, got list"),
        (ids.astype(">i8"), dense, "must be int32 or int64, got >i8"),
    ]:
        with pytest.raises(ValueError, match=message):
            engine.score(bad_ids, bad_dense)


def test_wrong_options_are_named(tmp_path):
    spec = deepfm(Features(model_zoo.fields(4)))
    bundle = save_bundle(tmp_path / "b", spec, model_zoo.random_model(spec).state_dict())
    for options, message in [
        ({"precision": "fp8"}, "precision must be one of fp32"),
        ({"max_batch": 0}, "max_batch must be at least 1"),
        ({"on_bad_id": "oov"}, "needs an oov_row in every field"),
        ({"on_bad_id": "zero"}, "on_bad_id must be one of fail, oov"),
        ({"policy": "random"}, "policy must be one of serial, depth_first, breadth_first"),
    ]:
        with pytest.raises(ValueError, match=message):
            load_engine(bundle, **options)


def test_a_closed_engine_says_so(deepfm_engine):
    model, engine = deepfm_engine
    assert "Lookup" in engine.describe()
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        engine.score(*model_zoo.random_inputs(model.spec, 1))


def test_half_precision_weights_are_folded_in_float32(tmp_path):
    spec = SPECS["dcnv2-d16-raw-bn"]
    model = model_zoo.random_model(spec)
    weights = {name: w.bfloat16() for name, w in model.state_dict().items()}
    model.load_state_dict({name: w.float() for name, w in weights.items()})
    ids, dense = model_zoo.random_inputs(spec, 111)
    engine = load_engine(save_bundle(tmp_path / "half", spec, weights))
    expected = model_zoo.reference_logits(model, ids, dense)
    np.testing.assert_allclose(engine.logits(ids, dense), expected, rtol=1e-5, atol=1e-5)


def test_one_dense_feature_may_be_read_only(engine_of, recwarn):
    spec = deepfm(Features(model_zoo.fields(4), ["I1"], "raw"), Deep((8,)))
    _, engine = engine_of(spec)
    ids, dense = model_zoo.random_inputs(spec, 19)
    dense.flags.writeable = False
    engine.score(ids, dense)
    assert not recwarn.list


def test_a_second_thread_is_refused(deepfm_engine):
    model, engine = deepfm_engine
    inputs = model_zoo.random_inputs(model.spec, 19)
    with engine._backend._turn, pytest.raises(RuntimeError, match="another thread"):
        engine.score(*inputs)
    engine.score(*inputs)


def test_a_fork_must_load_its_own_engine(deepfm_engine):
    model, engine = deepfm_engine
    inputs = model_zoo.random_inputs(model.spec, 19)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking with threads
        child = os.fork()
    if child == 0:
        try:
            engine.score(*inputs)
        except RuntimeError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_two_engines_in_one_process_do_not_disturb_each_other(tmp_path):
    made = []
    for seed, name in enumerate(("dcn-d10-field", "dcnv2_stacked-d64-raw")):
        model = model_zoo.random_model(SPECS[name], seed)
        bundle = save_bundle(tmp_path / name, SPECS[name], model.state_dict())
        ids, dense = model_zoo.random_inputs(SPECS[name], 111, seed)
        made.append((load_engine(bundle), ids, dense))
    first = [engine.score(ids, dense) for engine, ids, dense in made]
    again = [engine.score(ids, dense) for engine, ids, dense in reversed(made)][::-1]
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_gpu_runs_kernels_compiled_ahead_where_compiling_at_load_fails(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    tried = []

    def backend(program, options):
        tried.append(program)
        if len(tried) == 1:
            raise CompileError("no such register")
        return program

    monkeypatch.setattr(loading, "CudaBackend", backend)
    monkeypatch.setattr(loading, "device_passes", lambda device: COMPILED_PASSES)
    spec = next(iter(SPECS.values()))
    model = model_zoo.random_model(spec)
    opened = save_bundle(tmp_path / "bundle", spec, model.state_dict())
    with pytest.warns(UserWarning, match="no such register"):
        made = loading.load_backend(opened, CudaOptions())
    assert made is tried[1]
