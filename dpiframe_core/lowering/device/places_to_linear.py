"""Passes for a device: a product with a matrix of its own in each place of its batch axes is a
linear layer a place, and what follows it element by element is split by place, too.

Per-token layers (RankMixer), stacked experts and towers come as one batched product with a weight
[places, K, N]. The kernels of linear layers read the columns of a place where they lie.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from dpiframe_core.lowering.device.align_columns import ALIGNMENT
from dpiframe_core.lowering.device.fuse_epilogue import MOST_FUNCTIONS, MOST_OPERANDS, is_small
from dpiframe_core.lowering.matmul_to_linear import constant_matrix
from dpiframe_core.program.expression import count_functions
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Linear, MappedLinear, Step, TensorStep
from dpiframe_core.program.tensor_ops import Join, Map, MatMul, Operand
from dpiframe_core.program.views import View, Weight

# A linear layer a place is a launch, about 2 us, and reads and writes K + N numbers a sample in
# device memory. A generated kernel keeps these in shared memory, but multiplies slower: RankMixer's
# 32 products of 128 x 256 took 61 us each there (65,536 samples in fp16 on an H200, 70 TFLOP/s),
# and take 30 as layers with GELU and residuals; 1,024 samples take as long either way. By the bytes
# 64 x 128 should gain little more than its launch, 64 x 64 nothing (not measured). Below 32 columns
# most of a tile of wgmma is empty.
LEAST_SIDE = 32
LEAST_WEIGHT = 8 * 1024  # elements of a place's matrix
MOST_PLACES = 64  # each is a launch


def places_to_linear(program: Program) -> Program:
    """Replace every such product whose places begin where TMA can read and write them."""
    steps, buffers, weights = list[Step](), dict(program.buffers), dict(program.weights)
    for step in program.steps:
        if not isinstance(step, TensorStep) or not _has_places(program, step):
            steps.append(step)
            continue
        assert isinstance(step.op, MatMul)
        (x,), (a, b) = step.xs, step.operands
        inner = Operand(a.shape[step.op.batch :], a.strides[step.op.batch :])
        starts = _starts(a, step.op.batch)
        if not inner.is_whole or any((x.start + start) % ALIGNMENT for start in starts):
            copied = View(f"{step.name}.x", 0, a.size)
            buffers[copied.buffer] = copied.width
            steps.append(TensorStep(copied.buffer, Join(), (x,), (), (a,), copied))
            x, starts = copied, [i * inner.size for i in range(len(starts))]
        width = step.out.width // len(starts)
        op = MatMul(0, 0, step.op.inner)
        for i, (start, of_b) in enumerate(zip(starts, _starts(b, step.op.batch), strict=True)):
            name = f"{step.name}.{i}"
            matrix = Operand(b.shape[step.op.batch :], b.strides[step.op.batch :], of_b)
            weight = Weight(f"{name}/weight")
            weights[weight] = constant_matrix(program, replace(step, op=op, operands=(a, matrix)))
            out = step.out.columns(i * width, width)
            steps.append(Linear(name, x.columns(start, inner.size), weight, None, out))
    return program.changed(steps=tuple(steps), buffers=buffers, weights=weights)


def split_places(program: Program) -> Program:
    """Split the maps behind such products by place, for fuse_epilogue, and buffers that others
    read a place at a time: rows of a place lie side by side then. Run where kernels are compiled.
    """
    places = {buffer: len(made) for buffer, made in _products(program).items()}
    if not places:
        return program
    for name in [s.name for s in program.steps if isinstance(s, TensorStep)]:
        step = next(s for s in program.steps if s.name == name)
        assert isinstance(step, TensorStep)
        count = next((places[x.buffer] for x in step.xs if _is_all(program, x, places)), 0)
        parts = _parts(program, step, count) if count else []
        if parts:
            steps = itertools.chain(*(parts if s is step else [s] for s in program.steps))
            program = program.changed(steps=tuple(steps))
            if step.out == View(step.out.buffer, 0, program.buffers[step.out.buffer]):
                places[step.out.buffer] = count
    program = _without_small(program)
    for buffer, count in places.items():
        program = _buffer_a_place(program, buffer, count)
    return program


def _has_places(program: Program, step: TensorStep) -> bool:
    op = step.op
    if not isinstance(op, MatMul) or not op.batch or len(step.xs) != 1:
        return False
    a, b = step.operands
    places, rows = math.prod(a.shape[: op.batch]), math.prod(a.shape[op.batch :][: op.rows])
    inner = math.prod(b.shape[op.batch :][: op.inner])
    width = step.out.width // (places * rows)
    return (
        rows == 1
        and 1 < places <= MOST_PLACES
        and min(inner, width) >= LEAST_SIDE
        and inner * width >= LEAST_WEIGHT
        and inner % ALIGNMENT == width % ALIGNMENT == step.out.start % ALIGNMENT == 0
        and not step.out.overlaps(program.output)
    )


def _starts(operand: Operand, axes: int) -> list[int]:
    """The first column of each place of the first axes."""
    sizes = zip(operand.shape[:axes], operand.strides[:axes], strict=True)
    steps = [range(0, n * s, s) if s else [0] * n for n, s in sizes]
    return [operand.offset + sum(place) for place in itertools.product(*steps)]


def _products(program: Program) -> dict[str, list[Linear]]:
    """Linear layers that share a buffer, equal parts of it one behind the other, by the buffer."""
    found: dict[str, list[Linear]] = {}
    for step in program.steps:
        if isinstance(step, Linear) and step.out.width < program.buffers[step.out.buffer]:
            found.setdefault(step.out.buffer, []).append(step)
    return {
        buffer: made
        for buffer, made in found.items()
        if [s.out for s in made] == _ranges(buffer, program.buffers[buffer], len(made))
    }


def _ranges(buffer: str, width: int, count: int) -> list[View]:
    return [View(buffer, i * (width // count), width // count) for i in range(count)]


def _is_all(program: Program, x: View, places: dict[str, int]) -> bool:
    return x.buffer in places and x == View(x.buffer, 0, program.buffers[x.buffer])


def _parts(program: Program, step: TensorStep, count: int) -> list[TensorStep]:
    """The map of each place; none where fuse_epilogue would not take them."""
    if not isinstance(step.op, Map) or step.out.overlaps(program.output):
        return []
    if step.out.width % count or len(step.operands) > MOST_OPERANDS:
        return []
    if count_functions(step.op.expression) > MOST_FUNCTIONS:
        return []
    width = step.out.width // count
    split = [_of_places(operand, count) for operand in step.operands]
    is_taken = all(
        places and (places[0].is_whole or not any(places[0].strides)) for places in split
    )
    own = [x for x in step.xs if program.only_reader(x) is step and _is_made(program, x, count)]
    if not is_taken or not any(_reads_own(step, x, split, width) for x in own):
        return []
    found = []
    for i in range(count):
        operands = [places[i] for places in split]
        xs = []
        for k, x in enumerate(step.xs):
            first, end = operands[k].offset, operands[k].end
            xs.append(x.columns(first, end - first))
            operands[k] = replace(operands[k], offset=0)
        found.append(
            replace(
                step,
                name=f"{step.name}.{i}",
                xs=tuple(xs),
                operands=tuple(operands),
                out=step.out.columns(i * width, width),
            )
        )
    return found


def _is_made(program: Program, x: View, count: int) -> bool:
    """Whether a step makes each of the places of a buffer."""
    made = program.producers()
    return all(view in made for view in _ranges(x.buffer, x.width, count))


def _reads_own(step: TensorStep, x: View, split: list[list[Operand]], width: int) -> bool:
    """Whether each place of the map reads that place of a buffer, and no other."""
    whole = Operand.whole(width)
    return all(
        [(p.offset, p.is_whole, p.size) for p in places]
        == [(i * width, True, whole.size) for i in range(len(places))]
        for view, places in zip(step.xs, split, strict=False)
        if view == x
    )


def _of_places(operand: Operand, count: int) -> list[Operand]:
    """The operand of each of `count` places, which its first axes go through; none where they do
    not.
    """
    axes, outer, inner = count, list[tuple[int, int]](), list[tuple[int, int]]()
    for size, stride in zip(operand.shape, operand.strides, strict=True):
        if axes == 1:
            inner.append((size, stride))
        elif axes % size == 0:
            outer.append((size, stride))
            axes //= size
        elif size % axes == 0:
            rest = size // axes
            outer.append((axes, stride * rest))
            inner.append((rest, stride))
            axes = 1
        else:
            return []
    if axes != 1:
        return []
    shape, strides = tuple(n for n, _ in inner), tuple(s for _, s in inner)
    of_outer = Operand(tuple(n for n, _ in outer), tuple(s for _, s in outer), operand.offset)
    return [Operand(shape, strides, start) for start in _starts(of_outer, len(outer))]


def _without_small(program: Program) -> Program:
    """The program with an epilogue for products that a generated kernel would take in else: all
    places together are none of the small products that it is for.
    """
    made = {s.name for several in _products(program).values() for s in several}
    steps = [
        MappedLinear(s.name, s.x, s.weight, s.bias, "x0", (), (), s.out)
        if isinstance(s, Linear) and s.name in made and is_small(program, s)
        else s
        for s in program.steps
    ]
    return program.changed(steps=tuple(steps))


def _buffer_a_place(program: Program, buffer: str, count: int) -> Program:
    """The program with a buffer for each place, where every step uses one place alone."""
    if buffer not in program.buffers or buffer == program.output.buffer:
        return program
    width = program.buffers[buffer] // count
    used = [v for s in program.steps for v in (*s.reads(), *s.writes()) if v.buffer == buffer]
    if any(v.start // width != (v.start + v.width - 1) // width for v in used):
        return program

    def place(view: View) -> View:
        if view.buffer != buffer:
            return view
        return View(f"{buffer}.{view.start // width}", view.start % width, view.width)

    names = [f"{buffer}.{i}" for i in range(count)]
    buffers = {**program.buffers, **dict.fromkeys(names, width)}
    steps = tuple(step.map_views(place) for step in program.steps)
    return program.changed(steps=steps, buffers=buffers)


__all__ = ["places_to_linear", "split_places"]
