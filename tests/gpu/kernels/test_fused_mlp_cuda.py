"""The forward pass in one kernel: against float64, against the steps, and where it gives way."""

from __future__ import annotations

import math
from functools import lru_cache

import model_zoo
import numpy as np
import pytest
import torch
from cuda_cases import (
    BOUNDS,
    Batch,
    batches,
    check,
    check_bad_ids,
    check_on_device,
    cuda_engine,
    even_model,
    large_model,
    logits,
    scaled_error,
)
from odd_models import odd_shapes

from dpiframe_core import FieldSpec
from dpiframe_core.engine.cuda.backend import Faults
from dpiframe_core.model.builtin import MODELS, Deep, Features
from dpiframe_core.model.torch_module import CTRModel

NAMES = ("wdl", "deepfm", "dcn", "dcnv2")
PRECISIONS = ("fp16", "bf16")
ROWS = 4096  # the most that one wave of clusters has
SIZES = (1, 19, 64, 65, 111, ROWS - 1, ROWS, ROWS + 1)  # the last by another kernel or the steps


@pytest.fixture(autouse=True)
def _on_hopper(monkeypatch):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a GPU of compute capability 9")
    fused = "dpiframe_core.engine.cuda.fused"
    monkeypatch.setattr(f"{fused}.STEPS_UP_TO", 0)  # few rows in it, too
    monkeypatch.setattr(f"{fused}.WORTH_IT", math.inf)


@lru_cache(maxsize=1)
def case(name: str, criteo: bool) -> tuple[CTRModel, list[Batch]]:
    model = even_model(odd_shapes(name)[0].spec()) if criteo else large_model(name)
    return model, batches(model, SIZES)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("criteo", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_every_model_is_within_its_bound(name, criteo, precision):
    model, made = case(name, criteo)
    engine = cuda_engine(model, precision=precision, max_batch=8192, graphs=criteo)
    rows = engine.fused_up_to
    assert rows == (8192 if name == "dcnv2" and criteo else ROWS)
    assert f"up to {rows} in one kernel" in engine.describe()
    for batch, between in zip(made, reversed(made), strict=True):
        check(engine, batch, between)
        check_on_device(engine, batch)
    engine.close()


def test_few_rows_of_many_weights_run_in_steps(monkeypatch):
    monkeypatch.setattr("dpiframe_core.engine.cuda.fused.STEPS_UP_TO", 1024)
    model = model_of("dcnv2", [16] * 39, (400, 400, 400))
    made = batches(model, (1, 1024, 1025, 4096))
    engine = cuda_engine(model, precision="fp16", max_batch=4096)
    assert "more than 1024 and up to 4096 in one kernel" in engine.describe()
    for batch in made:
        check(engine, batch, made[0])
        check_on_device(engine, batch)
    engine.close()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_steps(name, precision):
    """Within the bound; beyond its rows they are the steps'."""
    model, made = case(name, True)
    one, steps = (
        cuda_engine(model, precision=precision, max_batch=8192, fused=on) for on in (True, False)
    )
    assert steps.fused_up_to == 0
    for batch in made:
        got, expected = (logits(e, batch.ids, batch.dense) for e in (one, steps))
        assert scaled_error(got, expected) < BOUNDS[precision]
        assert np.array_equal(got, expected) or batch.size <= one.fused_up_to
    one.close()
    steps.close()


@pytest.mark.parametrize("use_oov", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_ids_outside_their_tables_as_by_the_steps(name, use_oov):
    """Scores, counts and the first of them, for ids of both types."""
    model, made = case(name, True)
    one, steps = (cuda_engine(model, precision="fp16", fused=on) for on in (True, False))
    check_bad_ids(one, steps, made[1:-1], use_oov)
    one.close()
    steps.close()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 6e4])
