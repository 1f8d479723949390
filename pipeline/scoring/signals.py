"""SIGTERM and SIGINT ask a job to stop; it does so where it waits, never amid a write."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequestedError(BaseException):
    """A signal asked to stop. No Exception, so that libraries do not take it for a failure."""


class StopSignals:
    """Context manager that remembers a stop signal and raises it inside `waiting()` blocks."""

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._waiting = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Take the signals over (again: Ray takes SIGTERM when it starts). Main thread only."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            previous = signal.signal(number, self._handle)
            self._before.setdefault(number, previous)

    def check(self) -> None:
        """Raise StopRequestedError if a signal came."""
        if self.requested is not None:
            raise StopRequestedError(self.requested.name)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside the block a signal raises at once; before it, one that came is raised."""
        self._waiting = True
        try:
            self.check()
            yield
        finally:
            self._waiting = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.requested = signal.Signals(number)
        if self._waiting:
            self._waiting = False  # a second signal must not interrupt the clean-up
            self.check()
