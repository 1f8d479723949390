"""Pass for a device: one step turns the dense features [N, B] of the batch to [B, N]."""

from __future__ import annotations

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import LoadDense
from dpiframe_core.program.views import DENSE, View

ROWS = "dense.rows"


def load_dense(program: Program) -> Program:
    """Put a LoadDense first; all other steps read its output."""
    if not program.num_dense or not any(
        v.buffer == DENSE for s in program.steps for v in s.reads()
    ):
        return program

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