@pytest.mark.parametrize("name", NAMES)
def test_numbers_that_are_none_as_by_the_steps(name, value):
    """Infinite, not a number, or so large that a product overflows: in the rows they are in."""
    model = large_model(name, seed=1)
    table = model.state_dict()["embedding/tables/C5"]
    table[3, 2] = value
    batch = batches(model, (300,))[0]
    batch.ids[5] = np.arange(300) % 5
    got, expected = [], []
    for found, on in ((got, True), (expected, False)):
        engine = cuda_engine(model, precision="fp16", max_batch=512, fused=on)
        found.append(logits(engine, batch.ids, batch.dense))
        engine.close()
    for is_such in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(is_such(got[0]), is_such(expected[0]))
    finite = np.arange(300) % 5 != 3
    assert np.isfinite(got[0][finite]).all()
    assert scaled_error(got[0][finite], expected[0][finite]) < BOUNDS["fp16"]


def model_of(name: str, dims: list[int], hidden: tuple[int, ...], **options) -> CTRModel:
    fields = [
        FieldSpec(name=f"C{i}", rows=model_zoo.ROWS[i % 7], dim=dim) for i, dim in enumerate(dims)
    ]
    return even_model(MODELS[name](Features(fields), Deep(hidden), **options))


@pytest.mark.parametrize(
    ("taken", "arguments", "options"),
    [
        (True, ("wdl", [16] * 39, (416, 416, 416)), {}),
        (True, ("wdl", [8] * 64, (33,)), {}),
        (True, ("wdl", [8, 64, 16, 24], (5, 3)), {}),
        (True, ("deepfm", [32] * 10, (64, 7)), {}),
        (True, ("dcn", [16] * 20, (503, 512, 512, 512)), {"layers": 8}),
        (True, ("dcnv2", [16] * 2, (8,)), {"layers": 1}),
        (True, ("dcnv2", [16] * 4, (40, 24)), {"layers": 1}),
        (True, ("dcnv2", [8, 16, 24, 8, 40], (33, 20, 5)), {"layers": 3}),
        (True, ("dcnv2", [8] * 64, (500,)), {"layers": 2}),
        (True, ("dcnv2", [16] * 40, (512, 512, 512, 512)), {"layers": 4}),
        (False, ("wdl", [16] * 39, (513,)), {}),
        (False, ("wdl", [8] * 65, (33,)), {}),
        (False, ("wdl", [8, 12, 16, 24], (5, 3)), {}),
        (False, ("dcn", [16] * 20, (504, 512)), {"layers": 8}),
        (False, ("dcn", [16] * 20, (100,)), {"layers": 9}),
        (False, ("dcnv2", [16] * 41, (100,)), {}),
        (False, ("dcnv2", [16] * 20, (100,)), {"layers": 5}),
        (False, ("dcnv2", [16] * 20, (513,)), {}),
        (False, ("dcnv2", [16] * 20, (100,)), {"structure": "stacked"}),
    ],
)
def test_shapes_that_just_fit_and_just_do_not(taken, arguments, options):
    model = model_of(*arguments, **options)
    made = batches(model, (1, 200, 130))
    for precision in PRECISIONS:
        engine = cuda_engine(model, precision=precision, max_batch=256)
        assert (engine.fused_up_to > 0) == taken
        for batch in made:
            check(engine, batch, made[0])
        engine.close()


@pytest.mark.parametrize("name", ["dcn", "dcnv2"])
def test_delays_policies_and_graphs_change_no_bit(name):
    model, made = case(name, True)
    batch = made[3]
    expected = None
    for faults, options in (
        (Faults(), {}),
        (Faults(delay_seed=3), {"graphs": False}),
        (Faults(delay_seed=5), {"policy": "serial", "streams": 1}),
    ):
        engine = cuda_engine(model, faults=faults, precision="fp16", max_batch=512, **options)
        for _ in range(3):
            got = logits(engine, batch.ids, batch.dense)
            expected = got if expected is None else expected
            np.testing.assert_array_equal(got, expected)
        engine.close()


@pytest.mark.parametrize("name", ["wdl", "dcnv2"])
def test_a_refused_launch_makes_the_engine_unusable(name):
    model, made = case(name, False)
    batch = made[3]
    faults = Faults(refused_step=1)
    engine = cuda_engine(model, faults=faults, precision="fp16", max_batch=512, graphs=False)
    with pytest.raises(RuntimeError, match="cudaErrorInvalid"):
        logits(engine, batch.ids, batch.dense)
    with pytest.raises(RuntimeError, match="failed before and cannot be used any more"):
        logits(engine, batch.ids, batch.dense)
    engine.close()
