"""The fused cross kernel, walked on the host: csrc/kernels/fused/cross.

Two ctas, each with its shared memory as bytes, its barriers, eight consumer warps, one that
sends and two producer threads, as in mainloop.cuh. What runs next is drawn by
chance, copies and products happen stage by stage at any time until they are waited for, so that
whatever is not kept in order by a barrier comes in the wrong order in some draw.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise

import numpy as np
from walked_memory import Agent, Barrier, Copy, Queue, meet

ROWS, STRIDE, AHEAD, PRODUCERS, WARPS = 64, 64 * 16 + 16, 8, 2, 8
NAN = 0x7E  # two of them are a NaN of 16 bits


@dataclass
class Shape:
    """What of a plan the walk needs; `columns`: of the deep layers."""

    plan: dict
    columns: Sequence[int]
    num_cross: int

    def __post_init__(self) -> None:
        self.stages = np.array(self.plan["stages"]).reshape(2, -1, 4)
        self.weights = np.ascontiguousarray(self.plan["weights"]).view(np.uint8).reshape(2, -1)
        self.vectors = self.plan["vectors"].reshape(2, -1)
        self.cross_tile, self.deep_tile = self.plan["cross_tile"], self.plan["deep_tile"]
        self.chunks, self.zeros = self.plan["x_chunks"], self.plan["zero_chunks"]
        self.num_deep = len(self.columns)

    def share(self, rank: int, group: int) -> tuple[int, int]:
        """CrossChunks: first chunk and how many."""
        count = self.chunks[rank] - (self.zeros[rank] >= 0)
        before = (count + 1) // 2 * group
        own = count - before if group else (count + 1) // 2
        return rank * self.chunks[0] + before, own

    def quarter(self, layer: int, quarter: int) -> int:
        n = self.columns[layer]
        return n * (quarter + 1) // 4 - n * quarter // 4


@dataclass
class Cta:
    """How many warps came, to each barrier of those that multiply and to each with the sender."""

    rank: int
    memory: np.ndarray
    full: list[Barrier]
    empty: list[Barrier]
    received: list[Barrier]
    ready: list[Barrier]
    taken: list[Barrier]
    meetings: list[list[int]]
    written: list[list[int]]
    copies: list[Queue] = field(default_factory=list)
    products: list[Queue] = field(default_factory=list)

    def chunk(self, place: int) -> np.ndarray:
        """A chunk of 8 columns of all rows."""
        return self.memory[place:][: ROWS * 16].view(np.float16).reshape(ROWS, 8)


class Walk:
    """One cluster. `x` [64, columns of x0] are numbers of 16 bits."""

    def __init__(self, shape: Shape, x: np.ndarray, seed: int) -> None:
        self.shape, self.random = shape, np.random.default_rng(seed)
        columns = np.array(shape.plan["x_columns"])[:, None] + np.arange(8)
        inside = np.repeat(np.array(shape.plan["x_columns"]) >= 0, 8)
        self.x = np.where(inside, x[:, np.where(inside, columns.ravel(), 0)], 0).astype(np.float16)
        self.dots = np.zeros(ROWS)
        exchanges = shape.num_deep + shape.num_cross - 1
        self.ctas = [self._cta(rank, exchanges) for rank in range(2)]

    def _cta(self, rank: int, exchanges: int) -> Cta:
        shape = self.shape
        memory = np.full(shape.plan["smem"]["bytes"], NAN, np.uint8)
        received = []
        for e in range(exchanges):
            is_x = e == 0 or e >= shape.num_deep
            chunks = shape.chunks[1 - rank] if is_x else shape.deep_tile // 4
            received.append(Barrier(1))
            received[-1].arrive(expected=chunks * STRIDE)
        made = [[Barrier(n) for _ in range(m)] for n, m in ((1, AHEAD), (WARPS, AHEAD))]
        others = [[Barrier(n) for _ in range(exchanges)] for n in (WARPS, 1)]
        return Cta(rank, memory, *made, received, *others, [], [])

    def run(self) -> np.ndarray:
        """The head's dots of both chains [64]."""
        agents: list[Agent] = []
        for cta in self.ctas:
            agents += [Warp(self, cta, w).run() for w in range(WARPS)]
            agents += [self.produce_weights(cta, f) for f in range(PRODUCERS)]
            agents.append(self.exchange_halves(cta))
        waits: list[Callable[[], bool] | None] = [None] * len(agents)
        speeds = list(self.speeds(len(agents)))
        while agents:
            moves = [i for i, w in enumerate(waits) if w is None or w()]
            queues = [q for b in self.ctas for q in (*b.copies, *b.products) if q.steps]
            assert moves or queues, "all wait for one another"
            odds = np.cumsum([speeds[i] for i in moves] + [q.speed for q in queues])
            drawn = int(np.searchsorted(odds, self.random.random() * odds[-1], "right"))
            if drawn >= len(moves):
                queues[drawn - len(moves)].steps.popleft()()
                continue
            try:
                waits[moves[drawn]] = next(agents[moves[drawn]])
            except StopIteration:
                for found in (agents, waits, speeds):
                    del found[moves[drawn]]
        return self.dots

    def speeds(self, count: int) -> np.ndarray:
        """Some lag far behind."""
        return self.random.choice([0.001, 0.1, 1.0], count)

    def produce_weights(self, cta: Cta, producer: int) -> Agent:
        for i in range(producer, len(self.shape.stages[cta.rank]), PRODUCERS):
            source, place, size, wait = (int(v) for v in self.shape.stages[cta.rank][i])
            before = i - AHEAD
            if before >= 0:
                yield cta.empty[before % AHEAD].passed(before // AHEAD % 2)
            if wait > max(before, -1):
                yield cta.empty[wait % AHEAD].passed(wait // AHEAD % 2)
            full = cta.full[i % AHEAD]
            full.arrive(expected=size)
            data = self.shape.weights[cta.rank][source:][:size]
            self.copy(cta, Copy(data, 0, size, cta.memory, place, full))
            yield None

    def exchange_halves(self, cta: Cta) -> Agent:
        shape, peer = self.shape, self.ctas[1 - cta.rank]
        smem, exchanges = shape.plan["smem"], len(cta.received)
        for e in range(exchanges):
            is_h = 0 < e < shape.num_deep
            chunks = (shape.deep_tile // 4,) * 2 if is_h else tuple(shape.chunks)
            place = smem["h"] if is_h else smem["x"] if e else 0
            yield from meet(cta.written, e, WARPS + 1)
            if e > 0:
                yield cta.ready[e].passed(0)
            begin = place + (chunks[0] * STRIDE if cta.rank else 0)
            to = (peer.memory, begin, peer.received[e])
            self.copy(cta, Copy(cta.memory, begin, chunks[cta.rank] * STRIDE, *to))
            yield cta.received[e].passed(0)
            if e < shape.num_deep or e + 1 < exchanges:
                peer.taken[e].arrive()

    def copy(self, cta: Cta, copy: Copy) -> None:
        """Begins a bulk copy, whose parts each read and then write at some time."""
        cuts = [0, *sorted(16 * self.random.integers(0, copy.size // 16 + 1, 2)), copy.size]
        for part in pairwise(cuts):
            steps = deque(partial(step, *part) for step in copy.steps())
            cta.copies.append(Queue(self.speeds(1)[0], steps))


class Warp:
    """Rows 16 w .. of its warpgroup's columns; names as in the kernel."""

    def __init__(self, walk: Walk, cta: Cta, warp: int) -> None:
        self.walk, self.cta, self.shape = walk, cta, walk.shape
        self.peer = walk.ctas[1 - cta.rank]
        self.warp, self.group, self.rank = warp, warp // 4, cta.rank
        self.rows = slice(16 * (warp % 4), 16 * (warp % 4) + 16)
        self.next = 0
        self.issued: deque[Callable[[], None]] = deque()  # products under way
        cta.products.append(Queue(walk.speeds(1)[0], self.issued))
        self.vectors = self.shape.vectors[cta.rank]
        self.turns, self.written = count(), count()  # of barriers

    def consumer_barrier(self) -> Agent:
        return meet(self.cta.meetings, next(self.turns), WARPS)

    def publish(self) -> Agent:
        return meet(self.cta.written, next(self.written), WARPS + 1)

    def multiply_half(self, x: int, steps: int, tile: int, sums: np.ndarray) -> Agent:
        most = 2 if tile == 128 else 3
        for step in range(0, steps, most):
            place = int(self.shape.stages[self.rank][self.next][1]) + self.group * tile * 16
            yield self.cta.full[self.next % AHEAD].passed(self.next // AHEAD % 2)
            for i in range(min(most, steps - step)):
                operand = x + (step + i) * 2 * STRIDE
                weights = place + i * 2 * tile * 32
                self.issued.append(lambda a=operand, w=weights: self.product(a, w, tile, sums))
            allowed = min(most, steps - step)
            yield lambda n=allowed: len(self.issued) <= n
            if self.next > self.first:
                self.release(self.next - 1)
            self.next += 1

    def product(self, x: int, w: int, tile: int, sums: np.ndarray) -> None:
        for k in range(2):
            a = self.cta.chunk(x + k * STRIDE)[self.rows].astype(np.float64)
            b = self.cta.memory[w + k * 2 * tile * 16 :][: tile * 16].view(np.float16)
            sums += a @ b.reshape(tile, 8).astype(np.float64).T

    def release(self, stage: int) -> None:
        self.cta.empty[stage % AHEAD].arrive()

    def multiply(
        self, x: int, chunks: tuple[int, int], exchange: int, tile: int, sums: np.ndarray
    ) -> Agent:
        self.first = self.next
        for turn in range(2):
            half = self.rank ^ turn
            if turn == 1:
                yield self.cta.received[exchange].passed(0)
            start = x + (chunks[0] * STRIDE if half else 0)
            yield from self.multiply_half(start, chunks[half] // 2, tile, sums)
        yield lambda: not self.issued

    def finish(self, sent: int, output: int) -> Agent:
        yield self.cta.taken[sent].passed(0)
        self.release(self.next - 1)
        if output >= 0:
            self.peer.ready[output].arrive()
            yield from self.consumer_barrier()

    def vector(self, begin: int, tile: int) -> np.ndarray:
        return self.vectors[begin + self.group * tile :][:tile].astype(np.float64)

    def deep_layer(self, layer: int) -> Agent:
        shape, tile = self.shape, self.shape.deep_tile
        deep, own = shape.plan["smem"]["h"], (tile // 4, tile // 4)
        quarter = self.rank * 2 + self.group
        width = shape.quarter(layer, quarter)
        is_last = layer + 1 == shape.num_deep
        begin = (shape.num_cross + 1) * 2 * shape.cross_tile + layer * 2 * tile
        x = (0, tuple(shape.chunks)) if layer == 0 else (deep, own)
        sums = np.zeros((16, tile))
        yield from self.multiply(*x, layer, tile, sums)
        yield from self.finish(layer, -1 if is_last else layer + 1)
        h = np.maximum(sums + self.vector(begin, tile), 0)[:, :width]
        if is_last:
            self.add_dots(h @ self.vector(begin + 2 * tile, tile)[:width])
            return
        padded = np.zeros((16, tile), np.float16)
        padded[:, :width] = h
        for j in range(tile // 8):
            place = deep + (quarter * (tile // 8) + j) * STRIDE
            self.cta.chunk(place)[self.rows] = padded[:, 8 * j : 8 * j + 8]
            yield None
        yield from self.publish()

    def cross_layer(self, layer: int, x0: np.ndarray, products: np.ndarray) -> Agent:
        shape, tile = self.shape, self.shape.cross_tile
        cross, chunks = shape.plan["smem"]["x"], tuple(shape.chunks)
        first, count = shape.share(self.rank, self.group)
        sent = shape.num_deep - 1 + layer
        is_last = layer + 1 == shape.num_cross
        x, exchange = (0, 0) if layer == 0 else (cross, sent)
        yield from self.multiply(x, chunks, exchange, tile, products)
        if not is_last:
            yield from self.finish(sent, sent + 1)
        smem = [cross + (first + j) * STRIDE for j in range(count)]
        sums = (products + self.vector(layer * 2 * tile, tile))[:, : 8 * count]
        made = x0 * sums + x0
        if is_last:
            head = self.vector((layer + 1) * 2 * tile, tile)[: 8 * count]
            self.add_dots(made @ head)
            return
        for j, place in enumerate(smem):
            self.cta.chunk(place)[self.rows] = made[:, 8 * j : 8 * j + 8]
            yield None
        if shape.zeros[self.rank] >= 0 and self.warp < 2:
            zeros = self.cta.chunk(cross + shape.zeros[self.rank] * STRIDE)
            zeros[32 * self.warp : 32 * self.warp + 32] = 0
        yield from self.publish()

    def own(self, smem: Sequence[int]) -> np.ndarray:
        found = [self.cta.chunk(p)[self.rows].astype(np.float64) for p in smem]
        return np.concatenate([np.zeros((16, 0)), *found], 1)

    def add_dots(self, dots: np.ndarray) -> None:
        self.walk.dots[self.rows] += dots

    def run(self) -> Agent:
        shape = self.shape
        begin = self.rank * shape.chunks[0]
        for chunk in range(begin, begin + shape.chunks[self.rank]):
            if chunk % WARPS == self.warp:
                x = self.walk.x[:, 8 * chunk : 8 * chunk + 8]
                self.cta.chunk(chunk * STRIDE)[:] = x
            yield None
        yield from self.publish()
        for layer in range(shape.num_deep):
            yield from self.deep_layer(layer)
        first, count = shape.share(self.rank, self.group)
        x0 = self.own([(first + j) * STRIDE for j in range(count)])
        products = np.zeros((16, shape.cross_tile))  # of all layers so far
        for layer in range(shape.num_cross):
            yield from self.cross_layer(layer, x0, products)
