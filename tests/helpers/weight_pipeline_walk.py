"""The weight pipeline of a CTA of the fused FP16x3 cross kernel, walked on the host.

A few producer threads fill a ring of shared memory stage by stage (produce_stages of
weight_pipeline.cuh), eight consumer warps use it (Fp16x3WeightConsumer, CrossEpilogue). What comes
next is drawn by chance, and copies come at any time, so that whatever no barrier orders comes in
the wrong order in some draw. What CTAs send each other does not wait for the ring, and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import numpy as np
from fp16x3_stages import STRIP, VECTOR_BYTES, X0_BYTES, Shape, Source, shapes
from walked_memory import Agent, Barrier, meet

MAX_STAGES, WARPS, UNIT = 8, 8, 128


@dataclass
class Stage:
    number: int  # of all tiles' stages
    place: int
    size: int


@dataclass
class Warp:
    """With its way through the ring (RingPosition), by what the kernel knows of stages."""

    group: int
    ring_bytes: int
    number: int = 0
    place: int = 0
    turn: int = 0  # products that its warpgroup gave
    products: int = 0

    def next(self, size: int) -> Stage:
        begin = 0 if self.place + size > self.ring_bytes else self.place
        self.number, self.place = self.number + 1, begin + size
        return Stage(self.number - 1, begin, size)


@dataclass
class Runner:
    agent: Agent
    speed: float
    waits: Callable[[], bool] | None = None


@dataclass
class WeightPipelineWalk:
    """The plan of a model with `num_cross` cross layers, by so many threads that fill."""

    plan: dict
    num_cross: int
    producers: int
    seed: int
    runners: list[Runner] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.shapes = shapes(self.plan, self.num_cross)
        self.ring_bytes = self.plan["smem"]["ring_bytes"]
        self.ring = np.full(self.ring_bytes // UNIT, -1)  # the number of the stage that is there
        self.full = [Barrier(1) for _ in range(MAX_STAGES)]
        self.empty = [Barrier(WARPS) for _ in range(MAX_STAGES)]
        self.x0_stored = Barrier(WARPS)
        self.starts: list[list[int]] = []
        self.given: list[list[list[int]]] = [[], []]
        # A warpgroup's products may have to be given by all of its warps before any goes on.
        self.meets = self.random.random() < 0.5

    def run(self, tiles: int) -> None:
        """Fails where a stage is not what it should be, or all wait."""
        for producer in range(self.producers):
            self.start(self.produce(producer, tiles))
        warps = [Warp(warp // 4, self.ring_bytes) for warp in range(WARPS)]
        for warp in warps:
            self.start(self.use(warp, tiles))
        while self.runners:
            ready = [r for r in self.runners if r.waits is None or r.waits()]
            assert ready, f"all wait, warps for stages {[warp.number - 1 for warp in warps]}"
            self.step(self.random.choices(ready, [r.speed for r in ready])[0])
        assert all(warp.number == tiles * len(self.plan["stages"]) for warp in warps)

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

    def produce(self, producer: int, tiles: int) -> Agent:
        stages = self.plan["stages"]
        for number in range(producer, tiles * len(stages), self.producers):
            tile, at = divmod(number, len(stages))
            source, place, size, behind = stages[at]
            for used in (number - MAX_STAGES, number - behind):
                if used >= 0:
                    yield self.empty[used % MAX_STAGES].passed(used // MAX_STAGES % 2)
            if source >> 30 == Source.X0:
                yield self.x0_stored.passed(tile % 2)
                assert self.x0_stored.phase == tile + 1
            full = self.full[number % MAX_STAGES]
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
        """A stage is left when the next one's products are given."""
        pending: list[Stage] = []
        for _ in range(2 * shape.in_strips // shape.parts):
            stage = warp.next(shape.weight_bytes)
            yield self.passed(stage)
            self.check(stage)
            if self.meets:
                yield from meet(self.given[warp.group], warp.turn, WARPS // 2)
                warp.turn += 1
            yield from self.leave(pending)
            pending.append(stage)
        yield from self.leave(pending)

    def end_deep(self, warp: Warp, shape: Shape) -> Agent:
        vectors: list[Stage] = []
        yield from self.take(warp, VECTOR_BYTES * shape.tile, vectors)
        yield from self.leave(vectors)

    def end_cross(self, warp: Warp, shape: Shape) -> Agent:
        for _, strips in shape.ends():
            stages: list[Stage] = []
            yield from self.take(warp, VECTOR_BYTES * strips * STRIP, stages)
            yield from self.take(warp, strips * X0_BYTES, stages)
            yield from self.leave(stages)

    def take(self, warp: Warp, size: int, stages: list[Stage]) -> Agent:
        stage = warp.next(size)
        yield self.passed(stage)
        self.check(stage)
        stages.append(stage)

    def leave(self, stages: list[Stage]) -> Iterator[None]:
        """After a while, in which they are read."""
        for stage in stages:
            yield None
            self.check(stage)
            self.empty[stage.number % MAX_STAGES].arrive()
        stages.clear()

    def passed(self, stage: Stage) -> Callable[[], bool]:
        return self.full[stage.number % MAX_STAGES].passed(stage.number // MAX_STAGES % 2)

    def check(self, stage: Stage) -> None:
        found = self.units(stage.place, stage.size)
        assert (found == stage.number).all(), f"stage {stage.number} is not there, or no longer"
