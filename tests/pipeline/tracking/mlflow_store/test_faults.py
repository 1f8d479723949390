"""MLflow dead, hanging, wrong or full: the job goes on, and the records can be sent later."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tracking_records import make_record, start_job, track_job

from jobs.track import command as track
from pipeline.errors import ConfigError, ResumableError
from pipeline.tracking.mlflow_store.replay import replay
from pipeline.tracking.settings import TrackingSettings
from pipeline.tracking.spool import read_run
from pipeline.tracking.tracker import Tracker

ROOT = Path(__file__).resolve().parents[4]
SOON_S = 10.0  # for what needs no answer of MLflow


@pytest.fixture
def hanging_server() -> Iterator[str]:
    """A server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 96 KiB; skips where mounting is not permitted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_hanging_server_costs_no_more_than_the_timeout(hanging_server: str, tmp_path, caplog):
    began = time.monotonic()
    tracker = track_job(tmp_path / "out", hanging_server, timeout_s=2.0)
    assert time.monotonic() - began < SOON_S
    assert tracker.run_id is None
    assert "3 records were not sent" in caplog.text
    assert f"dpiframe track {tmp_path / 'out'}" in caplog.text

    store = f"sqlite:///{tmp_path}/later.db"
    sent = CliRunner().invoke(track, [str(tmp_path / "out"), "--mlflow-uri", store])
    assert sent.exit_code == 0, sent.output
    assert sent.output.startswith(f"sent 3 records to {store}\nrun ")
    again = CliRunner().invoke(track, [str(tmp_path / "out"), "--mlflow-uri", store])
    assert again.output.startswith("nothing left to send")


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "nonsense://x", "sqlite:////proc/no/x.db"])
def test_a_store_that_is_not_there_is_a_warning(uri: str, tmp_path: Path, caplog):
    tracker = track_job(tmp_path / "out", uri, timeout_s=20.0)
    assert tracker.run_id is None
    assert f"3 records were not sent to {uri}" in caplog.text
    assert len(list((tmp_path / "out").glob("_tracking/run-000/attempt-000.jsonl"))) == 1


def test_a_store_that_goes_away_in_mid_job(tmp_path: Path, caplog):
    folder = tmp_path / "store"
    tracker = start_job(tmp_path / "out", f"sqlite:///{folder}/mlflow.db")
    until = time.monotonic() + 60
    while tracker.run_id is None and time.monotonic() < until:
        time.sleep(0.1)
    run_id = tracker.run_id
    assert run_id is not None
    folder.rename(tmp_path / "gone")
    folder.write_text("no folder any more")

    began = time.monotonic()
    record = make_record(0)
    tracker.unit_done(record)
    tracker.finish("FINISHED", [record], wall_s=2.0, num_gpus=0, problems=None)
    tracker.close(5.0)
    assert time.monotonic() - began < SOON_S
    assert "records were not sent" in caplog.text

    folder.unlink()
    (tmp_path / "gone").rename(folder)
    sent = replay(tmp_path / "out", None, 60)
    assert sent.run_id == run_id
    assert sent.sent > 0


def test_sending_later_to_a_dead_store_says_what_is_left(tmp_path: Path, caplog):
    track_job(tmp_path / "out", "nonsense://x", timeout_s=0.0)
    with pytest.raises(ResumableError, match=r"0 records were sent .* the rest waits"):
        replay(tmp_path / "out", "http://127.0.0.1:9", 20.0)
    with pytest.raises(ConfigError, match="holds no tracking records"):
        replay(tmp_path, None, 1.0)


def test_a_full_disk_for_the_database(small_disk: Path, tmp_path: Path, caplog):
    tracker = track_job(tmp_path / "out", f"sqlite:///{small_disk}/mlflow.db", timeout_s=30.0)
    assert tracker.run_id is None
    assert "3 records were not sent" in caplog.text
    assert replay(tmp_path / "out", f"sqlite:///{tmp_path}/later.db", 60).sent == 3


def test_a_full_disk_for_the_spool_still_reaches_mlflow(small_disk: Path, tmp_path: Path, caplog):
    (small_disk / "filler").write_bytes(bytes(96 << 10))
    tracker = track_job(small_disk / "out", f"sqlite:///{tmp_path}/mlflow.db", timeout_s=60.0)
    assert tracker.run_id is not None
    assert "No space left on device" in caplog.text
    assert "not sent" not in caplog.text


def test_wrong_calls_raise_nothing(tmp_path: Path, caplog):
    tracker = Tracker(TrackingSettings(), tmp_path)
    tracker.unit_done(None)
    tracker.finish("FINISHED", [None], 1.0, 0, None)
    tracker.close(0.1)
    tracker.start({}, {}, None, None)
    assert "start: AttributeError" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_tracking_switched_off_touches_nothing(tmp_path: Path):
    tracker = track_job(tmp_path / "out", None, enabled=False)
    assert tracker.run_id is None
    assert not (tmp_path / "out").exists()


FORGETFUL_JOB = """
import sys
from pathlib import Path
from tracking_records import start_job
start_job(Path(sys.argv[1]), sys.argv[2])
print("done", "mlflow" in sys.modules, "matplotlib" in sys.modules)
"""


def test_a_process_ends_at_once_and_prints_nothing(hanging_server: str, tmp_path: Path):
    paths = f"{ROOT}{os.pathsep}{ROOT / 'tests/helpers'}"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", FORGETFUL_JOB, str(tmp_path), hanging_server],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert time.monotonic() - began < SOON_S
    assert (done.returncode, done.stdout, done.stderr) == (0, "done False False\n", "")
    assert [event["kind"] for event in read_run(tmp_path / "_tracking/run-000")] == ["start"]
