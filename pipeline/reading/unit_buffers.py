"""Host buffers that units are read into, each used for one unit after another.

Once CUDA runs in the process, a buffer is page-locked, so that the GPU copies from it directly.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dpiframe_core import _core
from pipeline.reading.unpacking import ANY_PAGES, Unpacking

ALIGNMENT = 64  # bytes: each row of a matrix begins at a cache line
# Units have about one size: an eighth more is enough for nearly all, so that the pages of a buffer
# are faulted in and locked once.
SPARE_OF = 8

Shape = tuple[int, int, str]  # rows, columns, numpy's type


class UnitBuffer:
    """The memory of one unit; a call invalidates what the last one of the same method returned.

    `unpacking`: which pages its reader decompresses; None: those that it always does.
    """

    def __init__(self, lock: bool = False, unpacking: Unpacking | None = None) -> None:
        self.lock, self.unpacking = lock, unpacking
        self._decoded, self._stored = _Region(), _Region()
        self._files: list[UnitBuffer] = []

    def matrices(self, *shapes: Shape) -> list[np.ndarray]:
        """Uninitialised matrices of (rows, columns, type) each, one after another in memory."""
        strides = [aligned(columns * np.dtype(kind).itemsize) for _, columns, kind in shapes]
        wanted = sum(rows * stride for (rows, *_), stride in zip(shapes, strides, strict=True))
        memory = self._decoded.reserve(wanted, self.lock)
        made, offset = [], 0
        for (rows, columns, kind), stride in zip(shapes, strides, strict=True):
            steps = (stride, np.dtype(kind).itemsize)
            made.append(np.ndarray((rows, columns), kind, memory, offset, steps))
            offset += rows * stride
        return made

    def stored(self, size: int) -> np.ndarray:
        """Uninitialised bytes [size], for what is fetched of the unit's file."""
        return np.ndarray((size,), "<u1", self._stored.reserve(size, self.lock))

    def of_file(self, place: int) -> UnitBuffer:
        """Memory for one of the files of a joined unit: no GPU copies from it."""
        while len(self._files) <= place:
            self._files.append(UnitBuffer())
        return self._files[place]


class _Region:
    """Memory that only grows."""

    def __init__(self) -> None:
        self._memory: _core.HostMemory | None = None
        self._bytes = 0

    def reserve(self, wanted: int, lock: bool) -> Any:
        """At least so many bytes, page-locked if asked for."""
        if self._memory is None or self._bytes < wanted:
            self._memory = None  # free the old memory before a larger one is allocated
            self._bytes = wanted + wanted // SPARE_OF
            self._memory = _core.HostMemory(self._bytes)
        if lock:
            self._memory.lock()
        return self._memory


def aligned(size: int) -> int:
    """The size rounded up to a multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class UnitBufferPool:
    """The buffers of a scorer, as many as units were in flight at one time."""

    def __init__(self, on_gpu: Callable[[], bool], is_behind: Callable[[], bool]) -> None:
        """`on_gpu`: whether an engine runs on a GPU by now, so that pages can be locked;
        `is_behind`: whether units wait for it while cores are idle.
        """
        self._on_gpu, self._is_behind = on_gpu, is_behind
        self._free: list[UnitBuffer] = []
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def borrow(self) -> Iterator[UnitBuffer]:
        """A buffer for the time of the block; its arrays must not be used afterwards."""
        with self._guard:
            buffer = self._free.pop() if self._free else UnitBuffer()
        buffer.lock = self._on_gpu()
        buffer.unpacking = ANY_PAGES if self._is_behind() else None
        try:
            yield buffer
        finally:
            with self._guard:
                self._free.append(buffer)
