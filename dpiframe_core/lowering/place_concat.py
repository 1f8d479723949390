"""Pass: a step whose output a concat would copy writes to the concat's buffer instead."""

from __future__ import annotations

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Copy
from dpiframe_core.program.views import DENSE, View


def place_concat(program: Program) -> Program:
    """Remove every Copy of a whole buffer by making that buffer a view of the target."""
    placed: dict[str, View] = {}  # targets by source
    gone = set()
    for step in program.steps:
        if isinstance(step, Copy) and _may_go(program, step, placed):
            placed[step.x.buffer] = step.out
            gone.add(step.name)
    if not placed:
        return program

    def place(view: View) -> View:
        while target := placed.get(view.buffer):  # a concat may be a part of another one
            view = View(target.buffer, target.start + view.start, view.width)
        return view

    rest = tuple(step.map_views(place) for step in program.steps if step.name not in gone)
    return program.changed(steps=rest)


def _may_go(program: Program, copy: Copy, placed: dict[str, View]) -> bool:
    """Whether the source may be its target. What was placed itself is there, and stays a copy."""
    source, target = copy.x.buffer, copy.out.buffer
    whole = copy.x == View(source, 0, program.buffers[source])
    fixed = (DENSE, target, program.output.buffer)
    return whole and source not in fixed and source not in placed and target not in placed
