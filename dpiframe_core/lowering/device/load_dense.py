"""Pass for a device: a step turns the dense features [N, B] of the batch to [B, N].

Where they are only copied into concats, a step for each of these writes them there at once.
"""

from __future__ import annotations

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Copy, LoadDense, Step
from dpiframe_core.program.views import DENSE, View

ROWS = "dense.rows"


def load_dense(program: Program) -> Program:
    """Put a LoadDense first; all other steps read its output, or there is one for each Copy."""
    readers = [s for s in program.steps if any(v.buffer == DENSE for v in s.reads())]
    if not program.num_dense or not readers:
        return program
    whole = View(DENSE, 0, program.num_dense)
    if program.output.buffer != DENSE and all(
        isinstance(s, Copy) and s.x == whole and s.out.width == whole.width for s in readers
    ):
        return program.changed(steps=tuple(_loading(s) for s in program.steps))

    def place(view: View) -> View:
        return View(ROWS, view.start, view.width) if view.buffer == DENSE else view

    width = program.num_dense
    load = LoadDense("load_dense", View(DENSE, 0, width), View(ROWS, 0, width))
    steps = (load, *(step.map_views(place) for step in program.steps))
    return program.changed(
        steps=steps,
        buffers={**program.buffers, ROWS: width},
        output=place(program.output),
    )


def _loading(step: Step) -> Step:
    if isinstance(step, Copy) and step.x.buffer == DENSE:
        return LoadDense(step.name, step.x, step.out)
    return step
