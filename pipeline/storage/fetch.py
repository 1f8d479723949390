"""Many ranges of an object at once, put where they are wanted.

Neighbouring ranges become one request, with the bytes between them if those are few; long ones
become several. All requests of a process share its threads, which bounds what is in flight.
"""

from __future__ import annotations

import errno
import itertools
import os
import queue
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline.storage.objects import open_object, read_exactly

# A store answers after some 30 to 100 ms and then sends up to about 100 MB/s on one connection, so
# that a request of this size spends most of its time sending, and this many bring 4 GB/s.
REQUEST_BYTES, REQUESTS = 8 << 20, 64
MOST_GAP = 1 << 20  # bytes that are read for nothing rather than asking twice


class Piece(NamedTuple):
    """Bytes [start, start + size) of an object, wanted in memory from `at` on."""

    start: int
    size: int
    at: int


class Request(NamedTuple):
    """Bytes [start, stop) of an object, and the pieces that are among them, whole or in part."""

    start: int
    stop: int
    pieces: list[Piece]


def fetch(address: str, etag: str, pieces: Sequence[Piece], memory: np.ndarray) -> None:
    """Put pieces of this version of an object into `memory`, bytes.

    OSError: some could not be read, all that was asked for has ended.
    """
    store, key = open_object(address)

    def one(request: Request) -> None:
        data = np.frombuffer(read_exactly(store, key, request.start, request.stop, etag), np.uint8)
        for piece in request.pieces:
            first = max(request.start, piece.start)
            stop = min(request.stop, piece.start + piece.size)
            at = piece.at + first - piece.start
            memory[at : at + stop - first] = data[first - request.start : stop - request.start]

    _threads().run([partial(one, request) for request in requests(pieces)])


def fetch_file(address: str, path: Path) -> None:
    """Copy an object, of whatever size, to a new file. OSError, as `fetch`."""
    store, key = open_object(address)
    info = store.info(key)
    if info is None:
        raise FileNotFoundError(errno.ENOENT, "no such object or bucket", address)
    with path.open("xb") as file:

        def one(request: Request) -> None:
            data = read_exactly(store, key, request.start, request.stop, info.etag)
            at = request.start
            while data:
                done = os.pwrite(file.fileno(), data, at)
                data, at = data[done:], at + done

        _threads().run([partial(one, each) for each in requests([Piece(0, info.size, 0)])])


def requests(pieces: Sequence[Piece]) -> list[Request]:
    """The requests that bring some pieces, in the order of the object."""
    found: list[Request] = []
    run: list[Piece] = []
    end = 0
    for piece in sorted(piece for piece in pieces if piece.size):
        if run and piece.start - end > MOST_GAP:
            found += _split(run, end)
            run = []
        end = piece.start + piece.size if not run else max(end, piece.start + piece.size)
        run.append(piece)
    return [*found, *_split(run, end)]


def _split(run: list[Piece], end: int) -> list[Request]:
    """A run of pieces as requests of like size."""
    if not run:
        return []
    begin = run[0].start
    count = -(-(end - begin) // REQUEST_BYTES)
    edges = [begin + (end - begin) * i // count for i in range(count + 1)]
    return [
        Request(a, b, [p for p in run if p.start < b and p.start + p.size > a])
        for a, b in itertools.pairwise(edges)
    ]


class RequestThreads:
    """Threads that end with the process, whatever they wait for."""

    def __init__(self, count: int) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        for _ in range(count):
            threading.Thread(target=self._work, daemon=True).start()

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Do all, or as many as there are until one fails, and raise its error at the end."""
        ended = threading.Semaphore(0)
        errors: list[BaseException] = []

        def do(task: Callable[[], None]) -> None:
            try:
                if not errors:
                    task()
            except BaseException as error:
                errors.append(error)
            finally:
                ended.release()

        for task in tasks:
            self._tasks.put(partial(do, task))
        for _ in tasks:
            ended.acquire()
        if errors:
            raise errors[0]

    def _work(self) -> None:
        while True:
            self._tasks.get()()


@lru_cache(maxsize=1)
def _threads() -> RequestThreads:
    return RequestThreads(REQUESTS)
