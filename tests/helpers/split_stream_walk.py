"""How a block of the float32 one-kernel pass with cross layers streams, walked on the host.

A few threads fill a ring of shared memory piece by piece (fill_ring of forward_ring.cuh), eight
warps use it (SplitStream, SplitCrossEnd). What comes next is drawn by chance, and copies come at
any time, so that whatever is not kept in order by a barrier comes in the wrong order in some draw.
What blocks send each other does not wait for the ring, and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import numpy as np
from split_pieces import STRIP, VECTOR_BYTES, X0_BYTES, Shape, Source, shapes
from walked_memory import Agent, Barrier, meet

MOST_PIECES, WARPS, UNIT = 8, 8, 128


@dataclass
class Piece:
    number: int  # of all tiles' pieces
    place: int
    size: int


@dataclass
class Warp:
    """With its way through the ring (RingWalk), by what the kernel knows of pieces."""

    group: int
    ring_bytes: int
    number: int = 0
    place: int = 0
    turn: int = 0  # products that its warpgroup gave
    products: int = 0

    def next(self, size: int) -> Piece:
        begin = 0 if self.place + size > self.ring_bytes else self.place
        self.number, self.place = self.number + 1, begin + size
        return Piece(self.number - 1, begin, size)


@dataclass
class Runner:
    agent: Agent
    speed: float
    waits: Callable[[], bool] | None = None


@dataclass
class StreamWalk:
    """The plan of a model with `num_cross` cross layers, by so many threads that fill."""

    plan: dict
    num_cross: int
    fillers: int
    seed: int
    runners: list[Runner] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.shapes = shapes(self.plan, self.num_cross)
        self.ring_bytes = self.plan["places"]["ring_bytes"]
        self.ring = np.full(self.ring_bytes // UNIT, -1)  # the number of the piece that is there
        self.full = [Barrier(1) for _ in range(MOST_PIECES)]
        self.empty = [Barrier(WARPS) for _ in range(MOST_PIECES)]
        self.x0_stored = Barrier(WARPS)
        self.starts: list[list[int]] = []
        self.given: list[list[list[int]]] = [[], []]
        # A warpgroup's products may have to be given by all of its warps before any goes on.
        self.meets = self.random.random() < 0.5

    def run(self, tiles: int) -> None:
        """Fails where a piece is not what it should be, or all wait."""
        for filler in range(self.fillers):
            self.start(self.fill(filler, tiles))
        warps = [Warp(warp // 4, self.ring_bytes) for warp in range(WARPS)]
        for warp in warps:
            self.start(self.use(warp, tiles))
        while self.runners:
            ready = [r for r in self.runners if r.waits is None or r.waits()]
            assert ready, f"all wait, warps for pieces {[warp.number - 1 for warp in warps]}"
            self.step(self.random.choices(ready, [r.speed for r in ready])[0])
        assert all(warp.number == tiles * len(self.plan["pieces"]) for warp in warps)

    def start(self, agent: Agent) -> None:
        self.runners.append(Runner(agent, self.random.random() ** 2 + 0.02))

    def step(self, runner: Runner) -> None:
        try:
            runner.waits = next(runner.agent)
        except StopIteration:
            self.runners.remove(runner)

    def units(self, place: int, size: int) -> np.ndarray:
        assert place % UNIT == size % UNIT == 0
        return self.ring[place // UNIT : (place + size) // UNIT]

    # Threads that fill.

    def fill(self, filler: int, tiles: int) -> Agent:
        pieces = self.plan["pieces"]
        for number in range(filler, tiles * len(pieces), self.fillers):
            tile, at = divmod(number, len(pieces))
            source, place, size, behind = pieces[at]
            for used in (number - MOST_PIECES, number - behind):
                if used >= 0:
                    yield self.empty[used % MOST_PIECES].passed(used // MOST_PIECES % 2)
            if source >> 30 == Source.OWN:
                yield self.x0_stored.passed(tile % 2)
                assert self.x0_stored.phase == tile + 1
            full = self.full[number % MOST_PIECES]
            full.arrive(expected=size)
            self.units(place, size)[:] = -1
            self.start(self.copy(number, place, size, full))
            yield None

    def copy(self, number: int, place: int, size: int, full: Barrier) -> Agent:
        yield None
        self.units(place, size)[:] = number
        full.arrive(done=size, arrives=False)

    # Warps that multiply.

    def use(self, warp: Warp, tiles: int) -> Agent:
        for _ in range(tiles):
            warp.place = 0
            for number, shape in enumerate(self.shapes):
                yield from meet(self.starts, warp.products, WARPS)
                warp.products += 1
                yield from self.multiply(warp, shape)
                if number == 0:
                    self.x0_stored.arrive()
                end = self.end_cross if shape.is_cross else self.end_deep
                yield from end(warp, shape)

    def multiply(self, warp: Warp, shape: Shape) -> Agent:
        """A piece is left when the next one's products are given."""
        pending: list[Piece] = []
        for _ in range(2 * shape.in_strips // shape.parts):
            piece = warp.next(shape.weight_bytes)
            yield self.passed(piece)
            self.check(piece)
            if self.meets:
                yield from meet(self.given[warp.group], warp.turn, WARPS // 2)
                warp.turn += 1
            yield from self.leave(pending)
            pending.append(piece)
        yield from self.leave(pending)

    def end_deep(self, warp: Warp, shape: Shape) -> Agent:
        vectors: list[Piece] = []
        yield from self.take(warp, VECTOR_BYTES * shape.tile, vectors)
        yield from self.leave(vectors)

    def end_cross(self, warp: Warp, shape: Shape) -> Agent:
        for _, strips in shape.ends():
            pieces: list[Piece] = []
            yield from self.take(warp, VECTOR_BYTES * strips * STRIP, pieces)
            yield from self.take(warp, strips * X0_BYTES, pieces)
            yield from self.leave(pieces)

    def take(self, warp: Warp, size: int, pieces: list[Piece]) -> Agent:
        piece = warp.next(size)
        yield self.passed(piece)
        self.check(piece)
        pieces.append(piece)

    def leave(self, pieces: list[Piece]) -> Iterator[None]:
        """After a while, in which they are read."""
        for piece in pieces:
            yield None
            self.check(piece)
            self.empty[piece.number % MOST_PIECES].arrive()
        pieces.clear()

    def passed(self, piece: Piece) -> Callable[[], bool]:
        return self.full[piece.number % MOST_PIECES].passed(piece.number // MOST_PIECES % 2)

    def check(self, piece: Piece) -> None:
        found = self.units(piece.place, piece.size)
        assert (found == piece.number).all(), f"piece {piece.number} is not there, or no longer"
