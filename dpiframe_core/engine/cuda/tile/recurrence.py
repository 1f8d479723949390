"""Recurrences: products with one weight that wait for one another, as those of a GRU do.

Such products and what lies between them are one kernel, which takes turns: what is made of a whole
history before is made turn by turn, too, and each turn's part of a buffer is a buffer of its own.
Shared memory holds a turn, not the history: its length does not limit the samples of a tile.
"""

from __future__ import annotations

import graphlib
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dpiframe_core.engine.cuda.tile.product import MOST_WEIGHT
from dpiframe_core.engine.translation import TRANSLATE, Operation, Source
from dpiframe_core.program import steps as p
from dpiframe_core.program.program import Program
from dpiframe_core.program.tensor_ops import Map, MatMul, Operand, Take, TensorOp
from dpiframe_core.program.views import View, Weight

LEAST_TURNS = 4


@dataclass(frozen=True)
class Recurrence:
    """`steps` in the program's order, and those `ahead`, which make what these alone read."""

    steps: tuple[p.Step, ...]
    ahead: tuple[p.Step, ...]


class Turns(NamedTuple):
    """Of a group that is a recurrence: how many of its steps are ahead, and what others read of
    it.
    """

    ahead: int
    left: tuple[View, ...]


def find_recurrences(program: Program) -> list[Recurrence]:
    """Products with one weight, each of which waits for the one before, what lies between them, and
    what is made of their results.
    """
    steps = program.steps
    makers = _makers([(step.reads(), step.writes()) for step in steps])
    ancestors: list[int] = []
    for found in makers:
        ancestors.append(_bits(found))
        for maker in found:
            ancestors[-1] |= ancestors[maker]
    groups: list[int] = []
    for turns in _turns(program, ancestors):
        members = chain = _bits(turns)
        for turn in turns:
            members |= _bits(i for i in _numbers(ancestors[turn]) if ancestors[i] & chain)
        members |= _last(steps, makers, ancestors, turns, members)
        for other in [other for other in groups if other & members]:
            groups.remove(other)
            members |= other
        groups.append(members)
    groups = [g for g in groups if all(type(steps[i]) in TRANSLATE for i in _numbers(g))]
    taken = {i for group in groups for i in _numbers(group)}
    recurrences: list[Recurrence] = []
    for members in groups:
        ahead = _ahead(program, makers, ancestors, members, taken)
        taken.update(ahead)
        recurrences.append(
            Recurrence(tuple(steps[i] for i in _numbers(members)), tuple(steps[i] for i in ahead))
        )
    return recurrences


def _makers(touched: Sequence[tuple[Sequence[View], Sequence[View]]]) -> list[set[int]]:
    """Of what reads and writes views, in order: the numbers of those before that made what it
    reads.
    """
    writers: dict[str, list[tuple[View, int]]] = defaultdict(list)
    found: list[set[int]] = []
    for number, (reads, writes) in enumerate(touched):
        found.append({i for v in reads for w, i in writers[v.buffer] if w.overlaps(v)})
        for view in writes:
            writers[view.buffer].append((view, number))
    return found


def in_order(steps: Sequence[p.Step]) -> list[p.Step]:
    """Steps so that each comes behind those whose results it reads; none where two wait for one
    another.
    """
    writers: dict[str, list[tuple[View, int]]] = defaultdict(list)
    for number, step in enumerate(steps):
        for view in step.writes():
            writers[view.buffer].append((view, number))
    waits = [
        {i for v in step.reads() for w, i in writers[v.buffer] if w.overlaps(v)} for step in steps
    ]
    sorter = graphlib.TopologicalSorter(dict(enumerate(waits)))
    try:
        return [steps[i] for i in sorter.static_order()]
    except graphlib.CycleError:
        return []


def _bits(numbers: Iterable[int]) -> int:
    found = 0
    for number in numbers:
        found |= 1 << number
    return found


def _numbers(bits: int) -> Iterator[int]:
    return (i for i in range(bits.bit_length()) if bits >> i & 1)


def _turns(program: Program, ancestors: Sequence[int]) -> list[list[int]]:
    """The numbers of products with one weight of which each waits for the one before."""
    by_weight: dict[object, list[int]] = defaultdict(list)
    for number, step in enumerate(program.steps):
        if isinstance(step, p.Linear) and _is_small(program, step.weight):
            weight = np.ascontiguousarray(program.weights[step.weight])
            by_weight[weight.shape, hashlib.sha256(weight.tobytes()).digest()].append(number)
    found = []
    for numbers in by_weight.values():
        turns = numbers[:1]
        for number in numbers[1:]:
            if ancestors[number] >> turns[-1] & 1:
                turns.append(number)
        if len(turns) >= LEAST_TURNS:
            found.append(turns)
    return found


