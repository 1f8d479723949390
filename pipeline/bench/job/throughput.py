"""Throughput of a run, its time by stage, and its bottleneck.

Rates come from the times at which files of scores appeared, stages from the records of units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel

from pipeline.publishing.records import UnitRecord
from pipeline.tracking.metrics import STAGES

# A scorer's engine scores one unit at a time; its GPU may copy and unpack several meanwhile.
IN_ENGINE = {"copy_in", "unpack", "score", "copy_out"}
FULL = 0.75  # a resource that is busy for this share of the time is the bottleneck
NOTICED = 0.5  # stolen cores that are worth a word
STEADY_FROM, STEADY_TO = 0.2, 0.9
STEADY_TEXT = (
    "steady: rows of the files that were complete between the first 20% and 90% of all, over the "
    "time between"
)


class Event(NamedTuple):
    """A file of scores was published at `time` (epoch seconds)."""

    time: float
    rows: int


class Rates(BaseModel):
    """Seconds count from the command. Steady: see STEADY_TEXT; None with too few files."""

    seconds: float  # to _SUCCESS
    first_s: float  # to the first file of scores
    tail_s: float  # from the last file of scores to _SUCCESS
    rows_per_s: float
    steady_rows_per_s: float | None
    steady_window: tuple[float, float]  # epoch seconds; of the whole run where there is none


def rates(events: Sequence[Event], began: float, done: float) -> Rates:
    """The rates of a run from its command (`began`) to its end (`done`), epoch seconds."""
    ordered = sorted(events)
    rows = sum(event.rows for event in ordered)
    first, last = round(STEADY_FROM * len(ordered)), round(STEADY_TO * len(ordered))
    window, steady = (began, done), None
    if first >= 1 and ordered[last - 1].time > ordered[first - 1].time:
        window = (ordered[first - 1].time, ordered[last - 1].time)
        steady = sum(event.rows for event in ordered[first:last]) / (window[1] - window[0])
    return Rates(
        seconds=done - began,
        first_s=ordered[0].time - began,
        tail_s=done - ordered[-1].time,
        rows_per_s=rows / (done - began),
        steady_rows_per_s=steady,
        steady_window=window,
    )


class Stage(BaseModel):
    """A stage: its seconds, and its concurrency.

    `busy`: units in it at a time, on average over the steady window; `places`: how many could be,
    which is the number of engines or of cores.
    """

    name: str
    seconds_per_million: float
    busy: float
    places: int

    @property
    def where(self) -> str:
        """The resource that the stage occupies."""
        return "engines" if self.name in IN_ENGINE else "cores"

    @property
    def share(self) -> float:
        """Utilisation of the resource by this stage, 0 to 1."""
        return self.busy / self.places


def stages(
    units: Sequence[UnitRecord],
    published: Sequence[float],
    window: tuple[float, float],
    cores: int,
) -> list[Stage]:
    """All stages that took time; units `published` in the window count towards `busy`."""
    timed = zip(units, published, strict=True)
    inside = [unit for unit, moment in timed if window[0] < moment <= window[1]]
    scorers = len({unit.scorer for unit in units})
    million = sum(unit.rows for unit in units) / 1e6
    found = []
    for name in STAGES:
        total = sum(getattr(unit, f"{name}_s") for unit in units)
        if total:
            stage = Stage(
                name=name,
                seconds_per_million=total / million,
                busy=sum(getattr(unit, f"{name}_s") for unit in inside) / (window[1] - window[0]),
                places=scorers if name in IN_ENGINE else cores,
            )
            found.append(stage)
    return found


def bottleneck(
    found: Sequence[Stage], busy_cores: float | None, cores: int, stolen: float | None = None
) -> str:
    """The bottleneck of a run's steady state in a sentence, or that nothing is full.

    `busy_cores`: of `cores`, those that its processes kept busy, None where unknown; `stolen`:
    cores that the machine's host gave to others.
    """
    engines = next((stage for stage in found if stage.name == "score"), None)
    others = [stage for stage in found if stage.where == "cores"]
    facts = []
    if engines is not None:
        facts.append(f"engines {engines.share:.0%} of the time at work")
    if busy_cores is not None:
        most = max(others, key=lambda stage: stage.seconds_per_million, default=None)
        longest = f", {most.name} the longest stage there" if most else ""
        facts.append(f"{busy_cores:.1f} of {cores} cores busy{longest}")
    if stolen is not None and stolen >= NOTICED:
        facts.append(f"the host took {stolen:.1f} cores away")
    full = []
    if engines is not None and engines.share >= FULL:
        full.append("the engines")
    if busy_cores is not None and busy_cores + (stolen or 0) >= FULL * cores:
        full.append("the cores")
    verdict = f"{' and '.join(full)} limit" if full else "nothing is full"
    return f"{verdict}: {'; '.join(facts)}" if facts else verdict
