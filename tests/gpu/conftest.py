"""Tests that share one GPU, also where several processes run them (pytest -n 8). Without a GPU
each file is one skipped entry.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dpiframe_core import _core

LOCKS = Path(tempfile.gettempdir()) / f"dpiframe_gpu_tests_{os.getuid()}"


class Skipped(pytest.Module):
    """A file of tests that is not imported."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        pytest.skip("needs a CUDA device")


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    if _core.cuda_device_count() > 0:
        return None
    return Skipped.from_parent(parent, path=module_path)


def take_turn(mode: int) -> int:
    """Any number of LOCK_SH at once, or one LOCK_EX; the lock is held until the file that is
    returned is closed. Whoever waits holds the gate, so that those who come later cannot pass it.
    """
    LOCKS.mkdir(exist_ok=True)
    gate = os.open(LOCKS / "gate", os.O_CREAT | os.O_RDWR)
    turn = os.open(LOCKS / "turn", os.O_CREAT | os.O_RDWR)
    fcntl.flock(gate, fcntl.LOCK_EX)
    fcntl.flock(turn, mode)
    os.close(gate)
    return turn


@pytest.fixture(scope="session", autouse=True)
def _process() -> Iterator[None]:
    """A fair share of the processors; at the end a turn that lasts until the process is gone, and
    with it what CUDA holds for it.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // workers))
    yield
    take_turn(fcntl.LOCK_SH)


@pytest.fixture
def alone() -> None:
    """For tests that measure the GPU's memory: no other test of this folder runs meanwhile."""


@pytest.fixture(autouse=True)
def _turn(request: pytest.FixtureRequest) -> Iterator[None]:
    turn = take_turn(fcntl.LOCK_EX if "alone" in request.fixturenames else fcntl.LOCK_SH)
    yield
    os.close(turn)
