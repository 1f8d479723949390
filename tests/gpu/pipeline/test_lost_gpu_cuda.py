"""A GPU that is lost to a process: the engine says so, and a job starts the scorer again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from job_cases import tiny_bundle, tiny_spec
from lost_gpus import check_given_up, check_recovered
from model_zoo import random_inputs
from running_job import Case

from dpiframe_core import _core, load_engine
from dpiframe_core.errors import DeviceLostError
from pipeline.scoring.job import MOST_LOST_GPUS


@pytest.fixture(autouse=True)
def _found_again() -> Iterator[None]:
    yield
    _core.inject_cuda_failure(0)


def test_every_call_after_the_loss_says_so(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    ids, dense = random_inputs(tiny_spec(), 111)
    engine = load_engine(tmp_path / "bundle", device="cuda", max_batch=512)
    expected = engine.score(ids, dense)
    for call in range(1, 40, 3):
        _core.inject_cuda_failure(call, lost=True)
        for _ in range(40):  # a batch is less than 40 checked calls
            try:
                engine.score(ids, dense)
            except DeviceLostError as error:
                assert "cudaErrorIllegalAddress" in str(error)
                break
        with pytest.raises(DeviceLostError, match="cudaErrorIllegalAddress"):
            engine.score(ids, dense)
        with pytest.raises(DeviceLostError):
            load_engine(tmp_path / "bundle", device="cuda", max_batch=512)
        _core.inject_cuda_failure(0)
        engine.close()
        engine = load_engine(tmp_path / "bundle", device="cuda", max_batch=512)
        np.testing.assert_array_equal(engine.score(ids, dense), expected)


@pytest.mark.parametrize("read_in", ["scorer", "tasks"])
def test_scorers_that_lose_their_gpu_are_started_again(tmp_path: Path, read_in: str) -> None:
    check_recovered(Case(tmp_path, "local", device="cuda", read_in=read_in), 2)


def test_a_job_whose_scorers_all_lose_it_gives_up(tmp_path: Path) -> None:
    check_given_up(Case(tmp_path, "local", device="cuda"), MOST_LOST_GPUS)
