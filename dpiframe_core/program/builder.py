"""ProgramBuilder: where modules append their steps; the first, plain form of a program."""

from __future__ import annotations

from dpiframe_core.program.steps import Step
from dpiframe_core.program.views import View


class ProgramBuilder:
    """Collects buffers and steps in order."""

    def __init__(self) -> None:
        self.buffers: dict[str, int] = {}
        self.steps: list[Step] = []

    def buffer(self, name: str, width: int) -> View:
        """A new buffer, as a view of all its columns."""
        assert name not in self.buffers, f"two buffers are named {name}"
        self.buffers[name] = width
        return View(name, 0, width)

    def add(self, step: Step) -> View:
        """Append a step; returns what it writes."""
        self.steps.append(step)
        (written,) = step.writes()
        return written
