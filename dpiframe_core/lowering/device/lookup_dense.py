"""Pass for a device: the first lookup brings the batch's dense features along.

Neither reads anything but the batch, and a model can do nothing before it has both. The lookup's
kernel copies them to where they are read, scales and shifts them (a batch norm), makes embeddings
of them, counts these in FM, and adds their dot to the wide sum, where the program does so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import (
    FM,
    Affine,
    DenseSlot,
    Head,
    LoadDense,
    Lookup,
    Outer,
    Slot,
    Step,
)
from dpiframe_core.program.views import View, Weight

# csrc/kernels/embedding/multi_table_lookup_cuda.h
MOST_SLOTS, MOST_COLUMNS = 6, 128
WIDTHS = (8, 4, 2)  # elements that a lookup may move at once


@dataclass
class _Found:
    """What the lookup takes over: slots with what they write, and the names of their steps."""

    slots: list[tuple[DenseSlot, View | None]] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    head: Head | None = None
    wide_out: View | None = None


def lookup_dense(program: Program) -> Program:
    """Give the first lookup of embeddings the dense features, and all that needs only these."""
    host = next((s for s in program.steps if isinstance(s, Lookup) and s.out), None)
    loads = [s for s in program.steps if isinstance(s, LoadDense)]
    if host is None or not loads or program.num_dense > MOST_COLUMNS:
        return program
    found = _Found(wide_out=host.wide_out)
    for load in loads:
        _take(program, host, load, found)
    if len(found.slots) > MOST_SLOTS:
        return program
    slots, outs = zip(*found.slots, strict=True)
    made = replace(host, dense=slots, dense_out=outs, wide_out=found.wide_out)
    made = _with_fm(program, made, found)
    steps: list[Step] = []
    for step in program.steps:
        if step is host or step.name in found.gone:
            if made not in steps:
                steps.append(made)
        else:
            steps.append(found.head if found.head and isinstance(step, Head) else step)
    buffers = dict(program.buffers)
    if made.wide_out:
        buffers[made.wide_out.buffer] = 1
    return program.changed(steps=tuple(steps), buffers=buffers)


def _take(program: Program, host: Lookup, load: LoadDense, found: _Found) -> None:
    """The load, and its readers that a lookup can do."""
    found.gone.add(load.name)
    stays = program.output.overlaps(load.out)
    for step in program.steps:
        views = [view for view in step.reads() if view.overlaps(load.out)]
        if not views:
            continue
        taken = False
        if isinstance(step, (Outer, Affine)) and load.out.contains(step.x):
            slot = DenseSlot(_columns(load, step.x), *_numbers(step))
            taken = isinstance(step, Affine) or _is_row_of(program, host, step)
            if taken:
                found.slots.append((slot, step.out))
                found.gone.add(step.name)
        elif isinstance(step, Head):
            taken = _take_dots(program, host, load, views, found)
        stays = stays or not taken
    if stays:
        found.slots.append((DenseSlot(load.x), load.out))


def _columns(load: LoadDense, view: View) -> View:
    """Of the batch's dense features, those of a view of what is loaded."""
    return load.x.columns(view.start - load.out.start, view.width)


def _numbers(step: Outer | Affine) -> tuple[Weight, Weight | None]:
    return (step.weight, None) if isinstance(step, Outer) else (step.scale, step.shift)


def _is_row_of(program: Program, host: Lookup, step: Outer) -> bool:
    """Whether embeddings of dense features are columns of what the lookup writes, where it can
    write them as it does its own.
    """
    assert host.out is not None
    if step.out.buffer != host.out.buffer:
        return False
    dim, column = program.weights[step.weight].shape[1], step.out.start - host.out.start
    own = [n for slot in host.slots if slot.table for n in (slot.dim, slot.column)]
    width = next((w for w in WIDTHS if all(n % w == 0 for n in own)), 1)
    return dim % width == 0 and column % width == 0


def _take_dots(
    program: Program, host: Lookup, load: LoadDense, views: Sequence[View], found: _Found
) -> bool:
    """Dots of dense features become a part of the wide sum; whether that is all the head reads of
    the load. A wide sum that more than the head reads stays as it is.
    """
    head = found.head or next(step for step in program.steps if isinstance(step, Head))
    dots = [(x, w) for x, w in head.dots if load.out.contains(x)]
    own = View(f"{host.name}.wide", 0, 1)
    wide_out = found.wide_out or own
    readers = sum(view == host.wide_out for step in program.steps for view in step.reads())
    if not dots or (host.wide_out and (readers > 1 or host.wide_out not in head.scalars)):
        return False
    scalars = head.scalars if wide_out in head.scalars else (*head.scalars, wide_out)
    others = tuple(dot for dot in head.dots if dot not in dots)
    found.head, found.wide_out = replace(head, dots=others, scalars=scalars), wide_out
    found.slots += [(DenseSlot(_columns(load, x), wide=w), None) for x, w in dots]
    return len(views) == len(dots)


def _with_fm(program: Program, made: Lookup, found: _Found) -> Lookup:
    """The lookup with the FM term of its embeddings and those of the dense features, if the program
    has one of all of them or of some.
    """
    for step in program.steps:
        if not isinstance(step, FM) or made.fm_out or made.out is None:
            continue
        out = made.out
        slots = [_in_fm(slot, out.columns(slot.column, slot.dim), step) for slot in made.slots]
        pairs = zip(made.dense, made.dense_out, strict=True)
        dense = [_rows_in_fm(program, slot, to, step) for slot, to in pairs]
        width = sum(slot.dim for slot in slots if slot.in_fm)
        width += sum(
            to.width for s, to in zip(dense, made.dense_out, strict=True) if s.in_fm and to
        )
        if width == sum(x.width for x in step.xs):
            found.gone.add(step.name)
            made = replace(made, slots=tuple(slots), dense=tuple(dense), fm_out=step.out)
    return made


def _in_fm(slot: Slot, view: View, step: FM) -> Slot:
    inside = slot.table and slot.dim == step.dim and any(x.contains(view) for x in step.xs)
    return replace(slot, in_fm=True) if inside else slot


def _rows_in_fm(program: Program, slot: DenseSlot, view: View | None, step: FM) -> DenseSlot:
    if view is None or slot.weight is None or not any(x.contains(view) for x in step.xs):
        return slot
    shape = program.weights[slot.weight].shape
    return replace(slot, in_fm=True) if len(shape) == 2 and shape[1] == step.dim else slot
