"""A GPU that others have filled: the scorer loads with smaller batches, or says why not."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from cuda_cases import DEVICE, free_bytes
from job_cases import encoded_table, reference_scores, tiny_bundle, tiny_spec

from dpiframe_core import load_engine
from dpiframe_core.errors import DeviceMemoryError
from pipeline.errors import UnitFailedError
from pipeline.scoring.resizing_engine import ResizingEngine

ROWS = 2**22  # one batch of the tiny model then takes some hundred MB


def leave(size: int) -> torch.Tensor:
    """Take the GPU's memory but for about so many bytes."""
    return torch.empty(free_bytes() - size, dtype=torch.uint8, device=DEVICE)


@pytest.mark.usefixtures("alone")
def test_an_engine_beside_a_full_gpu(tmp_path: Path) -> None:
    model = tiny_bundle(tmp_path / "bundle")
    load = partial(load_engine, tmp_path / "bundle", device="cuda")
    before = free_bytes()
    whole = load(max_batch=ROWS)
    needed = before - free_bytes()
    whole.close()
    table, spec = encoded_table(4097), tiny_spec()
    ids = [table.column(field.name).to_numpy() for field in spec.fields]
    dense = [table.column(name).to_numpy() for name in spec.dense]

    filler = leave(needed // 3)
    engine = ResizingEngine(lambda rows: load(max_batch=rows), ROWS)
    scores = engine.score(ids, dense)

    assert engine.reduced_batch is not None
    assert 1024 <= engine.reduced_batch < ROWS
    np.testing.assert_allclose(scores, reference_scores(model, table), atol=1e-5)
    engine.engine.close()
    del filler
    torch.cuda.empty_cache()


@pytest.mark.usefixtures("alone")
def test_no_room_at_all_is_an_error_and_no_loop(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    load = partial(load_engine, tmp_path / "bundle", device="cuda")
    load(max_batch=64).close()  # the context and the kernels are there already
    filler, engines = leave(2**21), []
    try:
        with contextlib.suppress(DeviceMemoryError):
            while True:  # the driver gives memory of closed engines to new ones alone
                engines.append(load(max_batch=1024))
        with pytest.raises(UnitFailedError, match="batches of 1024 rows"):
            ResizingEngine(lambda rows: load(max_batch=rows), ROWS)
    finally:  # the frames of a failure would keep the GPU full for all tests that follow
        for engine in engines:
            engine.close()
        del filler
        torch.cuda.empty_cache()  # torch keeps what it freed, and the next test wants it
