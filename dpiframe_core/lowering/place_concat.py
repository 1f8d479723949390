"""Pass: a step whose output a concat would copy writes to the concat's buffer instead."""

from __future__ import annotations

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Copy
from dpiframe_core.program.views import DENSE, View


def place_concat(program: Program) -> Program:
    """Remove every Copy of a whole buffer by making that buffer a view of the target."""
    for copy in [s for s in program.steps if isinstance(s, Copy)]:
        if copy in program.steps:
            program = _placed(program, copy)
    return program


def _placed(program: Program, copy: Copy) -> Program:
    source, target = copy.x.buffer, copy.out
    whole = copy.x == View(source, 0, program.buffers[source])
    if source in (DENSE, target.buffer, program.output.buffer) or not whole:
        return program

    def place(view: View) -> View:
        if view.buffer != source:
            return view
        return View(target.buffer, target.start + view.start, view.width)

    rest = [s.map_views(place) for s in program.steps if s != copy]
    return program.changed(steps=tuple(rest))
