"""Steps of a program put together in groups, each of which one generated kernel runs.

Between lookups and large products a program has steps over single samples: interactions, norms,
gates, small products. Those that are ready together become one step, and what only they need never
reaches device memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dpiframe_core.engine.cuda.tile.product import MOST_WEIGHT
from dpiframe_core.engine.cuda.tile.recurrence import (
    Turns,
    find_recurrences,
    in_order,
    in_turns,
)
from dpiframe_core.engine.cuda.tile.shared_memory import UnsuitableError
from dpiframe_core.engine.cuda.tile.source import SAMPLES, STAGES, TileKernel, tile_kernel
from dpiframe_core.engine.translation import TRANSLATE, Operation, Translation
from dpiframe_core.program import steps as p
from dpiframe_core.program.program import Program
from dpiframe_core.program.tensor_ops import LayerNorm, MatMul, Operand, Softmax
from dpiframe_core.program.views import View

EXPANDED = 4  # times what it is made of: a buffer that is better not made
MOST_READ_APART = 64  # columns of a product whose operand, such as a window, is better not copied
MOST_VIEWS = 16  # buffers of a kernel's parameters
MOST_WEIGHTS = 128
LEAST_ROWS = 16  # samples of a tile with rows for tensor cores
MOST_WITHOUT = 2048  # elements of a product's weight in tiles of fewer
LONG_ROW = 1024  # elements of a row, of which a tile that holds it has few samples


@dataclass(frozen=True)
class TileGroup(p.StepGroup):
    """Steps that one kernel runs; `own`: buffers that nothing else reads; `turns`, if they are a
    recurrence.
    """

    own: frozenset[str]
    turns: Turns | None = None

    def writes(self) -> list[View]:
        found = [v for step in self.parts for v in step.writes() if v.buffer not in self.own]
        if self.turns is not None:
            found = [v for v in found if any(v.overlaps(left) for left in self.turns.left)]
        return list(dict.fromkeys(found))

    def reads(self) -> list[View]:
        written = [v for step in self.parts for v in step.writes()]
        found = [
            v
            for step in self.parts
            for v in step.reads()
            if v.buffer not in self.own and not any(w.contains(v) for w in written)
        ]
        return list(dict.fromkeys(found))

    def map_views(self, change: Callable[[View], View]) -> TileGroup:
        turns = self.turns
        if turns is not None:
            turns = Turns(turns.ahead, tuple(change(view) for view in turns.left))
        parts = tuple(step.map_views(change) for step in self.parts)
        return replace(self, parts=parts, turns=turns)

    def generate(
        self, program: Program, floats: frozenset[str], precision: str, host: bool = False
    ) -> TileKernel:
        """The generated kernel. UnsuitableError: there is none."""
        translation = Translation(program, MOST_READ_APART)
        operations: list[list[Operation]] = []
        for step in self.parts:
            operations.append(translation.operations(step))
            if not operations[-1]:
                raise UnsuitableError(f"{type(step).__name__} {step.name}")
        own = self.own | translation.added.keys()
        made = [operation for several in operations for operation in several]
        parts: dict[str, View] = {}
        if self.turns is not None:
            ahead = sum(map(len, operations[: self.turns.ahead]))
            made, own, parts = in_turns(made[:ahead], made[ahead:], own, self.turns.left)
        kernel = tile_kernel(made, own, floats, precision, host=host, parts=parts)
        if len(kernel.buffers) > MOST_VIEWS or len(kernel.weights) > MOST_WEIGHTS:
            raise UnsuitableError(f"{len(kernel.buffers)} buffers, {len(kernel.weights)} weights")
        return kernel


def group_steps(program: Program, precision: str) -> Program:
    """The program with groups of steps in the place of these."""
    program = _with_recurrences(_split_head(program), precision)
    groups: list[list[p.Step]] = []
    waiting = list(program.steps)
    done: list[View] = []
    written = [v for s in program.steps for v in s.writes()]

    def ready(step: p.Step) -> bool:
        return all(
            any(d.contains(part) for d in done)
            for view in step.reads()
            for part in (w for w in written if w.overlaps(view))
        )

    # Lookups first: what is the same for all samples would else be a group of its own.
    order: list[list[p.Step]] = [
        [s]
        for s in waiting
        if not _fits(program, s) and not any(w.overlaps(v) for v in s.reads() for w in written)
    ]
    for (step,) in order:
        waiting.remove(step)
        done += step.writes()
    while waiting:
        taken: list[p.Step] = []
        moved = True
        while moved:
            moved = False
            for step in list(waiting):
                if _fits(program, step) and ready(step):
                    taken.append(step)
                    waiting.remove(step)
                    done += step.writes()
                    moved = True
        if taken:
            order.append(taken)
            groups.append(taken)
        others = [s for s in waiting if ready(s)]
        if not others and not taken:
            raise AssertionError("steps wait for one another")
        for step in others:
            if _fits(program, step):
                continue
            waiting.remove(step)
            order.append([step])
            done += step.writes()
    made: list[p.Step] = []
    floats = program.float_buffers()
    for steps in order:
        made += _grouped(program, steps, floats, precision)
    return replace(program, steps=tuple(made))


def without_own(program: Program) -> Program:
    """The program less the buffers that lie inside groups: what a device has memory for."""
    own = {name for s in program.steps if isinstance(s, TileGroup) for name in s.own}
    kept = {name: width for name, width in program.buffers.items() if name not in own}
    return replace(program, buffers=kept)


def _grouped(
    program: Program, steps: Sequence[p.Step], floats: frozenset[str], precision: str
) -> list[p.Step]:
    """The steps as one group; as several, or as they are, where that is too much for one."""
    if not any(isinstance(step, (p.TensorStep, p.BatchNorm)) for step in steps):
        return list(steps)
    group = _group_of(program, steps)
    try:
        kernel = group.generate(program, floats, precision)
        at = _cut(program, steps) if kernel.samples < LEAST_ROWS else None
        if at is None:
            return [group]
        return [
            *_grouped(program, steps[:at], floats, precision),
            *_grouped(program, steps[at : at + 1], floats, precision),
            *_grouped(program, steps[at + 1 :], floats, precision),
        ]
    except UnsuitableError:
        if len(steps) == 1:
            return list(steps)
        half = len(steps) // 2
        return [
            *_grouped(program, steps[:half], floats, precision),
            *_grouped(program, steps[half:], floats, precision),
        ]


def _cut(program: Program, steps: Sequence[p.Step]) -> int | None:
    """Which step should be apart where a tile has few samples: a linear layer with more weights
    than these should read, or long rows, without which such products beside them have more.
    """
    for at, step in enumerate(steps):
        if isinstance(step, p.Linear) and _weights_of(program, step) > MOST_WITHOUT:
            return at
    if len(steps) > 1 and any(_weights_of(program, step) > MOST_WITHOUT for step in steps):
        return next((at for at, step in enumerate(steps) if _is_long(step)), None)
    return None


def _weights_of(program: Program, step: p.Step) -> int:
    """The elements of what a product multiplies by."""
    if isinstance(step, p.Linear):
        return program.weights[step.weight].size
    if isinstance(step, p.TensorStep) and isinstance(step.op, MatMul):
        return sum(program.weights[name].size for name in step.constants)
    return 0


def _is_long(step: p.Step) -> bool:
    """Whether it is a softmax or a norm over long rows."""
    op = step.op if isinstance(step, p.TensorStep) else None
    if isinstance(step, p.TensorStep) and isinstance(op, Softmax):
        return math.prod(step.operands[0].shape[axis] for axis in op.axes) > LONG_ROW
    if isinstance(step, p.TensorStep) and isinstance(op, LayerNorm):
        return math.prod(step.operands[0].shape[-op.axes :]) > LONG_ROW
    return False


def _group_of(program: Program, steps: Sequence[p.Step], ahead: int | None = None) -> TileGroup:
    """The steps as one group, be there a kernel for it or not; `ahead`: those of a recurrence that
    are ahead of it.
    """
    inside = {id(s) for s in steps}
    others = [step for step in program.steps if id(step) not in inside]
    own = {v.buffer for s in steps for v in s.writes()}
    for step in others:
        own -= {v.buffer for v in (*step.reads(), *step.writes())}
    own.discard(program.output.buffer)
    name = f"{steps[0].name} .. {steps[-1].name}" if len(steps) > 1 else steps[0].name
    turns = None
    if ahead is not None:
        left = [view for step in others for leaf in step.leaves() for view in _ranges(leaf)]
        turns = Turns(ahead, (program.output, *left))
    return TileGroup(name, tuple(steps), frozenset(own), turns)


def _ranges(step: p.Step) -> list[View]:
    """The columns that a step reads, of its views."""
    if not isinstance(step, p.TensorStep):
        return list(step.reads())
    read = zip(step.xs, step.operands, strict=False)  # operands of constants are behind these
    return [x.columns(operand.offset, operand.end - operand.offset) for x, operand in read]


def _with_recurrences(program: Program, precision: str) -> Program:
    """The program with a group for each recurrence that has a kernel of many samples a tile."""
    floats = program.float_buffers()
    for recurrence in find_recurrences(program):
        for ahead in dict.fromkeys((recurrence.ahead, ())):
            group = _group_of(program, (*ahead, *recurrence.steps), len(ahead))
            try:
                kernel = group.generate(program, floats, precision)
            except UnsuitableError:
                continue
            if kernel.samples < SAMPLES[0]:
                continue
            inside = {id(step) for step in group.parts}
            others = [step for step in program.steps if id(step) not in inside]
            if ordered := in_order([*others, group]):
                program = replace(program, steps=tuple(ordered))
                break
    return program


def _fits(program: Program, step: p.Step) -> bool:
    if isinstance(step, p.Linear):
        return program.weights[step.weight].size <= MOST_WEIGHT and step.out.width <= 128
    if isinstance(step, p.LinearRows):
        return program.weights[step.weight].size <= MOST_WEIGHT or _is_expanded(program, step.x)
    if isinstance(step, p.Head):
        return False
    if isinstance(step, p.TensorStep):
        return isinstance(step.op, STAGES)
    return type(step) in TRANSLATE


def _is_expanded(program: Program, view: View) -> bool:
    """Whether a step makes this of far less, as outer products are: a product that makes it as it
    reads it spares the memory.
    """
    maker = program.producers().get(view)
    return isinstance(maker, p.TensorStep) and view.width >= EXPANDED * sum(
        read.width for read in maker.reads()
    )


def _split_head(program: Program) -> Program:
    """The head's dots with what a group makes become steps of their own."""
    head = program.steps[-1]
    if not isinstance(head, p.Head):
        return program
    made_by = program.producers()
    steps: list[p.Step] = []
    buffers, dots, scalars = dict(program.buffers), [], list(head.scalars)
    for view, weight in head.dots:
        maker = made_by.get(view)
        if not isinstance(maker, p.TensorStep):
            dots.append((view, weight))
            continue
        out = View(f"{head.name}.dot{len(steps)}", 0, 1)
        buffers[out.buffer] = 1
        operands = (Operand.whole(view.width), Operand.whole(view.width))
        steps.append(p.TensorStep(out.buffer, MatMul(0, 0, 1), (view,), (weight,), operands, out))
        scalars.append(out)
    head = replace(head, dots=tuple(dots), scalars=tuple(scalars))
    return replace(program, steps=(*program.steps[:-1], *steps, head), buffers=buffers)
