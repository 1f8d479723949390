"""Footers of many files, read in processes that may die of a corrupted one.

The parent hands out paths in small lists and waits for answers in one thread, so that a signal
ends the wait. A child that dies is replaced; the file it died of is tried once more by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa

from pipeline.errors import DpiframeError
from pipeline.planning.footers.footer import Footer, Limits
from pipeline.planning.footers.message import READY, FooterDecoder

PROJECT_ROOT = Path(__file__).resolve().parents[3]
MAX_CHILDREN = 8
FILES_PER_CHILD = 128  # to start another child for fewer takes longer than to read them
_CHUNK = 32  # paths a child gets at a time
_READ_BYTES = 1 << 16
_COMPLAINT_BYTES = 4096
_WAIT_S = 1.0  # for a process to be gone
_CRASHES = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


class Unreadable(NamedTuple):
    """A file without a usable footer, and why."""

    reason: str
    corrupt: bool  # readable, but not parquet


class Footers(NamedTuple):
    """By path, in any order."""

    good: dict[str, Footer]
    bad: dict[str, Unreadable]


def read_footers(paths: Sequence[str], limits: Limits) -> Footers:
    """The footer of each of the paths (all different), or why it has none.

    Raises DpiframeError when footers cannot be read for a reason that lies in no file.
    """
    pool = _Pool(paths, limits)
    try:
        return pool.run()
    finally:
        pool.close()


class _Child:
    """One process of `footer_worker`, the paths it has not answered, and what it complained of."""

    def __init__(self, interned: dict[str, pa.Schema]) -> None:
        command = [sys.executable, "-P", "-m", "pipeline.planning.footers.worker"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the parent
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.stderr = self.process.stderr
        self.decoder = FooterDecoder(interned)
        self.pending: deque[str] = deque()
        self.ready = False
        self.complaint = b""
        self._line = b""  # the beginning of one, when only that came

    def send(self, message: Any) -> None:
        """Pass a line; a dead child does not matter here, as its output ends too."""
        with contextlib.suppress(BrokenPipeError):
            self.stdin.write(json.dumps(message).encode() + b"\n")
            self.stdin.flush()

    def lines(self, data: bytes) -> list[bytes]:
        """The lines that `data` makes whole."""
        *whole, self._line = (self._line + data).split(b"\n")
        return whole

    def end(self) -> int:
        """Let it die, kill it if it does not; returns how it ended, as subprocess tells it."""
        try:
            self.process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # hangs in a dead file system
                self.process.wait(_WAIT_S)
        os.set_blocking(self.stderr.fileno(), False)
        self.complaint += self.stderr.read() or b""
        for pipe in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        return self.process.returncode or 0

    def last_words(self) -> str:
        """The last line that it wrote about itself."""
        lines = self.complaint.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


class _Pool:
    def __init__(self, paths: Sequence[str], limits: Limits) -> None:
        self._num_paths = len(paths)
        self._chunks = deque(paths[i : i + _CHUNK] for i in range(0, len(paths), _CHUNK))
        self._limits = dict(limits)
        self._found = Footers({}, {})
        self._suspects: set[str] = set()  # a child died of them once
        self._interned: dict[str, pa.Schema] = {}
        self._children: set[_Child] = set()
        self._selector = selectors.DefaultSelector()

    def run(self) -> Footers:
        wanted = 1 + self._num_paths // FILES_PER_CHILD
        for _ in range(min(wanted, os.cpu_count() or 1, MAX_CHILDREN)):
            self._start()
        while len(self._found.good) + len(self._found.bad) < self._num_paths:
            for key, _ in self._selector.select():
                child, pipe = key.data
                if child in self._children:  # not ended a moment ago
                    self._receive(child, pipe)
        return self._found

    def close(self) -> None:
        """End the children at once: they hold nothing worth keeping."""
        for child in self._children:
            child.process.kill()
        for child in self._children:
            child.end()
        self._selector.close()

    def _start(self) -> None:
        try:
            child = _Child(self._interned)
        except OSError as error:
            text = f"cannot start {sys.executable} to read footers: {error.strerror}"
            raise DpiframeError(text) from None
        self._children.add(child)
        for pipe in (child.stdout, child.stderr):
            self._selector.register(pipe, selectors.EVENT_READ, (child, pipe))

    def _receive(self, child: _Child, pipe: IO[bytes]) -> None:
        data = os.read(pipe.fileno(), _READ_BYTES)
        if pipe is child.stderr:
            child.complaint = (child.complaint + data)[-_COMPLAINT_BYTES:]
            if not data:
                self._selector.unregister(pipe)
            return
        for line in child.lines(data):
            self._take(child, line)
        if not data:
            self._bury(child)
        elif child.ready and not child.pending and self._chunks:
            child.pending.extend(self._chunks.popleft())
            child.send(list(child.pending))

    def _take(self, child: _Child, line: bytes) -> None:
        if not child.ready:
            if line == READY:
                child.ready = True
                child.send(self._limits)
            return
        message = json.loads(line)
        path = child.pending.popleft()
        if "reason" in message:
            self._found.bad[path] = Unreadable(**message)
        else:
            self._found.good[path] = child.decoder.decode(message)

    def _bury(self, child: _Child) -> None:
        """Take a dead child out, judge the file it was at, and go on with the others."""
        for pipe in (child.stdout, child.stderr):
            with contextlib.suppress(KeyError):  # the end of stderr was seen
                self._selector.unregister(pipe)
        code = child.end()
        self._children.remove(child)
        if not child.ready or (code >= 0 and child.pending):
            at = f" at {child.pending[0]}" if child.pending else ""
            raise DpiframeError(
                f"the process that reads footers ended{at} ({_how(code)}): {child.last_words()}"
            )
        if child.pending:
            path, *rest = child.pending
            if rest:
                self._chunks.appendleft(rest)
            self._judge(path, code)
        if self._chunks:
            self._start()

    def _judge(self, path: str, code: int) -> None:
        """Only what two children died of is bad: one may have been killed from outside."""
        if path not in self._suspects:
            self._suspects.add(path)
            self._chunks.appendleft([path])
        elif -code in _CRASHES:
            reason = f"its footer makes the parquet reader crash ({_how(code)})"
            self._found.bad[path] = Unreadable(reason, corrupt=True)
        else:
            reason = f"the process that read its footer was killed twice ({_how(code)}; no memory?)"
            self._found.bad[path] = Unreadable(reason, corrupt=False)


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}, {signal.strsignal(-code)}"


def _environment() -> dict[str, str]:
    """The child finds the modules that the parent finds, but none of the current directory."""
    paths = [*filter(None, sys.path), str(PROJECT_ROOT)]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # it computes nothing
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(paths)}
