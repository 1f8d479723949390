"""The sender: a child process that sends spooled events to one MLflow store.

    MLFLOW_TRACKING_URI=... python -m pipeline.tracking.mlflow_store.sender FOLDER [--live RUN_DIR]

A process of its own keeps MLflow's import, waits, log lines and locks out of the job's process; it
can be killed at any moment, which only delays the sending. With --live it also reads events from
standard input, one JSON line each, until a line of kind "close"; an input that ends without one
means that the job's process died. It reports in JSON lines on standard output.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import fcntl
import importlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pipeline.redaction import (
    redact_process,
    redacted,
    redacted_data,
    without_credentials,
)
from pipeline.tracking.settings import store_name
from pipeline.tracking.spool import Event, StoreState, read_run, run_dirs, writer_lives

if TYPE_CHECKING:
    from pipeline.tracking.mlflow_store.store import MlflowStore

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
LAST_TRIES = 2  # after the end of the input
ORPHAN_LIMIT_S = 60  # a sender whose job died ends itself after this time

log = logging.getLogger("dpiframe.tracking.sender")


class Inbox:
    """Events from standard input, read at once by a thread, so that the job never blocks."""

    def __init__(self, stream: Any, live: bool) -> None:
        self._events: deque[Event] = deque()
        self._changed = threading.Event()
        self.ended = not live
        self.closed = False  # the job sent "close"
        if live:
            threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def take(self) -> list[Event]:
        """All events that came since the last call."""
        self._changed.clear()
        return [self._events.popleft() for _ in range(len(self._events))]

    def wait(self, seconds: float | None) -> None:
        """Sleep until an event or the end of the input, at most `seconds`."""
        if not self.ended:
            self._changed.wait(seconds)

    def wait_for_end(self, seconds: float) -> None:
        """Sleep until the input ends, at most `seconds`; events do not wake it."""
        until = time.monotonic() + seconds
        while not self.ended and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    def _read(self, stream: Any) -> None:
        try:
            for line in stream:
                event = json.loads(line)
                if event["kind"] == "close":
                    self.closed = True
                    break
                self._events.append(event)
                self._changed.set()
        finally:
            if not self.closed:
                signal.alarm(ORPHAN_LIMIT_S)
            self.ended = True
            self._changed.set()


@dataclass
class Outbox:
    """The events of one run that the store lacks, in order."""

    run_dir: Path
    state_path: Path
    state: StoreState
    pending: deque[Event] = field(default_factory=deque)
    last: Event | None = None

    @classmethod
    def open(cls, run_dir: Path, uri: str) -> Outbox:
        """With what the disk holds of the run; the folder may be missing when the disk is full."""
        path = run_dir / f"store-{store_name(uri)}.json"
        outbox = cls(run_dir, path, StoreState.load(path, without_credentials(uri)))
        for event in read_run(run_dir):
            outbox.add(event)
        return outbox

    def add(self, event: Event) -> None:
        """Queue an event unless it was queued or sent before."""
        key = (event["attempt"], event["seq"])
        if self.last is None or key > (self.last["attempt"], self.last["seq"]):
            self.last = event
            if not self.state.has(event):
                self.pending.append(event)

    def save(self) -> None:
        """Save the cursor; if the disk is full, events may be sent again."""
        with contextlib.suppress(OSError):
            self.state.save(self.state_path)


class Sender:
    """Sends every outbox of a tracking folder, the live one first, until the input has ended."""

    def __init__(self, folder: Path, live: Path | None, inbox: Inbox, reports: Reports) -> None:
        self.uri = os.environ["MLFLOW_TRACKING_URI"]
        self.inbox = inbox
        self.report = reports
        self.live = None if live is None else Outbox.open(live, self.uri)
        others = [path for path in run_dirs(folder) if path != live]
        self.outboxes = [Outbox.open(path, self.uri) for path in others]
        if self.live is not None:
            self.outboxes.insert(0, self.live)
        self._store: MlflowStore | None = None

    def run(self) -> int:
        """Send until the input has ended and all is sent, or retries are used up; returns what is
        left."""
        pause, tries = FIRST_PAUSE_S, 0
        while True:
            ended = self.inbox.ended
            self._collect()
            results = [self._drain(outbox) for outbox in self.outboxes]  # try each of them
            if all(results):
                pause = FIRST_PAUSE_S
                if ended:
                    break
                self._warm_up()
                self.inbox.wait(None)
            elif ended:
                tries += 1
                if tries == LAST_TRIES:
                    break
                time.sleep(FIRST_PAUSE_S / 2)
            else:
                self.inbox.wait_for_end(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
        left = sum(len(outbox.pending) for outbox in self.outboxes)
        self.report(left=left)
        return left

    def _warm_up(self) -> None:
        """Import what the finish event needs while the sender is idle."""
        if self._store is not None:
            importlib.import_module("pipeline.tracking.plots")

    def _collect(self) -> None:
        for event in self.inbox.take():
            assert self.live is not None
            self.live.add(event)

    def _drain(self, outbox: Outbox) -> bool:
        try:
            while outbox.pending:
                self._send(outbox, outbox.pending[0])
                outbox.pending.popleft()
            self._end_if_lost(outbox)
        except Exception as error:  # whatever MLflow raises, the event stays queued
            log.exception("run %s", outbox.run_dir.name)
            self.report(error=redacted(f"{type(error).__name__}: {error}"))
            return False
        return True

    def _send(self, outbox: Outbox, event: Event) -> None:
        state = outbox.state
        warning = self._open_store().apply(event, state, outbox.run_dir)
        state.cursor = (event["attempt"], event["seq"])
        outbox.save()
        run = {"run": outbox.run_dir.name, "run_id": state.run_id, "url": state.url}
        self.report(sent=[event["attempt"], event["seq"]], **run)
        if warning:
            self.report(warning=warning)

    def _end_if_lost(self, outbox: Outbox) -> None:
        """End a run as KILLED, once, if its process died without a finish event."""
        state, last = outbox.state, outbox.last
        if last is None or last["kind"] == "finish" or state.lost or state.run_id is None:
            return
        if outbox is self.live:
            lost = self.inbox.ended and not self.inbox.closed
        else:
            lost = not writer_lives(outbox.run_dir)
        if lost:
            self._open_store().end_lost(state, last["time"])
            state.lost = True
            outbox.save()

    def _open_store(self) -> MlflowStore:
        if self._store is None:
            from pipeline.tracking.mlflow_store.store import MlflowStore

            self._store = MlflowStore(self.uri)
        return self._store


class Reports:
    """Writes JSON lines to the parent process, which may be dead."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, **message: Any) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(json.dumps(redacted_data(message)) + "\n")
            self._stream.flush()


@contextlib.contextmanager
def sending_lock(folder: Path, report: Reports) -> Iterator[None]:
    """Wait to be the only process that sends from this folder to this store."""
    path = folder / f"store-{store_name(os.environ['MLFLOW_TRACKING_URI'])}.lock"
    try:
        file = path.open("a")
    except OSError:  # disk full: there is no spool to send twice either
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(error="another process is sending from this folder to this store")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Parse, reserve standard output for reports, send; 0 when nothing is left."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--live", type=Path)
    arguments = parser.parse_args()
    inbox = Inbox(sys.stdin, live=arguments.live is not None)
    report = Reports(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # MLflow's prints go to the log
    redact_process()
    faulthandler.register(signal.SIGUSR1)  # the parent requests the stack before it kills
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    with sending_lock(arguments.folder, report):
        return 1 if Sender(arguments.folder, arguments.live, inbox, report).run() else 0


if __name__ == "__main__":
    # Skip interpreter shutdown: threads that MLflow left running must not block the exit.
    status = main()
    sys.stderr.flush()
    os._exit(status)
