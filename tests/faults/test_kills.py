"""SIGKILL of a scorer and of the driver: nothing is lost, nothing is twice.

`test_soak.py` kills these of jobs whose tasks read, and read workers and nodes as well.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import psutil
import pytest
from running_job import Case, wait_for

RANDOM = random.Random(19)


def moments() -> list[int]:
    """Published units at which to kill: early, in the middle, late."""
    return [RANDOM.randint(low, low + 30) for low in (1, 60, 120)]


@pytest.fixture
def case(tmp_path: Path, ray_session: str) -> Case:
    return Case(tmp_path, ray_session)


def test_killed_scorers_are_replaced(case: Case) -> None:
    killed: set[int] = set()
    with case.start() as job:
        for moment in moments():
            job.wait_units(moment)
            wait_for(lambda: bool(case.scorer_pids() - killed), "a new scorer")
            (scorer,) = case.scorer_pids() - killed
            before = case.published()
            os.kill(scorer, signal.SIGKILL)
            killed.add(scorer)
        assert job.wait() == 0, job.text()

    assert len(killed) == 3
    case.check_finished(before)


def test_a_killed_driver_is_followed_by_another(case: Case) -> None:
    untouched: dict[str, tuple[int, int]] = {}
    for moment in moments()[:2]:
        with case.start() as job:
            job.wait_units(moment)
            job.kill()
            untouched = case.published()

    case.finish()

    case.check_finished(untouched)


@pytest.mark.usefixtures("ray_session")
def test_a_killed_driver_takes_its_own_ray_along(tmp_path: Path) -> None:
    case = Case(tmp_path, "local")
    with case.start() as job:
        job.wait_units(5)
        # Agents need a minute to notice, but they touch no output.
        ours = psutil.Process(job.process.pid).children(recursive=True)
        ours = [process for process in ours if not process.name().endswith("Agent")]
        job.kill()
        untouched = case.published()

    assert len(ours) >= 3
    _, alive = psutil.wait_procs(ours, timeout=30)
    assert alive == []
    case.finish()
    case.check_finished(untouched)
