"""Speed of a run, from the moments at which its files were complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel

STEADY_FROM, STEADY_TO = 0.2, 0.9
STEADY_TEXT = (
    "steady: rows of the files that were complete between the first 20% and 90% of all, over the "
    "time between"
)


class Event(NamedTuple):
    """A file of scores that is complete: since when (epoch seconds), its rows."""

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
    """The speed of a run from its command (`began`) to its end (`done`), epoch seconds."""
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
