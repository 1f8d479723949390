"""Hosts that misbehave: a clock that is set to and fro under the job, storage that is slow."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from running_job import Case

from pipeline.publishing.records import Manifest, read_json

HOURS = 3600
SET_CLOCK = Path(__file__).with_name("set_clock")


@pytest.fixture(scope="module")
def slowness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes storage slow."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("slowness") / "slowness.so"
    source = Path(__file__).with_name("slowness.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", str(source), "-o", library]
    subprocess.run(command, check=True)
    return library


class Clock:
    """Context manager that sets the time of day of the job's processes every half second."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "clock"
        self.file.write_bytes(struct.pack("q", 0))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._jump)

    def __enter__(self) -> Clock:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _jump(self) -> None:
        for offset in self._offsets():
            with self.file.open("r+b") as file:
                file.write(struct.pack("q", offset))
            if self._stop.wait(0.5):
                return

    def _offsets(self) -> Iterator[int]:
        while True:
            yield from (0, 5 * HOURS, -7 * HOURS)


@pytest.mark.usefixtures("ray_session")
def test_a_clock_that_jumps_changes_nothing(tmp_path: Path) -> None:
    case = Case(tmp_path, "local", tracking=True, mlflow_uri=f"sqlite:///{tmp_path}/mlflow.db")
    with Clock(tmp_path) as clock:
        paths = os.pathsep.join([str(SET_CLOCK), os.environ.get("PYTHONPATH", "")])
        environment = {"PYTHONPATH": paths, "SET_CLOCK": str(clock.file)}
        with case.start(environment=environment) as job:
            assert job.wait() == 0, job.text()

    case.check_finished({})
    manifest = read_json(case.layout.manifest, Manifest)
    assert manifest is not None
    started = [record.started for record in manifest.units]
    assert max(started) - min(started) > 4 * HOURS  # it did jump
    lines = [json.loads(line) for line in _events(case).read_text().splitlines()]
    times = [line["time"] for line in lines]
    assert times == sorted(times)
    assert times[-1] - times[0] < HOURS * 1000
    metrics = lines[-1]["metrics"]
    assert 0 < metrics["rows_per_second"] < 4000
    assert 0 < metrics["wall_seconds"] < HOURS
    assert 0 <= metrics.get("startup_seconds", 0) < HOURS


def _events(case: Case) -> Path:
    (path,) = (case.output / "_tracking").glob("run-000/attempt-000.jsonl")
    return path


@pytest.mark.usefixtures("ray_session")
def test_slow_storage_makes_a_slow_job(tmp_path: Path, slowness: Path) -> None:
    case = Case(tmp_path, "local", shards=1)
    environment = {"LD_PRELOAD": str(slowness), "SLOW_FOLDER": str(tmp_path), "SLOW_MS": "30"}
    with case.start(environment=environment) as job:
        assert job.wait() == 0, job.text()

    case.check_finished({})
    manifest = read_json(case.layout.manifest, Manifest)
    assert manifest is not None
    assert min(record.write_s for record in manifest.units) > 0.05
    assert min(record.read_s for record in manifest.units) > 0.05
