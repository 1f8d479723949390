"""The spool: what is on disk after crashes, resumes and full disks."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.redaction import without_credentials
from pipeline.storage.mlflow_access import resolve_uri
from pipeline.tracking.settings import store_name
from pipeline.tracking.spool import (
    SpoolWriter,
    StoreState,
    open_attempt,
    read_run,
    run_dirs,
    writer_lives,
)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB; skips where mounting is not permitted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def begin(folder: Path, identity: str = "id-1") -> SpoolWriter:
    writer = open_attempt(folder, identity)
    writer.append({"kind": "start", "identity": identity, "spool_id": writer.spool_id})
    return writer


def test_an_unfinished_job_goes_on_in_its_run(tmp_path: Path):
    first = begin(tmp_path)
    first.close()
    second = begin(tmp_path)
    assert (second.run_dir, second.attempt) == (first.run_dir, 1)
    assert second.spool_id == first.spool_id
    assert [(e["attempt"], e["seq"]) for e in read_run(first.run_dir)] == [(0, 0), (1, 0)]


def test_a_failed_job_goes_on_and_a_finished_one_does_not(tmp_path: Path):
    writer = begin(tmp_path)
    writer.append({"kind": "finish", "status": "FAILED"})
    again = begin(tmp_path)
    assert again.spool_id == writer.spool_id
    again.append({"kind": "finish", "status": "FINISHED"})
    assert begin(tmp_path).spool_id != writer.spool_id
    assert [path.name for path in run_dirs(tmp_path)] == ["run-000", "run-001"]


def test_another_identity_is_another_run(tmp_path: Path):
    assert begin(tmp_path, "id-1").spool_id != begin(tmp_path, "id-2").spool_id


def test_a_line_cut_by_a_crash_is_left_out(tmp_path: Path):
    writer = begin(tmp_path)
    with writer.path.open("ab") as file:
        file.write(b'{"kind": "progr')
    assert [event["kind"] for event in read_run(writer.run_dir)] == ["start"]


def test_a_run_knows_whether_its_process_lives(tmp_path: Path):
    writer = begin(tmp_path)
    assert writer_lives(writer.run_dir)
    writer.close()
    assert not writer_lives(writer.run_dir)


def test_what_a_full_disk_refuses_is_written_when_there_is_room(tiny_disk: Path):
    filler = tiny_disk / "filler"
    writer = begin(tiny_disk)
    filler.write_bytes(bytes(52_000))
    for number in range(111):
        writer.append({"kind": "progress", "number": number, "text": "x" * 111})
    assert "No space left" in str(writer.error)
    filler.unlink()
    assert writer.flush()
    assert writer.error is None
    assert [event["seq"] for event in read_run(writer.run_dir)] == list(range(112))


def test_the_cursor_of_a_store_survives(tmp_path: Path):
    state = StoreState("sqlite:////x.db", run_id="r", cursor=(1, 19), derived={"score_psi": 0.5})
    state.save(tmp_path / "s.json")
    loaded = StoreState.load(tmp_path / "s.json", "sqlite:////x.db")
    assert loaded == state
    assert loaded.has({"attempt": 0, "seq": 111})
    assert not loaded.has({"attempt": 1, "seq": 20})


@pytest.mark.parametrize("content", ["", "[]", '{"cursor": 1}', '{"other": 1, "cursor": [0, 0]}'])
def test_a_broken_cursor_means_nothing_was_sent(tmp_path: Path, content: str):
    path = tmp_path / "s.json"
    path.write_text(content)
    assert StoreState.load(path, "u").cursor == (-1, -1)


def test_a_store_has_one_name_however_it_is_written(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert resolve_uri(None) == f"sqlite:///{tmp_path}/mlflow.db"
    assert resolve_uri("sqlite:///mlflow.db") == resolve_uri(None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert resolve_uri(None) == "http://tracking:5000"
    assert without_credentials("https://me:secret@host/a@b") == "https://host/a@b"
    assert store_name("https://me:secret@host") == store_name("https://host")
