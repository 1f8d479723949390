"""Where the time of a run goes, stage by stage, from the records of its units."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from pipeline.publishing.records import UnitRecord
from pipeline.tracking.metrics import STAGES

# A scorer's engine scores one unit at a time; several may be copied to its GPU and unpacked there.
IN_ENGINE = {"copy_in", "unpack", "score", "copy_out"}
FULL = 0.75  # from this share of its places on a stage is called the limit
NOTICED = 0.5  # cores


class Stage(BaseModel):
    """A stage: its seconds, and how many units are in it at a time on average.

    `busy` is over the steady window; `places` is how many could be: engines, or cores.
    """

    name: str
    seconds_per_million: float
    busy: float
    places: int

    @property
    def where(self) -> str:
        """What its places are."""
        return "engines" if self.name in IN_ENGINE else "cores"

    @property
    def share(self) -> float:
        """How full the stage is, 0 to 1."""
        return self.busy / self.places


def stages(
    units: Sequence[UnitRecord],
    published: Sequence[float],
    window: tuple[float, float],
    cores: int,
) -> list[Stage]:
    """All stages that took time. A unit counts in the window when it was `published` in it."""
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


def limit(
    found: Sequence[Stage], busy_cores: float | None, cores: int, stolen: float | None = None
) -> str:
    """What limits a run in its steady state, in a sentence; or that nothing is full.

    `busy_cores`: those of `cores` that its processes kept busy, None where that is not known;
    `stolen`: those that were not there, as the machine's host ran something else on them.
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
