"""Passes for a device: the head's dot with a product's output becomes that product's epilogue.

The output is then not needed at all where the head was its only reader: the last layer of every
MLP and of a cross network is never written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from dpiframe_core.lowering.device.fuse_cross import as_fused
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import FusedLinear, Head, Linear, MappedLinear, Step
from dpiframe_core.program.views import View, Weight

Dotted = FusedLinear | MappedLinear
# Of the steps, a view and the weight of its dot: the maker with the dot, None where there is none.
WithDot = Callable[[Iterable[Step], View, Weight], Dotted | None]


def fuse_dot(program: Program) -> Program:
    """Fuse each dot of the last Head with a view that one product makes; one dot a product."""

    def with_dot(steps: Iterable[Step], view: View, head: Weight) -> Dotted | None:
        linear = _maker(steps, view)
        if linear is None or linear.out is None:
            return None
        start = view.start - linear.out.start
        return replace(as_fused(linear), head_start=start, head=head)

    return _fused(program, with_dot)


def fuse_mapped_dot(program: Program) -> Program:
    """The same for all of what a product with a compiled epilogue makes, when it is known that it
    stays one.
    """

    def with_dot(steps: Iterable[Step], view: View, head: Weight) -> Dotted | None:
        makers = [step for step in steps if view in step.writes()]
        if len(makers) != 1 or not isinstance(makers[0], MappedLinear) or makers[0].head:
            return None
        return replace(makers[0], head=head)

    return _fused(program, with_dot)


def _fused(program: Program, with_dot: WithDot) -> Program:
    """The program with what `with_dot` makes of the makers of the head's dots."""
    head = program.steps[-1]
    if not isinstance(head, Head):
        return program
    steps, buffers = {s.name: s for s in program.steps}, dict(program.buffers)
    dots, scalars = [], list(head.scalars)
    for view, weight in head.dots:
        made = with_dot(steps.values(), view, weight)
        if made is None:
            dots.append((view, weight))
            continue
        dot = View(f"{made.name}.dot", 0, 1)
        buffers[dot.buffer] = 1
        steps[made.name] = replace(made, head_out=dot)
        scalars.append(dot)
    steps[head.name] = replace(head, dots=tuple(dots), scalars=tuple(scalars))
    return _unread(program.changed(steps=tuple(steps.values()), buffers=buffers))


def _maker(steps: Iterable[Step], view: View) -> Linear | FusedLinear | None:
    """The product that makes the view and has no dot yet."""
    for step in steps:
        if not isinstance(step, (Linear, FusedLinear)) or step.out is None:
            continue
        if isinstance(step, FusedLinear) and step.head is not None:
            continue
        if step.out.contains(view):
            return step
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
