"""Models nobody tuned for, drawn by a seed: any model, 1 to 200 fields, dims 1 to 128, odd batches.

`DPIFRAME_RANDOM_SPECS=500 python -m pytest tests/gpu/engine/test_random_specs_cuda.py` draws more.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from cuda_cases import PRECISIONS, batches, check_on_device, cuda_engine, logits
from random_specs import WIDE_FM, error_bound, random_spec, random_weights, wide_fm

from dpiframe_core.model.spec import ModelSpec

COUNT = int(os.environ.get("DPIFRAME_RANDOM_SPECS", "40"))


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_random_spec_is_within_its_bounds(seed: int) -> None:
    check(random_spec(seed), seed)


@pytest.mark.parametrize("fields_and_dim", WIDE_FM)
def test_fm_of_many_numbers_is_within_its_bounds(fields_and_dim: tuple[int, int]) -> None:
    check(wide_fm(*fields_and_dim), sum(fields_and_dim))


def check(spec: ModelSpec, seed: int) -> None:
    """Batches of three sizes in all precisions."""
    rng = np.random.default_rng(seed)
    model = random_weights(spec, seed)
    sizes = [1, int(rng.integers(2, 128)), int(rng.integers(128, 9000))]
    cases = batches(model, sizes, seed)
    for precision in PRECISIONS:
        engine = cuda_engine(model, precision=precision, max_batch=max(sizes))
        for case in cases:
            engine.poison()
            error = np.abs(logits(engine, case.ids, case.dense) - case.logits)
            bound = error_bound(model, precision, case.ids, case.dense, case.logits)
            worst = (error / bound).max()
            assert worst < 1, f"{spec.name} {precision} batch {case.size}: {worst} of the bound"
        check_on_device(engine, cases[1])
        engine.close()
