"""Random graphs of generic tensor operations, as bundles on the GPU, against float64.

`DPIFRAME_RANDOM_SPECS=500` draws more of them.
"""

from __future__ import annotations

import os

import model_zoo
import numpy as np
import pytest
from cuda_cases import BOUNDS, PRECISIONS, Batch, check, cuda_engine, scaled_error
from random_tensors import random_tensor_model

from dpiframe_core import load_engine, save_bundle

COUNT = int(os.environ.get("DPIFRAME_RANDOM_SPECS", "40"))
SIZES = (1, 19, 700)


def cases(model, seed):
    made = []
    for size in SIZES:
        ids, dense = model_zoo.random_inputs(model.spec, size, seed + size)
        made.append(Batch(ids, dense, model_zoo.reference_logits(model, ids, dense)))
    return made


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_random_graph_is_within_its_bounds(seed):
    model = random_tensor_model(seed)
    batches = cases(model, seed)
    for precision in PRECISIONS:
        engine = cuda_engine(model, precision=precision, max_batch=max(SIZES))
        for batch in batches:
            check(engine, batch, batches[-1])
        engine.close()


@pytest.mark.parametrize("seed", range(0, COUNT, 8))
def test_plans_with_several_streams_and_without_graphs(seed):
    model = random_tensor_model(seed, steps=25)
    batches = cases(model, seed)
    for options in ({"graphs": False}, {"streams": 1}, {"policy": "depth_first"}):
        engine = cuda_engine(model, max_batch=max(SIZES), **options)
        for batch in batches:
            check(engine, batch, batches[-1])
        engine.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_bundle_scores_as_its_model(seed, tmp_path):
    model = random_tensor_model(seed)
    save_bundle(tmp_path / "bundle", model.spec, model.state_dict())
    ids, dense = model_zoo.random_inputs(model.spec, 333, seed)
    expected = model_zoo.reference_logits(model, ids, dense)
    engine = load_engine(tmp_path / "bundle", device="cuda", max_batch=200)
    got = engine.score(ids, dense)
    engine.close()
    assert scaled_error(np.asarray(got), 1 / (1 + np.exp(-expected))) < BOUNDS["fp32"]
