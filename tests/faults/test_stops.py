"""A second job, stop signals, a full disk: the documented exit code, and all that was published."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from running_job import Case, RunningJob, ray_workers, wait_for

from jobs.cli import leave_stops_unsaid
from pipeline.cluster.signals import StopRequestedError
from pipeline.config.job import load_config
from pipeline.errors import LockedError, ResumableError
from pipeline.publishing.atomic import TEMP_MARK
from pipeline.publishing.records import OutputLayout, UnitRecord, read_json
from pipeline.scoring.job import run_job


def check_published_whole(output: Path) -> int:
    """Every record names files with the recorded content; returns the number of records."""
    layout = OutputLayout(output)
    for path in layout.units.glob("u*.json"):
        record = read_json(path, UnitRecord)
        assert record is not None
        content = (output / record.part).read_bytes()
        assert hashlib.sha256(content).hexdigest() == record.sha256
    return len(list(layout.units.glob("u*.json")))


def check_stops(job: RunningJob, number: signal.Signals = signal.SIGTERM) -> None:
    """A signal ends the job resumable, in ten seconds, with one line."""
    began = time.monotonic()
    os.kill(job.process.pid, number)
    assert job.wait() == 4, job.text()
    assert time.monotonic() - began < 10
    assert job.text().splitlines()[-1].startswith("error: ")
    assert "Traceback" not in job.text()


def test_a_stopped_job_goes_on_later(tmp_path: Path, ray_session: str) -> None:
    case = Case(tmp_path, ray_session)
    for number in (signal.SIGTERM, signal.SIGINT):
        before = len(case.published())
        with case.start() as job:
            job.wait_units(before + 20)
            check_stops(job, number)
        assert f"stopped by {number.name}" in job.text()
    untouched = case.published()
    assert 40 <= check_published_whole(case.output) < 200

    case.finish()

    case.check_finished(untouched)


def test_a_second_job_on_an_output_is_refused(tmp_path: Path, ray_session: str) -> None:
    case = Case(tmp_path, ray_session)
    with case.start() as job:
        job.wait_units(1)
        with pytest.raises(LockedError, match=f"process {job.process.pid} on host"):
            run_job(load_config(case.config))
        assert job.wait() == 0

    case.check_finished({})
    assert LockedError.exit_code == 5


@pytest.mark.parametrize("seconds", [0.1, 0.5])
def test_a_signal_while_ray_starts_stops_the_job(tmp_path: Path, seconds: float) -> None:
    case = Case(tmp_path, "local")
    with case.start() as job:
        wait_for(case.layout.identity.exists, "the job's start")
        time.sleep(seconds)
        check_stops(job)


class HalfMade:
    """As an object is whose making a signal ended."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("module", "error", "said"),
    [
        ("ray.data.dataset", AttributeError("no _current_executor"), False),
        ("elsewhere", AttributeError("no _current_executor"), True),
        ("elsewhere", StopRequestedError("SIGTERM"), False),
    ],
)
def test_what_a_stop_leaves_says_nothing(
    module: str,
    error: BaseException,
    said: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(HalfMade.__del__, "__module__", module)
    monkeypatch.setattr(sys, "unraisablehook", leave_stops_unsaid)
    HalfMade(error)
    assert (str(error) in capsys.readouterr().err) == said


def test_a_signal_while_scorers_load_stops_the_job(tmp_path: Path, ray_session: str) -> None:
    case = Case(tmp_path, ray_session)
    before = {worker.pid for worker in ray_workers("MapWorker")}
    with case.start() as job:
        wait_for(lambda: {w.pid for w in ray_workers("MapWorker")} - before, "a scorer")
        check_stops(job)
    assert not case.published()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_stops_the_job_until_there_is_room(
    tmp_path: Path,
    ray_session: str,
    small_disk: Path,
) -> None:
    case = Case(tmp_path, ray_session)
    config = load_config(case.config, [f"output={small_disk / 'output'}"])
    case.output, case.layout = small_disk / "output", OutputLayout(small_disk / "output")

    with pytest.raises(ResumableError, match="No space left"):
        run_job(config)

    assert 0 < check_published_whole(case.output) < 200
    # A scorer that was killed beside the one without room may leave what it was writing, which the
    # next start removes; nothing else is left.
    assert all(TEMP_MARK in path.name for path in case.output.rglob(".*"))
    untouched = case.published()
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert run_job(config).status == "scored"
    case.check_finished(untouched)


def test_exit_codes_of_the_command_line(tmp_path: Path) -> None:
    case = Case(tmp_path, "local")
    shard = tmp_path / "input/shard-003.parquet"
    shard.write_bytes(shard.read_bytes()[:-100])
    with case.start() as job:
        assert job.wait() == 3, job.text()
    assert str(shard) in job.text()
    keys = yaml.safe_load(case.config.read_text()) | {"unit_row": 20}
    case.config.write_text(yaml.safe_dump(keys))
    with case.start() as job:
        assert job.wait() == 2
    assert "did you mean 'unit_rows'" in job.text()
    assert not case.output.exists()
