"""The CUDA engine against float64, for every model, precision, policy and form of program."""

from __future__ import annotations

from functools import lru_cache

import model_zoo
import numpy as np
import pytest
import torch
from cuda_cases import (
    BOUNDS,
    POLICIES,
    PRECISIONS,
    Batch,
    batches,
    check,
    check_on_device,
    cuda_engine,
    cuda_options,
    large_model,
    logits,
    scaled_error,
)

from dpiframe_core import FieldSpec, ModelSpec
from dpiframe_core.engine.cuda.backend import CudaBackend
from dpiframe_core.lowering import DEVICE_FORM, DEVICE_PASSES, PASSES, lower
from dpiframe_core.model.builtin import Deep, Features, wdl
from dpiframe_core.model.torch_module import CTRModel

SPECS = model_zoo.all_specs()
FORMS = (DEVICE_PASSES, DEVICE_FORM, (*PASSES, *DEVICE_FORM))
MODELS = ("wdl", "deepfm", "dcn", "dcnv2")
SIZES = (0, 1, 19, 111, 4096, 65537)


@lru_cache(maxsize=1)
def large_case(name: str) -> tuple[CTRModel, list[Batch]]:
    model = large_model(name)
    return model, batches(model, SIZES)


@pytest.mark.parametrize("number", range(len(SPECS)), ids=list(SPECS))
def test_every_model_is_within_its_bound(number):
    model = model_zoo.random_model(list(SPECS.values())[number])
    made = batches(model, (1, 19, 111, 200))
    for turn, precision in enumerate(PRECISIONS, number):
        engine = cuda_engine(
            model,
            FORMS[turn % 3],
            precision=precision,
            max_batch=200,
            streams=1 + turn % 8,
            graphs=turn // 2 % 2 == 0,
            policy=POLICIES[turn // 3 % 3],
            fused=turn % 2 == 0,
        )
        for batch, between in zip(made, reversed(made), strict=True):
            check(engine, batch, between)
        engine.close()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_every_plan_is_within_its_bound(name, precision, policy):
    """1 to 8 streams, graphs or launches; 65,537 rows are one batch or are cut."""
    model, made = large_case(name)
    for streams in range(1, 9):
        for graphs in (False, True):
            engine = cuda_engine(
                model,
                precision=precision,
                policy=policy,
                streams=streams,
                graphs=graphs,
                max_batch=65536 + streams % 2,
            )
            for batch in made:
                check(engine, batch, made[2])
            engine.close()


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_device_memory_gives_the_bits_of_host_memory(name, precision, graphs):
    model, made = large_case(name)
    for max_batch in (65536, 65537):
        engine = cuda_engine(model, precision=precision, graphs=graphs, max_batch=max_batch)
        for batch in made:
            check_on_device(engine, batch)
        engine.close()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_scores_are_the_sigmoid(precision):
    model, made = large_case("dcnv2")
    batch = made[3]
    engine = cuda_engine(model, max_batch=128, precision=precision)
    scores = np.full(batch.size, np.nan, np.float32)
    engine.run(list(batch.ids), batch.dense, False, scores, scores=True)
    own = logits(engine, batch.ids, batch.dense).astype(np.float64)
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-own)), rtol=2e-6, atol=1e-7)


def test_an_unfused_program_is_the_same_model():
    """What the ablation compares: each form of the program, one bound."""
    model, made = large_case("dcnv2")
    batch = made[4]
    for passes in FORMS:
        engine = cuda_engine(model, passes, max_batch=4096)
        assert scaled_error(logits(engine, batch.ids, batch.dense), batch.logits) < BOUNDS["fp32"]
        engine.close()


def test_a_table_of_more_than_2_31_numbers():
    def spec(rows: int) -> ModelSpec:
        fields = [FieldSpec(name="C0", rows=rows, dim=16), FieldSpec(name="C1", rows=7, dim=16)]
        return wdl(Features(fields), Deep((24,)))

    rows = 2**27 + 1000
    places = np.array([0, rows - 1, rows - 500, 2**27, 2**27 - 1])
    model = model_zoo.random_model(spec(len(places)))
    batch = batches(model, [300])[0]
    weights = dict(model.state_dict())
    for name in ("embedding/tables/C0", "wide/tables/C0"):
        table = np.zeros((rows, weights[name].shape[1]), np.float32)  # pages that are never written
        table[places] = weights[name]
        weights[name] = torch.from_numpy(table)
    program = lower(spec(rows), weights, DEVICE_PASSES)
    ids = np.stack([places[batch.ids[0]], batch.ids[1]])
    engine = CudaBackend(program, cuda_options(precision="fp16", max_batch=512))
    assert scaled_error(logits(engine, ids, batch.dense), batch.logits) < BOUNDS["fp16"]
    beyond = [ids[0] + rows, ids[1]]
    assert engine.run(beyond, batch.dense, False, np.empty(300, "f4")).tolist() == [300, 0]
    engine.close()
