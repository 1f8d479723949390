"""Memory that units are read into, used again by one after the other.

A GPU copies from it by itself once its pages are locked, which needs a running CUDA.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dpiframe_core import _core

ALIGNED = 64  # bytes: rows of a matrix begin at lines of the cache

Shape = tuple[int, int, str]  # rows, columns, numpy's type


class Piece:
    """Memory for one unit; what was made in it before is gone when the next is made."""

    def __init__(self, lock: bool = False) -> None:
        self.lock = lock
        self._memory: _core.HostMemory | None = None
        self._bytes = 0

    def matrices(self, *shapes: Shape) -> list[np.ndarray]:
        """Uninitialised matrices, one behind the other, of (rows, columns, type) each."""
        strides = [padded(columns * np.dtype(kind).itemsize) for _, columns, kind in shapes]
        wanted = sum(rows * stride for (rows, *_), stride in zip(shapes, strides, strict=True))
        memory = self._of(wanted)
        made, offset = [], 0
        for (rows, columns, kind), stride in zip(shapes, strides, strict=True):
            steps = (stride, np.dtype(kind).itemsize)
            made.append(np.ndarray((rows, columns), kind, memory, offset, steps))
            offset += rows * stride
        return made

    def _of(self, wanted: int) -> Any:
        if self._memory is None or self._bytes < wanted:
            self._memory = None  # before the larger one is taken
            self._memory, self._bytes = _core.HostMemory(wanted), wanted
        if self.lock:
            self._memory.lock()
        return self._memory


def padded(size: int) -> int:
    """Bytes of a row that ends where the next may begin."""
    return -(-size // ALIGNED) * ALIGNED


class UnitMemory:
    """The pieces of a scorer: as many as units were in hand at one time."""

    def __init__(self, on_gpu: Callable[[], bool]) -> None:
        """`on_gpu`: whether an engine on a GPU runs by now, so that pages can be locked for it."""
        self._on_gpu = on_gpu
        self._free: list[Piece] = []
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def piece(self) -> Iterator[Piece]:
        """A piece for the time of the block; nothing may refer to its arrays afterwards."""
        with self._guard:
            piece = self._free.pop() if self._free else Piece()
        piece.lock = self._on_gpu()
        try:
            yield piece
        finally:
            with self._guard:
                self._free.append(piece)
