"""Each CUDA call of loading and scoring fails in turn: an error every time, and nothing is lost.

Every checked call counts: allocations, streams, events, graphs, launches, copies.
"""

from __future__ import annotations

from pathlib import Path

import model_zoo
import numpy as np
import pytest
from cuda_cases import HAS_GPU, PRECISIONS, free_bytes

from dpiframe_core import _core, load_engine, save_bundle
from dpiframe_core.bundle.reading import Bundle
from dpiframe_core.model.builtin import MODELS, Deep, Features
from dpiframe_core.model.spec import ModelSpec

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")]

BATCH = 512  # one bucket of batch sizes


def small_bundle(folder: Path, name: str) -> tuple[Bundle, ModelSpec]:
    spec = MODELS[name](Features(model_zoo.fields(16), ["I1", "I2"]), Deep((33, 20)))
    return save_bundle(folder, spec, model_zoo.random_model(spec).state_dict()), spec


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_every_call_may_fail(name: str, precision: str, tmp_path: Path) -> None:
    bundle, spec = small_bundle(tmp_path / "bundle", name)
    ids, dense = model_zoo.random_inputs(spec, BATCH + 111)

    def run() -> np.ndarray:
        engine = load_engine(bundle, device="cuda", precision=precision, max_batch=BATCH, threads=2)
        try:
            return engine.score(ids, dense)
        finally:
            engine.close()

    expected = run()
    before = free_bytes()
    step = 1 if precision in ("fp32", "fp16") else 7  # the others differ in their kernels alone
    call = 1
    try:
        while True:
            _core.inject_cuda_failure(call)
            try:
                scores = run()
            except RuntimeError as error:  # DeviceMemoryError is one
                assert "out of memory" in str(error), f"call {call}"
                assert not _core.inject_cuda_failure(0), f"call {call} failed by itself: {error}"
            else:
                assert _core.inject_cuda_failure(0), f"the failure of call {call} was ignored"
                break
            call += step
    finally:
        _core.inject_cuda_failure(0)
    assert call > 50
    np.testing.assert_array_equal(scores, expected)
    np.testing.assert_array_equal(run(), expected)
    assert before - free_bytes() <= 2**21
