"""The short form of `publishing_faults.py`, and whole jobs that crash at some of their calls."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import fault_shim
import pytest
from running_job import Case

from pipeline.config.job import load_config
from pipeline.scoring.job import run_job

SCRIPT = Path(__file__).with_name("publishing_faults.py")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(fault_shim.compiler() is None, reason="needs a C compiler"),
]


def faults(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_publishing_outlives_every_fault() -> None:
    done = faults("--seed", "19", "--seconds", "8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 wrong" in done.stdout


def test_the_harness_sees_that_folders_are_not_synced() -> None:
    done = faults("--seed", "19", "--seconds", "60", "--without-sync")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG" in done.stdout


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fault_shim.build(tmp_path_factory.mktemp("shim"))


def test_whole_jobs_crash_at_any_call(tmp_path: Path, shim: Path, ray_session: str) -> None:
    """The driver dies at its n-th call, at three random ones; the last start has no fault."""
    case = Case(tmp_path, ray_session, shards=1, rows=100)
    coin = random.Random(19)
    environment = {"LD_PRELOAD": str(shim), "FAULT_FOLDER": str(case.output)}
    for mode in ("crash", "half", "crash-after"):
        at = {"FAULT_AT": str(coin.randint(1, 25)), "FAULT_MODE": mode}
        with case.start(environment=environment | at) as job:
            assert job.wait() in (-signal.SIGKILL, 0), job.text()
    untouched = case.published()

    run_job(load_config(case.config))

    case.check_finished(untouched)
    assert not (case.output / "_lock").exists()


def test_a_whole_job_whose_processes_fail_now_and_then(tmp_path: Path, shim: Path) -> None:
    """Scorers and driver count together; one write fails, and the next start finds the rest."""
    case = Case(tmp_path, "local", shards=1, rows=100)
    counter = tmp_path / "counter"
    counter.write_bytes(bytes(8))
    environment = {
        "LD_PRELOAD": str(shim),
        "FAULT_FOLDER": str(case.output),
        "FAULT_COUNTER": str(counter),
        "FAULT_MODE": "once",
        "FAULT_ERRNO": "5",
        "FAULT_AT": "300",
    }
    with case.start(environment=environment) as job:
        assert job.wait() in (0, 4), job.text()
    assert int.from_bytes(counter.read_bytes(), "little") >= 300, job.text()
    untouched = case.published()

    with case.start() as job:
        assert job.wait() == 0, job.text()

    case.check_finished(untouched)
    assert not case.layout.units.exists()
