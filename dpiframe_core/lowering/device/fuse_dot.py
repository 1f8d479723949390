"""Passes for a device: the head's dot with a product's output becomes that product's epilogue.

The output is then not needed at all where the head was its only reader: the last layer of every
MLP and of a cross network is never written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dpiframe_core.lowering.device.fuse_cross import as_fused
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import FusedLinear, Head, Linear, MappedLinear, Step
from dpiframe_core.program.views import View


def fuse_dot(program: Program) -> Program:
    """Fuse each dot of the last Head with a view that one product makes; one dot a product."""
    head = program.steps[-1]
    if not isinstance(head, Head):
        return program
    steps, buffers = {s.name: s for s in program.steps}, dict(program.buffers)
    dots, scalars = [], list(head.scalars)
    for view, weight in head.dots:
        name = _maker(steps.values(), view)
        linear = steps.get(name or "")
        if not isinstance(linear, (Linear, FusedLinear)) or linear.out is None:
            dots.append((view, weight))
            continue
        fused, dot = as_fused(linear), View(f"{linear.name}.dot", 0, 1)
        buffers[dot.buffer] = 1
        start = view.start - linear.out.start
        steps[linear.name] = replace(fused, head_start=start, head=weight, head_out=dot)
        scalars.append(dot)
    steps[head.name] = replace(head, dots=tuple(dots), scalars=tuple(scalars))
    return _unread(program.changed(steps=tuple(steps.values()), buffers=buffers))


def fuse_mapped_dot(program: Program) -> Program:
    """The same for all of what a product with a compiled epilogue makes, when it is known that it
    stays one.
    """
    head = program.steps[-1]
    if not isinstance(head, Head):
        return program
    steps, buffers = {s.name: s for s in program.steps}, dict(program.buffers)
    dots, scalars = [], list(head.scalars)
    for view, weight in head.dots:
        makers = [s for s in steps.values() if view in s.writes()]
        maker = makers[0] if len(makers) == 1 else None
        if not isinstance(maker, MappedLinear) or maker.head:
            dots.append((view, weight))
            continue
        dot = View(f"{maker.name}.dot", 0, 1)
        buffers[dot.buffer] = 1
        steps[maker.name] = replace(maker, head=weight, head_out=dot)
        scalars.append(dot)
    steps[head.name] = replace(head, dots=tuple(dots), scalars=tuple(scalars))
    return _unread(program.changed(steps=tuple(steps.values()), buffers=buffers))


def _maker(steps: Iterable[Step], view: View) -> str | None:
    """The name of the product that makes the view and has no dot yet."""
    for step in steps:
        if not isinstance(step, (Linear, FusedLinear)) or step.out is None:
            continue
        if isinstance(step, FusedLinear) and step.head is not None:
            continue
        if step.out.contains(view):
            return step.name
    return None


def _unread(program: Program) -> Program:
    """Products whose output nothing reads any more do not store it."""
    steps = list[Step]()
    for step in program.steps:
        if (
            isinstance(step, FusedLinear)
            and step.head
            and step.out
            and not program.readers(step.out)
        ):
            step = replace(step, out=None)
        elif isinstance(step, MappedLinear) and step.head and not program.readers(step.out):
            step = replace(step, stored=False)
        steps.append(step)
    return program.changed(steps=tuple(steps))
