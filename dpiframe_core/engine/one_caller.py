"""An engine serves one thread at a time, in the process that made it."""

from __future__ import annotations

import os
import threading

_forks = 0  # between the first process of this program and this one


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class OneCaller:
    """`with` it around each use of an engine. RuntimeError in a second thread at the same time, and
    in a fork of the process that made it.
    """

    __slots__ = ("_born", "_turn")

    def __init__(self) -> None:
        self._born, self._turn = _forks, threading.Lock()

    def __enter__(self) -> None:
        if self._born != _forks:
            raise RuntimeError("this process was forked after the engine was loaded: load it here")
        if not self._turn.acquire(False):
            raise RuntimeError(
                "another thread, or a stream that has not ended, is using this engine: load one "
                "engine a thread"
            )

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._turn.release()