def _is_small(program: Program, weight: Weight) -> bool:
    return program.weights[weight].size <= MOST_WEIGHT


def _last(
    steps: Sequence[p.Step],
    makers: Sequence[set[int]],
    ancestors: Sequence[int],
    turns: Sequence[int],
    members: int,
) -> int:
    """What else is made of the products' results, unless it waits for what waits for them."""
    found = 0
    for number, step in enumerate(steps):
        others = ancestors[number] & ~members & ~found
        waits = any(ancestors[i] & members for i in _numbers(others))
        if isinstance(step, p.TensorStep) and makers[number] & set(turns) and not waits:
            found |= 1 << number
    return found


def _ahead(
    program: Program,
    makers: Sequence[set[int]],
    ancestors: Sequence[int],
    members: int,
    taken: set[int],
) -> list[int]:
    """The numbers of maps, orders and small products, not taken yet, that wait for none of the
    members and that these alone read, or others too if a turn's state is as wide.
    """
    steps = program.steps
    widest = max(view.width for i in _numbers(members) for view in steps[i].writes())
    read_by_members: set[int] = set()
    read_by_others: set[int] = set()
    found: list[int] = []
    for number in reversed(range(len(steps))):
        step = steps[number]
        if members >> number & 1:
            read_by_members |= makers[number]
            continue
        kept = isinstance(step, (p.Linear, p.LinearRows)) and _is_small(program, step.weight)
        if isinstance(step, p.TensorStep):
            product = isinstance(step.op, MatMul) and len(step.xs) == 1
            small = product and _is_small(program, step.constants[0])
            kept = small or isinstance(step.op, (Map, Take))
        only = number not in read_by_others or sum(v.width for v in step.writes()) <= widest
        free = number not in taken and ancestors[number] & members == 0
        if kept and only and free and number in read_by_members:
            found.append(number)
            read_by_members |= makers[number]
        else:
            read_by_others |= makers[number]
    return found[::-1]


def in_turns(
    ahead: Sequence[Operation],
    operations: Sequence[Operation],
    own: frozenset[str],
    left: Sequence[View],
) -> tuple[list[Operation], frozenset[str], dict[str, View]]:
    """The operations of a recurrence turn by turn, the buffers that nothing else reads, and what
    buffers are parts of. `left`: what others read.
    """
    rows = _by_rows(ahead, operations, own)
    made, parts = _split_buffers(_ordered(rows, operations))
    own |= {
        operation.out.buffer
        for operation in made
        if (part := parts.get(operation.out.buffer))
        and not any(part.overlaps(other) for other in left)
    }
    made, copies = _with_copies(made)
    return made, own | copies, parts


def _by_rows(
    ahead: Sequence[Operation], operations: Sequence[Operation], own: frozenset[str]
) -> list[Operation]:
    """What is made ahead, row by row where it is read so."""
    found: list[Operation] = []
    read = [view for operation in operations for view in _reads_of(operation)]
    for operation in reversed(ahead):
        rows = _rows(operation) if operation.out.buffer in own else []
        outs = [row.out for row in rows]
        if len(rows) < LEAST_TURNS or not all(
            _part(outs, view) for view in read if view.overlaps(operation.out)
        ):
            rows = [operation]
        found += reversed(rows)
        read += [view for row in rows for view in _reads_of(row)]
    return found[::-1]


def _ordered(ahead: Sequence[Operation], operations: Sequence[Operation]) -> list[Operation]:
    """All, so that what is made ahead comes right before the product of the turn that needs it."""
    every = [*ahead, *operations]
    makers = _makers([(list(_reads_of(operation)), [operation.out]) for operation in every])
    turns = [0] * len(every)
    for number in range(len(ahead), len(every)):
        waits = max((turns[i] for i in makers[number] if i >= len(ahead)), default=0)
        turns[number] = waits + isinstance(every[number].op, MatMul)
    needed = dict.fromkeys(range(len(ahead)), len(every))
    for number in reversed(range(len(every))):
        turn = needed.get(number, turns[number])
        for maker in makers[number]:
            if maker in needed:
                needed[maker] = min(needed[maker], turn)
    turns[: len(ahead)] = needed.values()
    return [every[i] for i in sorted(range(len(every)), key=lambda i: (turns[i], i))]


