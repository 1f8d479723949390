"""What passes ask of a program: who makes a view, who reads it."""

from __future__ import annotations

from dpiframe_core.program.steps import Program, Step, View


def producers(program: Program) -> dict[View, Step]:
    """The step that writes exactly this view."""
    return {view: step for step in program.steps for view in step.writes()}


def readers(program: Program, view: View) -> list[Step]:
    """Steps that read any column of the view."""
    return [s for s in program.steps if any(r.overlaps(view) for r in s.reads())]


def only_reader(program: Program, view: View) -> Step | None:
    """The one step that reads the view; None where there are more, or it is the output."""
    found = readers(program, view)
    return found[0] if len(found) == 1 and not program.output.overlaps(view) else None
