"""Random scheduler graphs, and what orders their steps, worked out without the scheduler."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

from dpiframe_core import _core

POLICIES = ("serial", "depth_first", "breadth_first")
Range = tuple[int, int, int]  # root buffer, first byte, end


@dataclass
class RandomGraph:
    """A graph, and its accesses as byte ranges."""

    graph: _core.Graph = field(default_factory=_core.Graph)
    ranges: list[Range] = field(default_factory=list)  # by buffer
    external: list[bool] = field(default_factory=list)  # by buffer
    reads: list[list[int]] = field(default_factory=list)  # by step
    writes: list[list[int]] = field(default_factory=list)

    def add_buffer(self, size: int, external: bool = False) -> int:
        index = self.graph.add_buffer(f"b{len(self.ranges)}", size, external)
        self.ranges.append((index, 0, size))
        self.external.append(external)
        return index

    def add_view(self, parent: int, offset: int, size: int) -> int:
        index = self.graph.add_view(parent, offset, size)
        root, first, _ = self.ranges[parent]
        self.ranges.append((root, first + offset, first + offset + size))
        self.external.append(self.external[parent])
        return index

    def add_step(self, reads: list[int], writes: list[int], cost: float) -> None:
        self.graph.add_step(f"s{len(self.reads)}", reads, writes, cost)
        self.reads.append(reads)
        self.writes.append(writes)

    def overlap(self, a: int, b: int) -> bool:
        (root_a, first_a, end_a), (root_b, first_b, end_b) = self.ranges[a], self.ranges[b]
        return root_a == root_b and max(first_a, first_b) < min(end_a, end_b)

    def hazards(self) -> list[tuple[int, int]]:
        """All pairs of steps that touch the same bytes, at least one of them writing."""

        def meet(xs: list[int], ys: list[int]) -> bool:
            return any(self.overlap(x, y) for x in xs for y in ys)

        return [
            (i, j)
            for i, j in itertools.combinations(range(len(self.reads)), 2)
            if meet(self.writes[i], self.reads[j] + self.writes[j])
            or meet(self.reads[i], self.writes[j])
        ]


def random_graph(seed: int) -> RandomGraph:
    """1 to 24 steps; buffers are reused, written in parts, read in parts."""
    rng = random.Random(seed)
    result = RandomGraph()
    result.add_buffer(64, external=True)
    written = [0]
    for _ in range(rng.randint(1, 24)):
        reads = rng.sample(written, min(len(written), rng.randint(0, 3)))
        target = rng.random()
        if target < 0.6 or len(written) == 1:
            writes = [result.add_buffer(rng.randint(1, 9) * 100)]
        elif target < 0.8:
            writes = [rng.choice(written)]
        else:
            parent = rng.choice(written)
            size = result.ranges[parent][2] - result.ranges[parent][1]
            offset = rng.randint(0, size - 1)
            writes = [result.add_view(parent, offset, rng.randint(1, size - offset))]
        result.add_step(reads, writes, rng.choice([0.0, 1.0, 1.0, 5.0]))
        written += [b for b in writes if b not in written]
    return result


def ordered_pairs(plan: _core.Plan) -> set[tuple[int, int]]:
    """(a, b): step a has ended before b starts, by stream order and events; a brute closure."""
    direct: set[tuple[int, int]] = set()
    recorded: dict[int, int] = {}
    last_on_stream: dict[int, int] = {}
    for planned in plan.steps:
        direct |= {(recorded[event], planned.step) for event in planned.waits}
        if planned.stream in last_on_stream:
            direct.add((last_on_stream[planned.stream], planned.step))
        last_on_stream[planned.stream] = planned.step
        if planned.record >= 0:
            recorded[planned.record] = planned.step
    return closure(direct, len(plan.steps))


def closure(direct: set[tuple[int, int]], size: int) -> set[tuple[int, int]]:
    """Transitive closure (Warshall)."""
    reach = [{b for a, b in direct if a == step} for step in range(size)]
    for middle in range(size):
        for step in range(size):
            if middle in reach[step]:
                reach[step] |= reach[middle]
    return {(a, b) for a in range(size) for b in reach[a]}
