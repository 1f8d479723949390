"""Odd shapes, batches around whole tiles and many tiles a block, ids outside their tables."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch
from cuda_cases import (
    BOUNDS,
    DEVICE,
    PRECISIONS,
    Batch,
    batches,
    check,
    check_on_device,
    cuda_engine,
    device_scores,
    even_model,
    on_device,
    reference,
    scaled_error,
)
from odd_models import DENSE, DIMS, FIELDS, HIDDEN, LAYERS, MIXED, odd_shapes

from dpiframe_core.engine.cuda.backend import CudaBackend
from dpiframe_core.model.builtin import MODELS
from dpiframe_core.model.torch_module import CTRModel

SHAPES = {str(shape): shape for model in MODELS for shape in odd_shapes(model)}
# A tile of products has 128 rows; 20,000 rows have more tiles than an H200 has multiprocessors, so
# that a block has more than one.
SIZES = (1, 127, 128, 129, 511, 513, 4223, 4225, 20_000)
BAD = (-1, -(2**31), 2**31 - 1, -(2**63), 2**62, 2**32)  # the last is 0 in 32 bits


@lru_cache(maxsize=1)
def odd_case(name: str) -> tuple[CTRModel, list[Batch]]:
    model = even_model(SHAPES[name].spec())
    return model, batches(model, SIZES)


@pytest.mark.parametrize("model", MODELS)
def test_every_choice_occurs(model):
    shapes = odd_shapes(model)
    dims = {MIXED} if model == "deepfm" else set()
    assert {s.fields for s in shapes} == set(FIELDS)
    assert {s.dims for s in shapes} == set(DIMS) - dims
    assert {s.hidden for s in shapes} == set(HIDDEN)
    assert {s.dense for s in shapes} == set(DENSE)
    assert {s.layers for s in shapes} == set(LAYERS)


@pytest.mark.parametrize("name", SHAPES)
def test_odd_shapes_are_within_their_bounds(name):
    model, made = odd_case(name)
    for turn, precision in enumerate(PRECISIONS):
        engine = cuda_engine(model, precision=precision, graphs=turn % 2 == 0, max_batch=20_000)
        for batch, between in zip(made, (made[-1], *made), strict=False):
            check(engine, batch, between)
        check_on_device(engine, made[4])
        check_on_device(engine, made[6])
        engine.close()


@pytest.mark.parametrize("model", MODELS)
def test_an_engine_as_small_as_its_batch(model):
    """max_batch 1, and one below and above a whole tile: no row outside is written or read."""
    name = next(name for name in SHAPES if name.startswith(model) and "-f3-" in name)
    odd, made = odd_case(name)
    for max_batch in (1, 127, 128, 129):
        for precision in ("fp16", "tf32"):
            engine = cuda_engine(odd, precision=precision, max_batch=max_batch)
            check(engine, made[1], made[3])  # cut into parts where it is larger
            check_on_device(engine, made[1])
            engine.close()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model", MODELS)
def test_ids_outside_their_tables(model, precision):
    """The policy oov scores them as the oov row; without, they are counted and never read."""
    odd, good = odd_case(
        f"{model}-f39-d16-400x400x400" + ("-l3-parallel" if "dcn" in model else "")
    )
    for batch in (good[4], good[-1]):
        ids, declared, counts = with_bad_ids(odd, batch)
        expected = reference(odd, declared, batch.dense)
        rows = np.flatnonzero((ids == batch.ids).all(0))
        engine = cuda_engine(odd, precision=precision, max_batch=batch.size)
        for _ in range(2):  # counters start anew
            check_oov(engine, ids, batch.dense, expected, counts)
        out = np.full(batch.size, np.nan, np.float32)
        found = engine.run(list(ids), batch.dense, False, out)
        np.testing.assert_array_equal(found, counts)
        assert scaled_error(out[rows], batch.logits[rows]) < BOUNDS[precision]
        assert not engine.run(list(batch.ids), batch.dense, False, out).any()
        assert scaled_error(out, batch.logits) < BOUNDS[precision]
        check_bad_ids_on_device(engine, ids, batch.dense, counts)
        engine.close()


def with_bad_ids(model: CTRModel, batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids [F, B] of which one in 200 is outside its table, the same with the oov rows in their
    places, and their counts [F].
    """
    rng = np.random.default_rng(batch.size)
    bad = rng.random(batch.ids.shape) < 0.005
    bad[0, -1] = bad[-1, -1] = True
    rows = np.array([[f.rows] for f in model.spec.fields])
    oov = np.array([[f.oov_row] for f in model.spec.fields])
    values = np.where(rng.random(bad.shape) < 0.3, rows, rng.choice(np.array(BAD), bad.shape))
    return np.where(bad, values, batch.ids), np.where(bad, oov, batch.ids), bad.sum(1)


def check_oov(
    engine: CudaBackend,
    ids: np.ndarray,
    dense: np.ndarray,
    expected: np.ndarray,
    counts: np.ndarray,
) -> None:
    out = np.full(len(expected), np.nan, np.float32)
    found = engine.run(list(ids), dense, True, out)
    np.testing.assert_array_equal(found, counts)
    assert scaled_error(out, expected) < BOUNDS[engine.options.precision]


def check_bad_ids_on_device(
    engine: CudaBackend, ids: np.ndarray, dense: np.ndarray, counts: np.ndarray
) -> None:
    """Counts, the first place and the scores of arrays on the GPU, ids of both types."""
    scores = np.full(ids.shape[1], np.nan, np.float32)
    engine.run(list(ids), dense, True, scores, scores=True)
    narrow = np.clip(ids, -(2**31), 2**31 - 1)
    there, dense_there = on_device(ids, dense)
    for form in (there, torch.from_numpy(narrow).to(DEVICE, torch.int32)):
        got, found, first = device_scores(engine, form, dense_there, use_oov=True)
        np.testing.assert_array_equal(found, counts)
        np.testing.assert_array_equal(got.cpu().numpy(), scores)
        assert first == first_bad(engine, ids)


def first_bad(engine: CudaBackend, ids: np.ndarray) -> tuple[int, int]:
    """The first (row, field) with an id outside its table."""
    rows = np.array(engine.program.field_rows)[:, None]
    places = np.argwhere(((ids < 0) | (ids >= rows)).T)
    return int(places[0, 0]), int(places[0, 1])
