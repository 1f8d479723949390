"""The CUDA engine against float64, for every model, precision, policy and form of program."""

from __future__ import annotations

import model_zoo
import numpy as np
import pytest
import torch
from cuda_cases import (
    BOUNDS,
    POLICIES,
    PRECISIONS,
    cuda_engine,
    inputs,
    large_model,
    logits,
    scaled_error,
)

from dpiframe_core import _core
from dpiframe_core.cuda_engine import Faults
from dpiframe_core.lowering import DEVICE_FORM, DEVICE_PASSES, PASSES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(_core.cuda_device_count() == 0, reason="needs a CUDA device"),
]
SPECS = model_zoo.all_specs()
FORMS = (DEVICE_PASSES, DEVICE_FORM, (*PASSES, *DEVICE_FORM))
MODELS = ("wdl", "deepfm", "dcn", "dcnv2")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("number", range(len(SPECS)))
def test_every_model_is_within_its_bound(number, precision):
    name = list(SPECS)[number]
    model = model_zoo.random_model(SPECS[name])
    turn = number + PRECISIONS.index(precision)
    engine = cuda_engine(
        model,
        FORMS[turn % 3],
        precision=precision,
        max_batch=200,
        streams=1 + turn % 8,
        graphs=turn // 2 % 2 == 0,
        policy=POLICIES[turn // 3 % 3],
    )
    for batch in (1, 19, 111, 200):
        engine.poison()
        ids, dense = inputs(model.spec, batch, seed=batch)
        expected = model_zoo.reference_logits(model, ids, dense)
        error = scaled_error(logits(engine, ids, dense), expected)
        assert error < BOUNDS[precision], f"{name}, batch {batch}"
    engine.close()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_large_batches(name, precision):
    model = large_model(name)
    engine = cuda_engine(model, precision=precision, max_batch=65536)
    for batch in (0, 4096, 65537):
        engine.poison()
        ids, dense = inputs(model.spec, batch)
        expected = model_zoo.reference_logits(model, ids, dense)
        assert scaled_error(logits(engine, ids, dense), expected) < BOUNDS[precision]
    engine.close()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_delays_streams_and_graphs_change_no_bit(name, policy):
    model = large_model(name)
    ids, dense = inputs(model.spec, 1111)
    plain = cuda_engine(model, max_batch=1111, streams=1, policy="serial", graphs=False)
    expected = logits(plain, ids, dense)
    for streams in range(1, 9):
        for graphs in (False, True):
            engine = cuda_engine(
                model,
                max_batch=1111,
                streams=streams,
                policy=policy,
                graphs=graphs,
                faults=Faults(delay_seed=streams),
            )
            for _ in range(3):
                engine.poison()
                np.testing.assert_array_equal(logits(engine, ids, dense), expected)
            engine.close()


def test_scores_are_the_sigmoid():
    model = large_model("dcnv2")
    ids, dense = inputs(model.spec, 111)
    engine = cuda_engine(model, max_batch=128)
    scores = np.full(111, np.nan, np.float32)
    engine.run(list(ids), dense, False, scores, scores=True)
    expected = 1 / (1 + np.exp(-model_zoo.reference_logits(model, ids, dense)))
    np.testing.assert_allclose(scores, expected, atol=3e-6)


def test_an_unfused_program_is_the_same_model():
    """What the ablation compares: each form of the program, one bound."""
    model = large_model("dcnv2")
    ids, dense = inputs(model.spec, 4096)
    expected = model_zoo.reference_logits(model, ids, dense)
    for passes in FORMS:
        engine = cuda_engine(model, passes, max_batch=4096)
        assert scaled_error(logits(engine, ids, dense), expected) < 1e-5
        engine.close()


def test_a_table_of_more_than_2_31_numbers():
    from dpiframe_core import program as p
    from dpiframe_core.cuda_engine import CudaEngine, CudaOptions
    from dpiframe_core.program import View, Weight

    rows = 2**27 + 1000
    table = torch.from_numpy(np.zeros((rows, 16), np.float32))  # pages that are never written
    ids = np.array([[0, rows - 1, rows - 500, 2**27, 2**27 - 1, rows]], np.int64)
    table[ids[0, :5]] = torch.randn(5, 16)
    x, out = View("x", 0, 16), View("logit", 0, 1)
    dot = torch.randn(16)
    program = p.Program(
        field_names=("C0",),
        field_rows=(rows,),
        oov_rows=(-1,),
        num_dense=0,
        buffers={"x": 16, "logit": 1},
        steps=(
            p.Lookup("lookup", (p.Slot(0, Weight("table"), 16, 0),), x),
            p.Head("head", ((x, Weight("dot")),), (), (), None, out),
        ),
        weights={"table": table, "dot": dot},
        output=out,
    )
    engine = CudaEngine(program, CudaOptions("fp16", max_batch=64))
    out_logits = np.full(6, np.nan, np.float32)
    counts = engine.run(list(ids), np.empty((0, 6), np.float32), False, out_logits)
    expected = table[ids[0, :5]].double() @ dot.double()
    assert counts.tolist() == [1]
    np.testing.assert_allclose(out_logits[:5], expected, atol=1e-2)
    assert out_logits[5] == 0
    engine.close()
