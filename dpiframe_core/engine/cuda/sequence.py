"""Products of a program put together in sequences, each of which one kernel runs
(csrc/kernels/gemm/sequence/product_sequence.cuh).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpiframe_core import _core
from dpiframe_core.engine.cuda.chain.choice import IN_SEQUENCE
from dpiframe_core.engine.cuda.chain.grouping import ProductChain
from dpiframe_core.engine.cuda.device_layout import ALIGNMENT, joined_ranges
from dpiframe_core.engine.cuda.parts import Parts
from dpiframe_core.engine.precision import HALF_PRECISIONS
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import FusedLinear, Linear, Step

MOST = 8  # products (csrc/kernels/gemm/sequence/sequence_params.h)
Shape = tuple[int, int, list[int]]  # n and k of a product, those before it whose results it reads


@dataclass(frozen=True)
class ProductSequence(Parts):
    """Products that one kernel runs in batches of `rows`, and one by one in all others."""

    after: tuple[tuple[int, ...], ...]  # for each product those before it whose results it reads

    def shapes(self, program: Program) -> list[Shape]:
        """Of its products."""
        return _shapes(program, self.parts, self.after)


def sequence_products(program: Program, precision: str, max_rows: int) -> Program:
    """The program with sequences in the place of products, where these are of use; also inside of
    chains, for the batches that do not run as a chain.
    """
    if precision not in HALF_PRECISIONS:
        return program
    rows = _core.batch_buckets(max_rows)
    waiting, done = list(program.steps), []
    while waiting:
        before, together, waiting = _first(program, waiting)
        done += [_inside(program, step, rows, precision) for step in before]
        done += _made(program, together, rows, precision)
    return replace(program, steps=tuple(done))


def sequence_microseconds(program: Program, step: ProductSequence, precision: str, rows: int) -> float:
    """Of so many rows, by a model (csrc/kernels/gemm/sequence/sequence_config.cpp)."""
    return float(_core.sequence_choice(precision, rows, step.shapes(program))[2])


def apart_microseconds(shapes: Sequence[Shape], precision: str, rows: int) -> float:
    """Of the same products one by one."""
    return IN_SEQUENCE * sum(_core.linear_microseconds(precision, rows, n, k) for n, k, _ in shapes)


def sequence_rows(shapes: Sequence[Shape], rows: Sequence[int], precision: str) -> tuple[int, ...]:
    """Those of the numbers of rows for which the sequence is faster."""
    return tuple(
        count
        for count in rows
        if _core.sequence_choice(precision, count, list(shapes))[2]
        < apart_microseconds(shapes, precision, count)
    )


def _inside(program: Program, step: Step, rows: Sequence[int], precision: str) -> Step:
    """A chain with a sequence in the place of its products."""
    if not isinstance(step, ProductChain) or not all(_takes(program, p) for p in step.parts):
        return step
    left = [count for count in rows if count not in step.rows]
    return replace(step, parts=tuple(_made(program, step.parts, left, precision)))


def _first(program: Program, steps: Sequence[Step]) -> tuple[list[Step], list[Step], list[Step]]:
    """The steps before the first sequence, its own, and those after it."""
    before: list[Step] = []
    together: list[Step] = []
    after: list[Step] = []
    for step in steps:
        late = any(w.overlaps(r) for s in after for w in s.writes() for r in step.reads())
        if not late and len(together) < MOST and _takes(program, step):
            together.append(step)
            continue
        needs = any(w.overlaps(r) for s in together for w in s.writes() for r in step.reads())
        if late or needs or (together and _takes(program, step)):
            after.append(step)
        else:
            before.append(step)
    return before, together, after


def _takes(program: Program, step: Step) -> bool:
    """Whether a sequence can have the step: it has one range of ReLU, and rows of x that TMA reads
    (multiples of 16 bytes).
    """
    return (
        isinstance(step, (Linear, FusedLinear))
        and len(joined_ranges(step.relu)) <= 1
        and program.buffers[step.x.buffer] > 1
        and step.x.start % ALIGNMENT == 0
    )


def _made(
    program: Program, steps: Sequence[Step], rows: Sequence[int], precision: str
) -> list[Step]:
    """The steps as a sequence, those that wait for the same ones side by side, or as they are."""
    if len(steps) < 2 or len(steps) > MOST:
        return list(steps)
    levels: list[int] = []
    for i, step in enumerate(steps):
        levels.append(1 + max((levels[j] for j in range(i) if _reads(step, steps[j])), default=-1))
    parts = tuple(steps[i] for i in sorted(range(len(steps)), key=levels.__getitem__))
    after = tuple(
        tuple(j for j in range(i) if _reads(step, parts[j])) for i, step in enumerate(parts)
    )
    faster = sequence_rows(_shapes(program, parts, after), rows, precision)
    if not faster:
        return list(steps)
    return [ProductSequence(f"{parts[0].name} .. {parts[-1].name}", parts, faster, after)]


def _reads(step: Step, other: Step) -> bool:
    return any(w.overlaps(r) for w in other.writes() for r in step.reads())


def _shapes(
    program: Program, parts: Sequence[Step], after: Sequence[Sequence[int]]
) -> list[Shape]:
    found = []
    for step, before in zip(parts, after, strict=True):
        assert isinstance(step, (Linear, FusedLinear))
        n, k = program.weights[step.weight].shape
        found.append((int(n), int(k), list(before)))
    return found
