"""Products of a program put together in chains, each of which one generated kernel runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dpiframe_core import _core
from dpiframe_core.engine.cuda.chain.areas import Areas, place_areas
from dpiframe_core.engine.cuda.chain.choice import (
    CLUSTERS,
    chain_microseconds,
    chain_rows,
    fits_gpu,
    steps_microseconds,
)
from dpiframe_core.engine.cuda.chain.layers import Layer, layer_of
from dpiframe_core.engine.cuda.chain.source import chain_source
from dpiframe_core.engine.cuda.kernel_compiler import KernelSource, find_compiler
from dpiframe_core.engine.cuda.mapped_linear import ARCH
from dpiframe_core.engine.precision import HALF_PRECISIONS
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Step, StepGroup
from dpiframe_core.program.views import View


@dataclass(frozen=True)
class ProductChain(StepGroup):
    """Products that one kernel runs in batches of `rows`, and one by one in all others."""

    layers: tuple[Layer, ...]
    areas: Areas
    rows: tuple[int, ...]
    stored: frozenset[int]  # layers whose results other steps read
    summed: frozenset[int]  # layers whose sums of rows other steps read

    def writes(self) -> list[View]:
        return list(dict.fromkeys(v for step in self.parts for v in step.writes()))

    def reads(self) -> list[View]:
        written = self.writes()
        read = [v for step in self.parts for v in step.reads()]
        return [v for v in dict.fromkeys(read) if sum(_common(w, v) for w in written) < v.width]

    def map_views(self, change: Callable[[View], View]) -> ProductChain:
        raise NotImplementedError("a chain is made last")

    def gain(self, rows: int, precision: str) -> float:
        """Microseconds that it saves, by the model of the time."""
        apart = steps_microseconds(self.layers, rows, precision)
        return apart - chain_microseconds(self.layers, self.areas, rows)

    def source(self, precision: str) -> KernelSource:
        """Of its kernel."""
        return KernelSource(
            self.name, chain_source(self.layers, self.areas, precision, self.stored)
        )


def compiled_chains(program: Program, precision: str) -> dict[str, bytes]:
    """The cubins of all chains by name. CompileError: a source does not compile."""
    chains = [step for step in program.steps if isinstance(step, ProductChain)]
    compiler = find_compiler()
    if not chains or compiler is None:
        return {}
    sources = [chain.source(precision) for chain in chains]
    cubins = compiler.compile_all(sources, ARCH, precision)
    return {chain.name: cubin for chain, cubin in zip(chains, cubins, strict=True)}


def chain_products(program: Program, precision: str, max_rows: int) -> Program:
    """The program with chains in the place of their products, where these are of use."""
    if precision not in HALF_PRECISIONS:
        return program
    floats = program.float_buffers()
    rows = _core.batch_buckets(max_rows)
    waiting, done = list(program.steps), []
    while waiting:
        counts = [ctas for ctas in CLUSTERS if fits_gpu(ctas, rows[-1])]
        parted = [_first_chain(program, waiting, floats, ctas) for ctas in counts]
        made = [
            _made(program, parts, rows, precision, ctas)
            for (_, parts, _), ctas in zip(parted, counts, strict=True)
        ]
        gains = [chain.gain(rows[-1], precision) if chain else 0.0 for chain in made]
        best = gains.index(max(gains))
        before, parts, waiting = parted[best]
        chain = made[best]
        done += [*before, *([chain] if chain else parts)]
    return replace(program, steps=tuple(done))


def _first_chain(
    program: Program, steps: Sequence[Step], floats: frozenset[str], ctas: int
) -> tuple[list[Step], list[Step], list[Step]]:
    """The steps before the first chain, its own, and those after it."""
    before: list[Step] = []
    chain: list[Step] = []
    layers: list[Layer] = []
    after: list[Step] = []
    chain_reads: list[View] = []
    chain_writes: list[View] = []
    after_writes: list[View] = []
    for step in steps:
        reads, writes = step.reads(), step.writes()
        late = _overlap(after_writes, reads)
        layer = None if late else layer_of(step, program.weights)
        if layer and _joins(program, [*layers, layer], floats, ctas):
            chain.append(step)
            layers.append(layer)
            chain_reads += reads
            chain_writes += writes
            continue
        needs, changes = _overlap(chain_writes, reads), _overlap(writes, chain_reads)
        if late or needs or changes or (chain and layer):
            after.append(step)
            after_writes += writes
        else:
            before.append(step)
    return before, chain, after


def _joins(program: Program, layers: Sequence[Layer], floats: frozenset[str], ctas: int) -> bool:
    """Whether the layers fit as a chain; each but the first goes on where one before it ended."""
    last = layers[-1]
    views = [
        last.x,
        *(operand.view for operand in last.operands),
        *([last.out] if last.out else []),
    ]
    if any(view.buffer in floats for view in views):
        return False
    before = layers[:-1]
    if (
        before
        and not any(x.out and x.out.overlaps(last.x) for x in before)
        and not any(x.x == last.x for x in before)
    ):
        return False
    if last.norm and not any(x.sums == last.norm.sums for x in before):
        return False
    made = [x.out for x in before if x.out]
    for view in (last.x, *(operand.view for operand in last.operands)):
        inside = any(w.buffer == view.buffer for w in made)
        if inside and sum(_common(w, view) for w in made) < view.width:
            return False  # a part of it comes from elsewhere
    return place_areas(layers, program.buffers, ctas) is not None


def _overlap(some: Sequence[View], others: Sequence[View]) -> bool:
    return any(a.overlaps(b) for a in some for b in others)


def _common(a: View, b: View) -> int:
    """Columns that both have."""
    if a.buffer != b.buffer:
        return 0
    return max(0, min(a.start + a.width, b.start + b.width) - max(a.start, b.start))


def _made(
    program: Program, steps: Sequence[Step], rows: Sequence[int], precision: str, ctas: int
) -> ProductChain | None:
    """The steps as a chain; None where the largest batches would not run it, for then the plan
    would keep them together, and from running beside others, for nothing.
    """
    layers = tuple(layer for step in steps if (layer := layer_of(step, program.weights)))
    areas = place_areas(layers, program.buffers, ctas) if len(layers) > 1 else None
    faster = chain_rows(layers, areas, rows, precision) if areas else ()
    if areas is None or rows[-1] not in faster:
        return None
    inside = {id(step) for step in steps}
    read = [v for s in program.steps if id(s) not in inside for v in s.reads()]
    read.append(program.output)
    stored = frozenset(
        i for i, x in enumerate(layers) if x.out and any(x.out.overlaps(view) for view in read)
    )
    summed = frozenset(
        i for i, x in enumerate(layers) if x.sums and any(x.sums.overlaps(view) for view in read)
    )
    name = f"{steps[0].name} .. {steps[-1].name}"
    return ProductChain(name, tuple(steps), layers, areas, faster, stored, summed)
