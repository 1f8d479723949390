from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from plan_jobs import job, write

from pipeline.errors import ResumableError
from pipeline.schedule.waiting import folders_above, wait_for_input

TABLE = pa.table({"row_id": [1]})


class Clock:
    """Sleeps that take no time, with something that happens at the second one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
        self.seconds, self.sleeps, self.then = 0.0, 0, then
        monotonic = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + self.seconds)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.sleeps += 1
        if self.sleeps == 2:
            self.then()


def test_a_job_without_wait_for_waits_for_nothing(tmp_path: Path) -> None:
    wait_for_input(job(tmp_path))  # there is no input


@pytest.mark.parametrize("marker", ["input/_SUCCESS", "input/a/_SUCCESS"])
def test_a_marker_beside_or_above_every_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    def arrive() -> None:
        write(tmp_path / "input/a/x.parquet", TABLE)
        (tmp_path / marker).touch()

    clock = Clock(monkeypatch, arrive)
    wait_for_input(job(tmp_path, wait_for="success"), clock.sleep)
    assert clock.sleeps == 2


@pytest.mark.parametrize("entry", ["input", "input/*", "input/*/x.parquet", "input/b/x.parquet"])
def test_the_deadline_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    write(tmp_path / "input/a/x.parquet", TABLE)
    write(tmp_path / "input/b/x.parquet", TABLE)
    (tmp_path / "input/a/_SUCCESS").touch()
    (tmp_path / "_SUCCESS").touch()  # above the input: says nothing of it
    clock = Clock(monkeypatch, lambda: None)
    config = job(tmp_path, input=str(tmp_path / entry), wait_for="success", deadline="10m")
    with pytest.raises(ResumableError, match=r"within 10m .*b/x.parquet has no _SUCCESS") as caught:
        wait_for_input(config, clock.sleep)
    assert 595 <= clock.seconds < 605
    assert caught.value.exit_code == 4


def test_quiet_is_told_by_the_times_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "input/x.parquet", TABLE)
    clock = Clock(monkeypatch, lambda: None)
    wait_for_input(job(tmp_path, wait_for="quiet 1m"), clock.sleep)
    assert 55 <= clock.seconds <= 65
    monkeypatch.setattr(time, "time", lambda: (tmp_path / "input/x.parquet").stat().st_mtime + 61)
    clock.seconds = 0.0
    wait_for_input(job(tmp_path, wait_for="quiet 1m"), clock.sleep)
    assert clock.seconds == 0.0


def test_a_change_under_our_eyes_begins_anew_whatever_time_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "input/x.parquet", TABLE)

    def arrive() -> None:
        path = write(tmp_path / "input/y.parquet", TABLE)
        os.utime(path, (1e9, 1e9))

    clock = Clock(monkeypatch, arrive)
    wait_for_input(job(tmp_path, wait_for="quiet 1m"), clock.sleep)
    assert 65 <= clock.seconds <= 75  # the second sleep ends after 10 s


def test_the_folders_above_a_file() -> None:
    assert folders_above("/a/b/c/x", "/a") == ["/a/b/c", "/a/b", "/a"]
    assert folders_above("/a/x", "/a/x") == ["/a"]
    assert folders_above("/ab/x", "/a") == ["/ab"]
    assert folders_above("/a/x", "/") == ["/a", "/"]
    assert folders_above("s3://b/k/x", "s3://b/k") == ["s3://b/k"]
