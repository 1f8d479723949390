"""The plots of a run, drawn with matplotlib's Agg by the sender, not by the job's process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from pipeline.tracking.drift import Counts
from pipeline.tracking.metrics import STAGES
from pipeline.tracking.plot_data import (
    Floats,
    UnitColumns,
    fitted_bins,
    largest_slices,
    place_units,
    rates_over_time,
    score_ticks,
    startup,
)

SIZE = (8.0, 4.5)
MAX_LANES, LANES_THAT_FIT = 64, 24  # of the timeline
MAX_UNITS = 2000  # bars of the timeline, each with one part a stage
COLOURS = ("#4c78a8", "#9ecae9", "#f58518", "#ffbf79", "#54a24b", "#e45756", "#b279a2")


def draw_all(
    folder: Path,
    units: UnitColumns | None,
    counts: Counts | None,
    baseline: Counts | None,
    evaluation: Mapping[str, Any] | None = None,
) -> None:
    """Draw every figure that has data into `folder`; `evaluation`: an `_evaluation.json`."""
    figures: dict[str, Figure] = {}
    if units is not None and len(units.rows):
        figures["stage_timeline"] = stage_timeline(units)
        figures["throughput"] = throughput(units)
        if len(units.batches):
            figures["batch_latency"] = batch_latency(units.batches)
    if counts is not None and counts.sum():
        figures["score_histogram"] = score_histogram(counts, baseline)
    if evaluation is not None and evaluation["reliability"]:
        figures["calibration"] = calibration(evaluation)
        if largest_slices(evaluation):
            figures["slices"] = slices(evaluation)
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
    """Units over time: a bar a unit, of its stages, in a lane of its scorer that is free.

    A unit is read and encoded right before its start, by the scorer itself or by other processes.
    """
    lanes = place_units(units)
    cut = len(units.rows) > MAX_UNITS or len(lanes.names) > MAX_LANES
    title = f"The first units, stage by stage ({len(units.rows):,} in all)" if cut else "Units"
    figure, axes = _axes(title, "seconds from the job's begin", "scorer, a lane a unit at a time")
    if len(lanes.names) > LANES_THAT_FIT:
        figure.set_size_inches(SIZE[0], SIZE[1] * len(lanes.names) / LANES_THAT_FIT)
    shown = np.flatnonzero(lanes.lane < MAX_LANES)[:MAX_UNITS]
    left = lanes.begin[shown]
    for stage, colour in zip(STAGES, COLOURS, strict=True):
        width = units.stages[stage][shown]
        if units.stages[stage].sum() > 0:
            label = f"{stage.replace('_', ' ')} {units.stages[stage].sum():.1f} s"
            axes.barh(lanes.lane[shown], width, left=left, color=colour, height=0.8, label=label)
        left = left + width
    _mark_startup(axes, units)
    names = lanes.names[:MAX_LANES]
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(left=min(0.0, float(lanes.begin.min())))
    figure.legend(ncols=4, fontsize=8, loc="outside lower center")
    return figure


def throughput(units: UnitColumns) -> Figure:
    """Rows a second over time: rows of the units that were done in each slice; start-up marked."""
    figure, axes = _axes("Throughput", "seconds from the job's begin", "rows/s")
    rates, edges = rates_over_time(units)
    axes.stairs(rates, edges, fill=True, color=COLOURS[0])
    _mark_startup(axes, units)
    mean = units.rows.sum() / edges[-1]
    axes.axhline(mean, color="black", linestyle="--", label=f"mean {mean:,.0f} rows/s")
    axes.set_xlim(0, edges[-1])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend()
    return figure


def _mark_startup(axes: Any, units: UnitColumns) -> None:
    seconds = startup(units)
    if seconds > 0:
        axes.axvspan(0, seconds, color="0.9", zorder=0, label=f"start-up {seconds:.1f} s")


def score_histogram(counts: Counts, baseline: Counts | None) -> Figure:
    """Rows by score, with the baseline's outline where there is one.

    Bins fit the data: see `fitted_bins`. The axis of the logit is marked with scores.
    """
    figure, axes = _axes("Scores", "score (the axis is of its logit)", "share of rows")
    pair = [counts] if baseline is None or not baseline.sum() else [counts, baseline]
    edges, shares = fitted_bins(pair)
    axes.stairs(shares[0], edges, fill=True, color=COLOURS[0], label="this run")
    if len(shares) > 1:
        axes.stairs(shares[1], edges, color="black", label="baseline")
        axes.legend()
    ticks, labels = score_ticks(float(edges[0]), float(edges[-1]))
    axes.set_xticks(ticks, labels)
    axes.set_xlim(edges[0], edges[-1])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


def calibration(evaluation: Mapping[str, Any]) -> Figure:
    """Share of clicks against mean score, a point a bin of the reliability curve."""
    figure, axes = _axes("Calibration", "mean score", "share of clicks")
    curve = np.array([one[1:] for one in evaluation["reliability"]], np.float64)
    low, high = max(curve[curve > 0].min(), 1e-6), curve.max()
    axes.plot([low, high], [low, high], color="black", linewidth=1, label="as it should be")
    axes.plot(curve[:, 0], curve[:, 1], "o-", color=COLOURS[0], label="this run")
    axes.set(xscale="log", yscale="log")
    axes.legend()
    return figure


def slices(evaluation: Mapping[str, Any]) -> Figure:
    """AUC of the largest slices of each column."""
    rows = largest_slices(evaluation)
    figure, axes = _axes("AUC by slice", "AUC", "")
    names = [f"{name} = {value} ({count:,} rows)" for name, value, count, _ in rows]
    figure.set_size_inches(SIZE[0], max(2.5, 0.3 * len(rows) + 1.5))
    axes.plot([auc for *_, auc in rows], range(len(rows)), "o", color=COLOURS[0])
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.invert_yaxis()
    whole = evaluation["quality"]["auc"]
    if whole is not None:
        axes.axvline(whole, color="black", linestyle="--", label=f"all rows {whole:.4f}")
        axes.legend()
    return figure


def _axes(title: str, x: str, y: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes
