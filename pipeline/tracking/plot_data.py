"""What the plots of a run show, as arrays: lanes of units, rates over time, bins, slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.tracking.drift import BIN_WIDTH, LOWEST_LOGIT, Counts
from pipeline.tracking.metrics import STAGES

Floats = NDArray[np.float64]
MIN_BINS, THROUGHPUT_BINS, SCORE_BINS = 12, 60, 60
UNITS_A_BIN = 4  # with fewer, the histogram shows the bins' edges rather than the throughput
SCORE_TICKS = (
    (0.0001, 0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999),
    (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 0.999),
    (0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, *(0.1 + 0.05 * n for n in range(17)), 0.97),
)
SLICES_A_COLUMN, MAX_SLICES = 8, 30


@dataclass
class UnitColumns:
    """The columns of one attempt's units that plots need, [U] each, in order of completion."""

    rows: Floats
    done: Floats  # seconds since the attempt's begin
    started: Floats  # seconds since the attempt's begin, by the scorers' clocks
    stages: dict[str, Floats]
    scorer: list[str]
    batches: Floats  # seconds of all batches, [any]

    @classmethod
    def read(cls, path: Path) -> UnitColumns:
        """Read a unit table, leaving out the units of earlier attempts."""
        return cls.of_table(pq.read_table(path))

    @classmethod
    def of_table(cls, table: pa.Table) -> UnitColumns:
        """The columns of a `unit_table`, without the units of earlier attempts."""
        began = float((table.schema.metadata or {}).get(b"began", b"0"))
        table = table.filter(pc.is_valid(table["done_s"])).sort_by("done_s")
        started = _floats(table, "started")
        if not began and len(started):  # a unit table of a version without it
            began = float(started.min())
        return cls(
            rows=(_floats(table, "scored") + _floats(table, "rejected")),
            done=_floats(table, "done_s"),
            started=started - began,
            stages={
                stage: _floats(table, f"{stage}_s")
                if f"{stage}_s" in table.column_names
                else np.zeros(table.num_rows)  # a unit table of a version without this stage
                for stage in STAGES
            },
            scorer=table["scorer"].to_pylist(),
            batches=pc.list_flatten(table["batch_s"]).to_numpy().astype(np.float64),
        )


class Lanes(NamedTuple):
    """Where units are drawn: lane [U] and begin [U], and names of lanes (empty: as above)."""

    lane: NDArray[np.int64]
    begin: Floats
    names: list[str]


def place_units(units: UnitColumns) -> Lanes:
    """Give each unit the first lane of its scorer that is free when it begins to be read."""
    before = units.stages["read"] + units.stages["encode"]
    begin = units.started - before
    end = begin + sum(units.stages.values())
    free: dict[str, list[float]] = {}  # scorer -> when each of its lanes is free
    own = np.zeros(len(begin), np.int64)
    for unit in np.argsort(begin, kind="stable"):
        times = free.setdefault(units.scorer[unit], [])
        lane = next((n for n, time in enumerate(times) if time <= begin[unit]), len(times))
        times[lane : lane + 1] = [end[unit]]
        own[unit] = lane
    scorers = sorted(free)
    counts = [len(free[scorer]) for scorer in scorers]
    first = dict(zip(scorers, np.cumsum([0, *counts[:-1]]).tolist(), strict=True))
    names = [
        name
        for scorer, count in zip(scorers, counts, strict=True)
        for name in [scorer, *[""] * (count - 1)]
    ]
    lane_of = own + np.array([first[scorer] for scorer in units.scorer], np.int64)
    return Lanes(lane_of, begin, names)


def rates_over_time(units: UnitColumns) -> tuple[Floats, Floats]:
    """Rows/s [N] of 12 to 60 slices of the time from the begin to the end, and edges [N + 1]."""
    num_bins = int(np.clip(len(units.done) // UNITS_A_BIN, MIN_BINS, THROUGHPUT_BINS))
    edges = np.linspace(0.0, max(float(units.done.max()), 1e-6), num_bins + 1)
    rows, _ = np.histogram(units.done, bins=edges, weights=units.rows)
    return rows / np.diff(edges), edges


def startup(units: UnitColumns) -> float:
    """Seconds until the first unit began to be scored: its reading is part of the start-up."""
    return max(0.0, float(units.started.min()))


def fitted_bins(histograms: Sequence[Counts]) -> tuple[Floats, list[Floats]]:
    """Edges [N + 1] in the logit and shares [N] of each histogram, in bins that fit the data.

    What lies beyond the first and the last thousandth of the rows joins the bins at the ends; in
    between, neighbours are joined so that the square root of the rows, at most 60, is the number
    of bins.
    """
    total = np.sum(histograms, axis=0)
    reached = np.cumsum(total) / total.sum()
    first = int(np.searchsorted(reached, 0.001))
    last = int(np.searchsorted(reached, 0.999))
    wanted = int(np.clip(total.sum() ** 0.5, MIN_BINS, SCORE_BINS))
    step = max(1, -(-(last - first + 1) // wanted))
    starts = np.arange(first, last + 1, step)
    edges = LOWEST_LOGIT + BIN_WIDTH * (np.r_[starts, starts[-1] + step] - 1.0)
    starts = np.r_[0, starts[1:]]
    return edges, [np.add.reduceat(one, starts) / max(one.sum(), 1) for one in histograms]


def score_ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Places on the axis of the logit, and the scores there: 0.1%, 1%, 50%, ..."""
    inside: list[float] = []
    for shares in SCORE_TICKS:  # the first that gives enough
        inside = [p for p in shares if low <= np.log(p / (1 - p)) <= high]
        if len(inside) >= 3:
            break
    else:
        inside = [float(1 / (1 + np.exp(-at))) for at in np.linspace(low, high, 5)]
    return [float(np.log(p / (1 - p))) for p in inside], [f"{100 * p:.3g}%" for p in inside]


def largest_slices(evaluation: Mapping[str, Any]) -> list[tuple[str, str, int, float]]:
    """Column, value, rows, AUC of the slices of most rows that have both classes."""
    return [
        (columns, ", ".join(one["values"]), one["rows"], one["auc"])
        for columns, found in evaluation["slices"].items()
        for one in [one for one in found if one["auc"] is not None][:SLICES_A_COLUMN]
    ][:MAX_SLICES]


def _floats(table: Any, name: str) -> Floats:
    return np.asarray(table[name].to_numpy(), np.float64)
