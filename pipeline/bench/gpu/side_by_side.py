"""Cases prepared side by side, each in a process of its own, then timed one after the other.

Nearly all of a case's time is that of compiling its peers, for which the processors are enough. A
case that loses the GPU ends with its process and leaves the others alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch

from pipeline.bench.engine.cases import EngineCase
from pipeline.bench.engine.implementations import OURS, reason
from pipeline.bench.engine.latency import EngineReport, Prepared
from pipeline.bench.timing import TimedError


class Failure(NamedTuple):
    """Why a case failed; whether its process can use the GPU no more, and the peer that did it."""

    why: str
    gpu_lost: bool = False
    peer: str | None = None

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """That of an error in this process."""
        if gpu_answers():
            return cls(reason(error))
        name = error.name if isinstance(error, TimedError) else OURS
        return cls(reason(error), True, name if name != OURS else None)


def gpu_answers() -> bool:
    """Whether the GPU can be used by this process: after some errors of CUDA it cannot."""
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def time_in_turn(cases: Sequence[EngineCase]) -> Iterator[EngineReport | Failure]:
    """The reports of the cases, in their order, all of which are prepared before one is timed.

    The GPU's memory has to hold the tables of all of them.
    """
    context = get_context("spawn")
    threads = max(1, len(os.sched_getaffinity(0)) // len(cases))
    started = []
    for case in cases:
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(case, threads, there), daemon=True)
        process.start()
        there.close()
        started.append((process, here))
    try:
        early = [_received(pipe) for _, pipe in started]
        for (process, pipe), failure in zip(started, early, strict=True):
            if failure is None:
                pipe.send(None)
                failure = _received(pipe)
            process.join()
            yield failure or Failure(f"the process that timed it ended with {process.exitcode}")
    finally:
        for process, _ in started:
            process.kill()


def _received(pipe: Connection) -> EngineReport | Failure | None:
    """None: it is prepared, or its process is gone."""
    try:
        found: EngineReport | Failure | None = pipe.recv()
    except (EOFError, OSError):
        return None
    return found


def _work(case: EngineCase, threads: int, pipe: Connection) -> None:
    """What a process does: prepare the case, say so, wait for its turn, time it."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)
    try:
        prepared = Prepared(case)
        pipe.send(None)
        pipe.recv()
        pipe.send(prepared.time())
    except Exception as error:
        pipe.send(Failure.of(error))
