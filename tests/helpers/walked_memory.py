"""Barriers and copies of a GPU's shared memory, for walks of a kernel on the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

Agent = Iterator[Callable[[], bool] | None]  # yields what it waits for, or a moment


@dataclass
class Barrier:
    """An mbarrier: a phase ends when all have arrived and all bytes have."""

    count: int
    phase: int = 0
    arrived: int = 0
    bytes: int = 0

    def arrive(self, expected: int = 0, done: int = 0, arrives: bool = True) -> None:
        self.bytes += expected - done
        self.arrived += arrives
        assert self.arrived <= self.count
        if self.arrived == self.count and self.bytes == 0:
            self.phase, self.arrived = self.phase + 1, 0

    def passed(self, parity: int) -> Callable[[], bool]:
        return lambda: self.phase % 2 != parity


@dataclass
class Queue:
    """What is under way and done in this order."""

    speed: float
    steps: deque[Callable[[], None]]


@dataclass
class Copy:
    """A bulk copy of `size` bytes; `barrier` counts those that have come."""

    source: np.ndarray
    start: int
    size: int
    target: np.ndarray
    place: int
    barrier: Barrier

    def steps(self) -> list[Callable[[int, int], None]]:
        """Of bytes begin .. end - 1: read them, write them, count them."""
        held: list[np.ndarray] = []

        def read(begin: int, end: int) -> None:
            held.append(self.source[self.start + begin : self.start + end].copy())

        def write(begin: int, end: int) -> None:
            self.target[self.place + begin : self.place + end] = held[0]

        def count(begin: int, end: int) -> None:
            self.barrier.arrive(done=end - begin, arrives=False)

        return [read, write, count]


def meet(counts: list[list[int]], turn: int, count: int) -> Agent:
    """bar.sync of `count` warps: the list counts the arrivals of each turn."""
    if len(counts) <= turn:
        counts.append([0])
    arrived = counts[turn]
    arrived[0] += 1
    yield lambda: arrived[0] == count
