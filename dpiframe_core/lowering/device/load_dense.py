"""Pass for a device: a step turns the dense features [N, B] of the batch to [B, N].

Where they are only copied into concats, a step for each of these writes them there at once. Where
products take them as they are, in 16 bits it may be, and generic operations too, which may compute
ids of them, the products have rows of their own: float32 holds the others.
"""

from __future__ import annotations

from collections.abc import Collection

from dpiframe_core.program.program import Program, activations
from dpiframe_core.program.steps import Copy, LoadDense, Step, TensorStep
from dpiframe_core.program.views import DENSE, View

ROWS, FACTORS = "dense.rows", "dense.factors"


def load_dense(program: Program) -> Program:
    """Put a LoadDense first; all other steps read its output, or there is one for each Copy."""
    readers = [s for s in program.steps if _reads_dense(s.reads())]
    if not program.num_dense or not readers:
        return program
    whole = View(DENSE, 0, program.num_dense)
    if program.output.buffer != DENSE and all(
        isinstance(s, Copy) and s.x == whole and s.out.width == whole.width for s in readers
    ):
        return program.changed(steps=tuple(_loading(s) for s in program.steps))

    products = [s for s in readers if _reads_dense(activations(s))]
    apart = products if any(isinstance(s, TensorStep) for s in readers) else []

    def place(view: View, buffer: str = ROWS) -> View:
        return View(buffer, view.start, view.width) if view.buffer == DENSE else view

    def factor(view: View) -> View:
        return place(view, FACTORS)

    loads = [
        LoadDense("load_dense", whole, place(whole)),
        LoadDense("load_dense_factors", whole, factor(whole)),
    ]
    steps = [s.map_views(factor if s in apart else place) for s in program.steps]
    return program.changed(
        steps=(*loads, *steps),
        buffers={**program.buffers, ROWS: whole.width, FACTORS: whole.width},
        output=place(program.output),
    )


def _reads_dense(views: Collection[View]) -> bool:
    return any(view.buffer == DENSE for view in views)


def _loading(step: Step) -> Step:
    if isinstance(step, Copy) and step.x.buffer == DENSE:
        return LoadDense(step.name, step.x, step.out)
    return step
