"""Ids and dense features in page-locked memory, in every layout, against float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from cuda_cases import BOUNDS, cuda_engine, even_model, reference, scaled_error
from model_zoo import random_inputs
from odd_models import Shape

from dpiframe_core.engine.cuda.backend import CudaBackend, Faults

SIZES = (1, 19, 111, 4097, 65537)
MAX_BATCH = 65_536


@pytest.fixture(scope="module")
def model():
    """7 fields and, in columns of their own, dense features."""
    return even_model(Shape("deepfm", 7, (8,), (40, 24), "raw", 1, "parallel").spec())


@pytest.fixture(scope="module")
def engine(model) -> Iterator[CudaBackend]:
    made = cuda_engine(model, max_batch=MAX_BATCH)
    yield made
    made.close()


def pinned(values: np.ndarray, before: int = 0, after: int = 0) -> np.ndarray:
    """A copy in page-locked memory, each row with so many other numbers before and after it."""
    rows, columns = values.shape
    shape = (rows, before + columns + after)
    made = torch.full(shape, -1, dtype=torch.from_numpy(values).dtype).pin_memory().numpy()
    made[:, before : before + columns] = values
    return made[:, before : before + columns]


def layouts(values: np.ndarray) -> Iterator[np.ndarray | list[np.ndarray]]:
    """The same numbers: a matrix, parts of larger ones, columns of one, columns of their own."""
    yield pinned(values)
    for before, after in ((1, 0), (3, 8), (16, 4096)):
        part = pinned(values, before, after)
        yield part
        yield list(part)
    yield [pinned(column[None])[0] for column in values]
    shifted = torch.empty(values.nbytes + 1, dtype=torch.uint8, pin_memory=True).numpy()[1:]
    shifted = shifted.view(values.dtype).reshape(values.shape)  # at an odd address
    shifted[:] = values
    yield shifted


def logits(engine: CudaBackend, batches: list) -> list[np.ndarray]:
    """Logits of each batch of (ids, dense, size), all through one stream of parts."""
    outs = [np.full(size, np.nan, np.float32) for _, _, size in batches]

    def parts():
        for (ids, dense, size), out in zip(batches, outs, strict=True):
            for start in range(0, size, MAX_BATCH):
                rows = slice(start, start + MAX_BATCH)
                yield part(ids, rows), part(dense, rows), out[rows]

    assert not sum(counts.sum() for counts in engine.stream(parts(), False, scores=False))
    return outs


def part(columns, rows: slice):
    return [c[rows] for c in columns] if isinstance(columns, list) else columns[:, rows]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("size", SIZES)
def test_every_layout_gives_the_logits_of_float64(model, engine, size, dtype):
    ids, dense = random_inputs(model.spec, size, size)
    expected = reference(model, ids, dense)
    forms = list(zip(layouts(ids.astype(dtype)), layouts(dense), strict=True))
    got = logits(engine, [(i, d, size) for i, d in forms])
    plain = logits(engine, [(ids, dense, size)])[0]
    for values in got:
        assert scaled_error(values, expected) < BOUNDS["fp32"]
        np.testing.assert_array_equal(values, plain)


@pytest.mark.parametrize("delay_seed", [0, 7])
def test_a_long_stream_keeps_its_batches_apart(model, delay_seed):
    """Batches of all sizes and both types, several times as many as are in flight."""
    faults = Faults(delay_seed=delay_seed)
    engine = cuda_engine(model, faults=faults, max_batch=MAX_BATCH, graphs=not delay_seed)
    batches, expected = [], []
    for number in range(19):
        size = SIZES[number % 4] + number
        ids, dense = random_inputs(model.spec, size, number)
        ids = ids.astype((np.int64, np.int32)[number % 3 == 0])
        form = pinned(ids, 2, 5) if number % 2 else ids  # others are packed
        batches.append((form, pinned(dense), size))
        expected.append(reference(model, ids, dense))
    for values, wanted in zip(logits(engine, batches), expected, strict=True):
        assert scaled_error(values, wanted) < BOUNDS["fp32"]
    engine.close()
