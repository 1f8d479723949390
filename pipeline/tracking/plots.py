"""The plots of a run, drawn with matplotlib's Agg by the sender, not by the job's process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pipeline.tracking.drift import BIN_WIDTH, LOWEST_LOGIT, NUM_BINS, Counts
from pipeline.tracking.metrics import STAGES

Floats = NDArray[np.float64]
SIZE = (8.0, 4.5)
MAX_SCORERS = 32  # lines of the timeline
MAX_UNITS = 2000  # bars of the timeline, each with one part a stage
MIN_BINS, THROUGHPUT_BINS = 12, 60
UNITS_A_BIN = 4  # with fewer, the histogram shows the bins' edges rather than the throughput
COLOURS = ("#4c78a8", "#f58518", "#e45756", "#54a24b", "#ffbf79", "#b279a2")


@dataclass
class UnitColumns:
    """The columns of one attempt's units that plots need, [U] each, in order of completion."""

    rows: Floats
    done: Floats  # seconds since the attempt's start
    started: Floats  # epoch seconds
    stages: dict[str, Floats]
    scorer: list[str]
    batches: Floats  # seconds of all batches, [any]

    @classmethod
    def read(cls, path: Path) -> UnitColumns:
        """Read a unit table, leaving out the units of earlier attempts."""
        table = pq.read_table(path)
        table = table.filter(pc.is_valid(table["done_s"])).sort_by("done_s")
        return cls(
            rows=(_floats(table, "scored") + _floats(table, "rejected")),
            done=_floats(table, "done_s"),
            started=_floats(table, "started"),
            stages={
                stage: _floats(table, f"{stage}_s")
                if f"{stage}_s" in table.column_names
                else np.zeros(table.num_rows)  # a unit table of a version without this stage
                for stage in STAGES
            },
            scorer=table["scorer"].to_pylist(),
            batches=pc.list_flatten(table["batch_s"]).to_numpy().astype(np.float64),
        )


def draw_all(
    folder: Path, units: UnitColumns | None, counts: Counts | None, baseline: Counts | None
) -> None:
    """Draw every figure that has data into `folder`."""
    figures: dict[str, Figure] = {}
    if units is not None and len(units.rows):
        figures["stage_timeline"] = stage_timeline(units)
        figures["throughput"] = throughput(units)
        if len(units.batches):
            figures["batch_latency"] = batch_latency(units.batches)
    if counts is not None and counts.sum():
        figures["score_histogram"] = score_histogram(counts, baseline)
    for name, figure in figures.items():
        folder.mkdir(exist_ok=True)
        figure.savefig(folder / f"{name}.png", dpi=110)


def batch_latency(batches: Floats) -> Figure:
    """Distribution of the batches' milliseconds, with the percentiles that the metrics give."""
    figure, axes = _axes("Batch latency", "milliseconds of one engine batch", "batches")
    milliseconds = batches * 1e3
    axes.hist(milliseconds, bins=60, color=COLOURS[0])
    for percent, style in ((50, "-"), (95, "--"), (99, ":")):
        value = float(np.percentile(milliseconds, percent))
        axes.axvline(value, color="black", linestyle=style, label=f"p{percent} {value:.2f} ms")
    axes.legend()
    return figure


def stage_timeline(units: UnitColumns) -> Figure:
    """Each scorer's units over time: a bar per unit, which stacks its stages from its start.

    Reading appears in the legend only: other processes read a unit before its start.
    """
    cut = len(units.rows) > MAX_UNITS
    title = f"Stages of the first {MAX_UNITS} units" if cut else "Stages of each unit"
    figure, axes = _axes(title, "seconds from the first unit's start", "scorer")
    scorers = sorted(set(units.scorer))[:MAX_SCORERS]
    lines = {scorer: line for line, scorer in enumerate(scorers)}
    begin = units.started - units.started.min()
    shown = [u for u, scorer in enumerate(units.scorer) if scorer in lines][:MAX_UNITS]
    heights = [lines[units.scorer[u]] for u in shown]
    left = begin[shown]
    axes.plot([], [], " ", label=f"read {units.stages['read'].sum():.1f} s")
    for stage, colour in zip(STAGES[1:], COLOURS, strict=True):
        width = units.stages[stage][shown]
        if width.sum() > 0:
            label = f"{stage} {units.stages[stage].sum():.1f} s"
            axes.barh(heights, width, left=left, color=colour, height=0.7, label=label)
            left = left + width
    axes.set_yticks(range(len(scorers)), scorers, fontsize=7)
    axes.legend(ncols=len(STAGES), fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    return figure


def throughput(units: UnitColumns) -> Figure:
    """Rows a second over time: rows of the units that were done in each of 12 to 60 slices."""
    figure, axes = _axes("Throughput", "seconds from the job's start", "rows/s")
    num_bins = int(np.clip(len(units.done) // UNITS_A_BIN, MIN_BINS, THROUGHPUT_BINS))
    edges = np.linspace(0.0, max(float(units.done.max()), 1e-6), num_bins + 1)
    rows, _ = np.histogram(units.done, bins=edges, weights=units.rows)
    axes.stairs(rows / np.diff(edges), edges, fill=True, color=COLOURS[0])
    axes.axhline(units.rows.sum() / edges[-1], color="black", linestyle="--", label="mean")
    axes.legend()
    return figure


def score_histogram(counts: Counts, baseline: Counts | None) -> Figure:
    """Share of the rows in each bin of the logit, with the baseline's outline where there is one.

    The two open bins at the ends are drawn as wide as the others.
    """
    figure, axes = _axes("Scores", "logit of the score", "share of rows")
    edges = LOWEST_LOGIT + BIN_WIDTH * np.arange(-1, NUM_BINS)
    axes.stairs(counts / counts.sum(), edges, fill=True, color=COLOURS[0], label="this run")
    drawn = counts > 0
    if baseline is not None and baseline.sum():
        axes.stairs(baseline / baseline.sum(), edges, color="black", label="baseline")
        drawn = drawn | (baseline > 0)
        axes.legend()
    used = np.flatnonzero(drawn)
    axes.set_xlim(edges[used[0]] - BIN_WIDTH, edges[used[-1] + 1] + BIN_WIDTH)
    return figure


def _axes(title: str, x: str, y: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes


def _floats(table: Any, name: str) -> Floats:
    return np.asarray(table[name].to_numpy(), np.float64)
