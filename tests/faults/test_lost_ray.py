"""Ray's own processes are gone: the job ends resumable and in time, it does not wait."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from job_cases import with_value
from running_job import ROOT, Case, RunningJob

from pipeline.cluster.ray_watch import gcs_answers, raylet_answers
from pipeline.cluster.signals import StopRequestedError, StopSignals


@pytest.mark.usefixtures("ray_session")
def test_a_job_whose_raylet_was_killed_is_resumable(tmp_path: Path) -> None:
    case = Case(tmp_path, "local")
    with case.start() as job:
        job.wait_units(5)
        ours = psutil.Process(job.process.pid).children()
        (raylet,) = [process for process in ours if process.name() == "raylet"]
        raylet.kill()
        began = time.monotonic()
        assert job.wait() == 4, job.text()
        assert time.monotonic() - began < 15
    assert "stopped by the loss of Ray: the raylet of this host is gone" in job.text()
    untouched = case.published()

    case.finish()

    case.check_finished(untouched)


ENDS = """
import os, time
from jobs.cli import main
from pipeline.cluster import ray_cluster, signals
signals.STOP_SECONDS = 0.5
ray_cluster.shut_down = lambda: {end}
main()
"""


@pytest.mark.parametrize(
    ("end", "code"), [("time.sleep(100)", 3), ("os._exit(7)", 7)], ids=["hangs", "ends the process"]
)
def test_all_is_told_and_tidied_before_ray_is_shut_down(
    tmp_path: Path, end: str, code: int
) -> None:
    database = f"sqlite:///{tmp_path}/mlflow.db"
    case = Case(tmp_path, "local", shards=1, rows=100, tracking=True, mlflow_uri=database)
    spoiled = with_value(case.table, "C2", 25, 99)  # no footer tells
    shard = tmp_path / "input/shard-000.parquet"
    pq.write_table(spoiled, shard, row_group_size=2, write_statistics=False)
    command = [sys.executable, "-c", ENDS.format(end=end), "score", str(case.config)]
    with RunningJob(command, case, dict(os.environ)) as job:
        assert job.wait() == code, job.text()
    assert "error: " in job.text().splitlines()[-1]
    assert "row 25 of the file" in job.text()
    assert not (case.output / "_lock").exists()
    (events,) = case.output.glob("_tracking/run-*/*.jsonl")
    assert json.loads(events.read_text().splitlines()[-1])["status"] == "FAILED"


def test_who_answers(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as raylet, socket.create_server(("127.0.0.1", 0)) as gcs:
        address = gcs.getsockname()
        raylet.bind(str(tmp_path / "raylet"))
        assert not raylet_answers(str(tmp_path / "raylet"))
        raylet.listen()
        assert raylet_answers(str(tmp_path / "raylet"))
        assert gcs_answers(address)
    assert not raylet_answers(str(tmp_path / "raylet"))
    assert not gcs_answers(address)


def test_a_stop_from_another_thread_ends_a_wait() -> None:
    with StopSignals() as signals:
        before = signal.getsignal(signal.SIGTERM)
        threading.Timer(0.2, signals.stop, ["the test"]).start()
        with pytest.raises(StopRequestedError, match="the test"), signals.waiting():
            threading.Event().wait(10)
        assert signal.getsignal(signal.SIGTERM) == before
        with pytest.raises(StopRequestedError, match="the test"), signals.waiting():
            pass


HANGS = """
import os, time
from pipeline.cluster import signals
signals.STOP_SECONDS = 0.5
with signals.StopSignals(own_process=True):
    os.kill(os.getpid(), signals.SIGNALS[0])
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for _ in range(100):
        time.sleep(0.1)
"""


def test_a_process_that_does_not_end_is_ended() -> None:
    command = [sys.executable, "-c", HANGS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4
    assert done.stderr.startswith("error: stopped by SIGTERM; what was in hand did not end")