def _with_copies(operations: Sequence[Operation]) -> tuple[list[Operation], set[str]]:
    """The operations with a copy of what products read that lies in device memory; the copies."""
    written = {operation.out.buffer for operation in operations}
    copies: dict[tuple[Source, Operand], View] = {}
    found: list[Operation] = []
    for operation in operations:
        source, operand = operation.sources[0], operation.operands[0]
        is_product = isinstance(operation.op, MatMul)
        if is_product and isinstance(source, View) and source.buffer not in written:
            copy = copies.get((source, operand))
            if copy is None:
                copy = copies[source, operand] = View(f"copy@{len(copies)}", 0, operand.size)
                found.append(Operation(Map("x0"), (source,), (operand,), copy))
            sources, whole = (copy, *operation.sources[1:]), Operand.whole(*operand.shape)
            operation = replace(
                operation, sources=sources, operands=(whole, *operation.operands[1:])
            )
        found.append(operation)
    return found, {copy.buffer for copy in copies.values()}


def _rows(operation: Operation) -> list[Operation]:
    """Operations that each compute a row of its result; none where that is no matrix."""
    op, operands = operation.op, operation.operands
    one: TensorOp = op
    shape = operands[0].shape
    moving = len(operands)  # operands that have a row for each of the result's
    order: Sequence[int] = range(shape[0]) if shape else ()
    if isinstance(op, MatMul):
        if op.batch or op.rows != 1 or isinstance(operation.sources[1], View):
            return []
        one, moving = replace(op, rows=0), 1
    elif isinstance(op, Take) and op.behind == len(shape) - 1:
        one, order = Map("x0"), op.index
    elif not isinstance(op, Map):
        return []
    if len(shape) < 2:
        return []
    width = operation.out.width // len(order)

    def row(number: int, read: int) -> Operation:
        taken = (
            Operand(o.shape[1:], o.strides[1:], o.offset + read * o.strides[0])
            for o in operands[:moving]
        )
        out = operation.out.columns(number * width, width)
        return Operation(one, operation.sources, (*taken, *operands[moving:]), out)

    return [row(*pair) for pair in enumerate(order)]


def _reads_of(operation: Operation) -> Iterator[View]:
    """The ranges of columns that an operation reads."""
    for source, operand in zip(operation.sources, operation.operands, strict=True):
        if isinstance(source, View):
            yield source.columns(operand.offset, operand.end - operand.offset)


def _split_buffers(operations: Sequence[Operation]) -> tuple[list[Operation], dict[str, View]]:
    """The operations with a buffer for each range of columns that is written, or read, apart from
    the others; and what these are parts of.
    """
    written: dict[str, list[View]] = defaultdict(list)
    read: dict[str, list[View]] = defaultdict(list)
    for operation in operations:
        written[operation.out.buffer].append(operation.out)
        for view in _reads_of(operation):
            read[view.buffer].append(view)
    parts: dict[str, list[View]] = {}
    for buffer in {**written, **read}:
        ranges = _joined(written[buffer] or read[buffer])
        apart = not written[buffer] or len(ranges) == len(written[buffer])
        if len(ranges) > 1 and apart and all(_part(ranges, view) for view in read[buffer]):
            parts[buffer] = ranges
    names = {view: f"{view.buffer}@{view.start}" for views in parts.values() for view in views}

    def renamed(operation: Operation) -> Operation:
        sources, operands = list(operation.sources), list(operation.operands)
        for k, (source, operand) in enumerate(zip(sources, operands, strict=True)):
            if isinstance(source, View) and source.buffer in parts:
                view = source.columns(operand.offset, operand.end - operand.offset)
                part = _part(parts[source.buffer], view)
                assert part is not None
                sources[k] = View(names[part], 0, part.width)
                operands[k] = replace(operand, offset=view.start - part.start)
        out = operation.out
        if out.buffer in parts:
            out = View(names[out], 0, out.width)
        return Operation(operation.op, tuple(sources), tuple(operands), out)

    return [renamed(operation) for operation in operations], {n: v for v, n in names.items()}


def _joined(views: Sequence[View]) -> list[View]:
    """The ranges that views of one buffer cover, those that overlap as one."""
    found: list[View] = []
    for view in sorted(views, key=lambda v: v.start):
        if found and found[-1].overlaps(view):
            last = found[-1]
            width = max(last.width, view.start + view.width - last.start)
            found[-1] = replace(last, width=width)
        else:
            found.append(view)
    return found


def _part(ranges: Sequence[View], view: View) -> View | None:
    """The range that contains a view."""
    return next((part for part in ranges if part.contains(view)), None)
