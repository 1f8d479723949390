"""Steps of a program that one kernel runs in batches of some sizes, and one by one in others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from dpiframe_core.program.steps import Step
from dpiframe_core.program.views import Bounds, State, View, Weight


@dataclass(frozen=True)
class Parts(Step):
    """The steps, and the numbers of rows of the batches that run in one kernel."""

    parts: tuple[Step, ...]
    rows: tuple[int, ...]

    def leaves(self) -> tuple[Step, ...]:
        return tuple(leaf for step in self.parts for leaf in step.leaves())

    def run(self, state: State) -> None:
        for step in self.parts:
            step.run(state)

    def bound(self, bounds: Bounds) -> None:
        for step in self.parts:
            step.bound(bounds)

    def writes(self) -> list[View]:
        return list(dict.fromkeys(v for step in self.parts for v in step.writes()))

    def reads(self) -> list[View]:
        written = self.writes()
        read = [v for step in self.parts for v in step.reads()]
        return [v for v in dict.fromkeys(read) if common(written, v) < v.width]

    def weight_names(self) -> list[Weight]:
        return [w for step in self.parts for w in step.weight_names()]

    def map_views(self, change: Callable[[View], View]) -> Self:
        raise NotImplementedError("steps are put together last")


def common(views: list[View], view: View) -> int:
    """Columns of a view that the views, which have none in common, have too."""
    return sum(
        max(0, min(v.start + v.width, view.start + view.width) - max(v.start, view.start))
        for v in views
        if v.buffer == view.buffer
    )
