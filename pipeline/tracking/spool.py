"""The spool: every tracking event is a line in a file of the output before it is sent to MLflow.

    _tracking/run-000/attempt-000.jsonl          events of one process, appended, synced
    _tracking/run-000/attempt-000-units.parquet  the unit table that its last event names
    _tracking/run-000/store-<name>.json          state of one MLflow store: run id and cursor
    _tracking/store-<name>.lock                  flock of the process that sends to that store

A run is one MLflow run. A process that resumes an unfinished job of the same identity adds an
attempt to the last run; any other start begins a new run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]  # kind: "start" | "progress" | "finish", attempt, seq, time (epoch ms), ...


@dataclass
class SpoolWriter:
    """Appends the events of one attempt; what cannot be written is kept in memory and retried."""

    run_dir: Path
    attempt: int
    spool_id: str  # identifies the MLflow run before MLflow has assigned an id
    next_seq: int = 0
    error: str | None = None
    _fd: int = -1
    _unwritten: bytes = b""

    @property
    def path(self) -> Path:
        """The file of this attempt."""
        return self.run_dir / f"attempt-{self.attempt:03d}.jsonl"

    def append(self, event: Event) -> Event:
        """Number the event and write it; a disk error is kept in `error`, never raised."""
        numbered = {"attempt": self.attempt, "seq": self.next_seq, **event}
        self.next_seq += 1
        self._unwritten += json.dumps(numbered).encode() + b"\n"
        self.flush()
        return numbered

    def flush(self) -> bool:
        """Write and sync pending events; True when none is left."""
        try:
            if self._fd < 0:
                self._fd = self._open()
            while self._unwritten:
                written = os.write(self._fd, self._unwritten)
                self._unwritten = self._unwritten[written:]
            os.fsync(self._fd)
            self.error = None
        except OSError as error:
            self.error = str(error)
        return not self._unwritten

    def close(self) -> None:
        """Close the file, which also lets go of its lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        # The lock shows that this attempt's process lives; some file systems have no locks.
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd


def open_attempt(folder: Path, identity: str) -> SpoolWriter:
    """The writer of a new attempt: of the last run if that is this job's and unfinished."""
    runs = run_dirs(folder)
    if runs:
        events = list(read_run(runs[-1]))
        start = next((e for e in events if e["kind"] == "start"), None)
        finished = any(e["kind"] == "finish" and e["status"] == "FINISHED" for e in events)
        if start is not None and start["identity"] == identity and not finished:
            return SpoolWriter(runs[-1], next_attempt(runs[-1]), start["spool_id"])
    number = int(runs[-1].name.removeprefix("run-")) + 1 if runs else 0
    return SpoolWriter(folder / f"run-{number:03d}", 0, uuid.uuid4().hex)


def run_dirs(folder: Path) -> list[Path]:
    """The folders of all runs, oldest first."""
    return sorted(path for path in folder.glob("run-*") if path.is_dir())


def attempt_files(run_dir: Path) -> list[Path]:
    """The event files of a run, first attempt first."""
    return sorted(run_dir.glob("attempt-*.jsonl"))


def next_attempt(run_dir: Path) -> int:
    """The number after the last attempt on disk."""
    files = attempt_files(run_dir)
    return int(files[-1].stem.removeprefix("attempt-")) + 1 if files else 0


def read_run(run_dir: Path) -> Iterator[Event]:
    """All whole events of a run in order; a line cut by a crash is left out."""
    for path in attempt_files(run_dir):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                try:
                    yield json.loads(line)
                except ValueError:  # a full disk cut the line and a later write continued it
                    continue


def writer_lives(run_dir: Path) -> bool:
    """True while the process of the last attempt holds its event file."""
    files = attempt_files(run_dir)
    if not files:
        return False
    with files[-1].open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


@dataclass
class StoreState:
    """What one MLflow store has of one run; saved in a file beside the events."""

    uri: str
    run_id: str | None = None
    url: str | None = None
    model_id: str | None = None
    started_ms: int = 0  # of the first attempt: steps of series count seconds from here
    cursor: tuple[int, int] = (-1, -1)  # attempt and seq of the last event that was sent
    lost: bool = False  # ended as KILLED because its process died without a finish event
    derived: dict[str, float] = field(default_factory=dict)  # metrics known only to the sender

    @classmethod
    def load(cls, path: Path, uri: str) -> StoreState:
        """Read the state; a missing or unreadable file means that nothing was sent."""
        try:
            raw = json.loads(path.read_text())
            return cls(**{**raw, "cursor": tuple(raw["cursor"])})
        except (OSError, ValueError, TypeError, KeyError):
            return cls(uri)

    def save(self, path: Path) -> None:
        """Replace the file atomically. OSError: events may be sent again, without harm."""
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.__dict__))
        temporary.replace(path)

    def has(self, event: Event) -> bool:
        """True when the store has this event."""
        return (event["attempt"], event["seq"]) <= self.cursor
