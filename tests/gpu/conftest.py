"""Tests that share one GPU, also where several processes run them (pytest -n 8)."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

LOCKS = Path(tempfile.gettempdir())


@pytest.fixture(scope="session", autouse=True)
def _fair_share_of_threads() -> None:
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // workers))


@pytest.fixture
def alone() -> None:
    """For tests that measure the GPU's memory: no other test of this folder runs meanwhile."""


@pytest.fixture(autouse=True)
def _turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Any number of tests at once, or one that is alone. Whoever waits holds the gate, so that
    those who come later cannot pass it.
    """
    mode = fcntl.LOCK_EX if "alone" in request.fixturenames else fcntl.LOCK_SH
    paths = [LOCKS / f"dpiframe_gpu_tests_{os.getuid()}_{name}" for name in ("gate", "tests")]
    with paths[0].open("w") as gate, paths[1].open("w") as tests:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(tests, mode)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
