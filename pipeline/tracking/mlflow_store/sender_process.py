"""`SenderProcess`: the driver's handle of the sender: start it, pass events, end it in time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from pipeline.own_module import own_module
from pipeline.redaction import without_credentials, without_user
from pipeline.storage.mlflow_access import MLFLOW_ENV
from pipeline.tracking.spool import Event
from pipeline.tracking.tags import PROJECT_ROOT

LOG_FILE = "sender.log"
LOG_LIMIT = 1 << 20
PIPE_BYTES = 1 << 20  # holds hundreds of events while the sender starts
KILL_WAIT_S = 1.0
STACK_WAIT_S = 0.1


class SenderProcess:
    """One sender process. `send` never blocks; a sender whose pipe is full is killed."""

    def __init__(self, folder: Path, uri: str, live: Path | None) -> None:
        """Start to send the spool in `folder` to `uri`; with `live` also events given to `send`.

        Raises OSError when no process can be started.
        """
        self.uri = uri
        self.run_id: str | None = None
        self.run_url: str | None = None
        self.error: str | None = None  # the last one since the last success
        self.warnings: list[str] = []
        self.sent: list[tuple[str, tuple[int, int]]] = []  # run folder, (attempt, seq)
        self.left: int | None = None  # unsent events, as the sender reported at its end
        self._live = None if live is None else live.name
        command = [*own_module("pipeline.tracking.mlflow_store.sender"), str(folder)]
        command += [] if live is None else ["--live", str(live)]
        with _log_file(folder) as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if live is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(uri),
                start_new_session=True,  # Ctrl-C is for the job
            )
        if self._process.stdin is not None:
            _enlarge_pipe(self._process.stdin)
        self._reader = threading.Thread(target=self._read, name="tracking-reports", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id of the sender."""
        return self._process.pid

    def send(self, event: Event) -> None:
        """Pass one event on. It is already in the spool, so a dead sender is not an error."""
        pipe = self._process.stdin
        if pipe is None or pipe.closed:
            return
        line = json.dumps(event).encode() + b"\n"
        try:
            whole = os.write(pipe.fileno(), line) == len(line)
        except OSError:
            whole = False
        if not whole:
            self.error = "the sender does not take events"
            self.kill()

    def count_sent(self, run: str, attempt: int) -> int:
        """How many events of one attempt were sent."""
        return len({key for name, key in self.sent if name == run and key[0] == attempt})

    def finish(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for the sender to send everything, then end it."""
        deadline = time.monotonic() + timeout_s
        self.send({"kind": "close"})
        try:
            self._process.wait(max(deadline - time.monotonic(), 0))
            self._reader.join(KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            where = without_credentials(self.uri)
            self.error = self.error or f"{where} did not answer within {timeout_s:.1f} s"
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._process.send_signal(signal.SIGUSR1)  # it writes its stack to the log
                self._process.wait(STACK_WAIT_S)
            self.kill()

    def leave(self) -> None:
        """Let the sender send everything and end by itself, also after the end of this process."""
        self.send({"kind": "close"})

    def kill(self) -> None:
        """End the sender now."""
        with contextlib.suppress(OSError):
            self._process.kill()
            if self._process.stdin is not None:
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_WAIT_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                self._note(json.loads(line))

    def _note(self, message: dict[str, Any]) -> None:
        if "sent" in message:
            attempt, seq = message["sent"]
            self.sent.append((message["run"], (attempt, seq)))
            self.error = None
            if self._live in (None, message["run"]):
                self.run_id, self.run_url = message["run_id"], message["url"]
        self.error = message.get("error", self.error)
        self.left = message.get("left", self.left)
        if "warning" in message:
            self.warnings.append(message["warning"])


def _environment(uri: str) -> dict[str, str]:
    # The URI goes into the environment, not the arguments: it may contain a password.
    environment = {**os.environ, **MLFLOW_ENV, "MPLBACKEND": "Agg"}
    environment |= store_environment(uri, environment)
    environment["PYTHONWARNINGS"] = "ignore"
    environment.pop("PYTEST_CURRENT_TEST", None)  # MLflow changes its behaviour under pytest
    paths = [str(PROJECT_ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environment


def store_environment(uri: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What tells MLflow its server: the URI without user and password, which no text then names.

    A user that `environment` has already is kept. Only servers take them apart from the URI.
    """
    try:
        parts = urlsplit(uri)
        user, password = parts.username, parts.password
    except ValueError:
        return {"MLFLOW_TRACKING_URI": uri}
    if parts.scheme not in ("http", "https") or user is None:
        return {"MLFLOW_TRACKING_URI": uri}
    found = {"MLFLOW_TRACKING_URI": without_user(uri)}
    if not environment.get("MLFLOW_TRACKING_USERNAME"):
        found["MLFLOW_TRACKING_USERNAME"] = unquote(user)
        found["MLFLOW_TRACKING_PASSWORD"] = unquote(password or "")
    return found


def _log_file(folder: Path) -> IO[bytes]:
    path = folder / LOG_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        large = path.exists() and path.stat().st_size > LOG_LIMIT
        return path.open("wb" if large else "ab")
    except OSError:  # a full disk
        return Path(os.devnull).open("wb")


def _enlarge_pipe(pipe: IO[bytes]) -> None:
    os.set_blocking(pipe.fileno(), False)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
