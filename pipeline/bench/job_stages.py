"""Where the time of a run goes, stage by stage, from the records of its units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from pipeline.publishing.records import UnitRecord
from pipeline.tracking.metrics import STAGES

IN_READ_TASKS = {"read", "encode"}
BUSY = 0.75  # a stage is called the limit from this share of its places on


class Stage(BaseModel):
    """A stage: its seconds, and how many units are in it at a time on average.

    `busy` is over the steady window; `places` is how many could be: a scorer has one place for a
    unit in each of its stages, read tasks have one a core.
    """

    name: str
    where: Literal["read tasks", "scorers"]
    seconds_per_million: float
    busy: float
    places: int

    @property
    def share(self) -> float:
        """How full the stage is, 0 to 1."""
        return self.busy / self.places


def stages(units: Sequence[UnitRecord], window: tuple[float, float], cores: int) -> list[Stage]:
    """All stages that took time. A unit counts in the window by the moment its scorer began."""
    inside = [u for u in units if window[0] <= u.started < window[1]]
    scorers = len({unit.scorer for unit in units})
    million = sum(unit.rows for unit in units) / 1e6
    found = []
    for name in STAGES:
        total = sum(getattr(unit, f"{name}_s") for unit in units)
        in_window = sum(getattr(unit, f"{name}_s") for unit in inside)
        in_tasks = name in IN_READ_TASKS
        if total:
            stage = Stage(
                name=name,
                where="read tasks" if in_tasks else "scorers",
                seconds_per_million=total / million,
                busy=in_window / (window[1] - window[0]),
                places=cores if in_tasks else scorers,
            )
            found.append(stage)
    return found


def limit(found: Sequence[Stage]) -> str:
    """The stage that limits the run, in a sentence; or that none does."""
    if not found:
        return "no stage recorded any time"
    reading = sum(stage.share for stage in found if stage.where == "read tasks")
    if reading >= BUSY:
        return f"read tasks limit: they fill {reading:.0%} of the cores"
    fullest = max(found, key=lambda stage: stage.share)
    if fullest.share >= BUSY:
        return f"{fullest.name} limits: it takes {fullest.share:.0%} of the {fullest.where}' time"
    scoring = sum(stage.share for stage in found if stage.where == "scorers")
    if scoring >= BUSY:
        return (
            f"the scorers limit: their stages one after another take {scoring:.0%} of their time, "
            f"{fullest.name} the most"
        )
    return (
        f"no stage is full (read tasks {reading:.0%} of the cores, scorers {scoring:.0%} of their "
        "time): the rest is what lies between the stages"
    )
