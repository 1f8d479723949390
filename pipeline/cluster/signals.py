"""SIGTERM, SIGINT or the loss of Ray stop a job in time, but only where it waits."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from pipeline.cluster.ray_private import connecting_driver
from pipeline.errors import DpiframeError, ResumableError

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# From a stop, or else from the job's end, to that of the process, whatever Ray does meanwhile;
# schedulers often allow ten.
STOP_SECONDS = 8.0
TELL_SECONDS = 1.0  # more where the job has just ended, to tell the outcome
LOOK_SECONDS = 0.2

# Set while Ray connects, which takes a second: a stop then would abort the process.
connecting = threading.Event()
held_back: list[int] = []


class StopRequestedError(BaseException):
    """The job was asked to stop. No Exception, so that libraries do not take it for a failure."""


class StopSignals:
    """Context manager that remembers a stop and raises it inside `waiting()` blocks.

    With `own_process` nothing but the exit of the interpreter comes after the block: signals stay
    taken over, and the process is ended `STOP_SECONDS` after a stop, or else after the block, as
    Ray may hang when it is told to end, or when its processes died. The exit code is that of the
    error that left the block; inside the block, that of ResumableError.
    """

    def __init__(self, own_process: bool = False) -> None:
        self.requested: str | None = None  # by what
        self.own_process = own_process
        self._exit_code: int | None = None  # of the process, once the block is left
        self._main: int | None = None
        self._stderr = 2
        self._waiting = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self.install()
        if self.own_process:
            self._stderr = os.dup(2)  # as 2 is redirected while Ray starts
            threading.Thread(target=self._end_late, name="end-in-time", daemon=True).start()
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if self.own_process:
            failed = error.exit_code if isinstance(error, DpiframeError) else 1
            self._exit_code = 0 if error is None else failed
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Take the signals over. Main thread only."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._main = threading.get_ident()
        for number in SIGNALS:
            previous = signal.signal(number, self._handle)
            self._before.setdefault(number, previous)

    def stop(self, reason: str) -> None:
        """Stop the job as a signal would; from any thread, the first reason counts."""
        self.requested = self.requested or reason
        if self._main is not None and self._waiting:
            signal.pthread_kill(self._main, signal.SIGTERM)  # nothing else ends its waiting

    def check(self) -> None:
        """Raise StopRequestedError if a stop was asked for."""
        if self.requested is not None:
            raise StopRequestedError(self.requested)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside the block a stop raises at once; one that came before raises at its begin."""
        self._waiting = True
        try:
            self.check()
            yield
        finally:
            self._waiting = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.requested = self.requested or signal.Signals(number).name
        if connecting.is_set():
            held_back.append(number)
        elif self._waiting:
            self._waiting = False  # a second signal must not interrupt the clean-up
            self.check()

    def _end_late(self) -> None:
        """Poll for a stop, as a signal handler cannot safely wake a thread; then end in time."""
        while self.requested is None and self._exit_code is None:
            time.sleep(LOOK_SECONDS)
        time.sleep(STOP_SECONDS)
        if self._exit_code is None:
            text = (
                f"error: stopped by {self.requested}; what was in hand did not end within "
                f"{STOP_SECONDS:g} s; published units are kept, run the same command to go on\n"
            )
            with contextlib.suppress(OSError):
                os.write(self._stderr, text.encode())
            os._exit(ResumableError.exit_code)
        time.sleep(TELL_SECONDS)
        os._exit(self._exit_code)


@contextlib.contextmanager
def kept_from_ray() -> Iterator[None]:
    """Ray starts inside the block without taking SIGTERM over; a stop waits until it is connected.

    Ray's Python handler would end the node first, which takes up to fifteen seconds. That of its
    C++ part, which Python does not know of, would abort the process.
    """
    handlers = {number: signal.getsignal(number) for number in SIGNALS}

    def take_back() -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)

    try:
        with connecting_driver(connecting.set, take_back):
            yield
    finally:
        take_back()
        connecting.clear()
        if held_back:
            number = held_back[0]
            held_back.clear()
            signal.raise_signal(number)
