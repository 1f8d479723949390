"""Charts as SVG, without scripts; colours come from the page's style, for light and dark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

import numpy as np

from pipeline.tracking.drift import Counts
from pipeline.tracking.metrics import STAGES
from pipeline.tracking.plot_data import (
    Floats,
    UnitColumns,
    fitted_bins,
    place_units,
    rates_over_time,
    score_ticks,
    startup,
)

HALF, WIDE = 490.0, 1000.0  # of a card of the page, so that texts have one size
HEIGHT = 260.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 12.0, 12.0, 42.0
LANE = 15.0
MAX_LANES, MAX_UNITS = 48, 1500
LATENCY_BINS = 40

Scale = Callable[[float], float]
Ticks = Sequence[tuple[float, str]]


class Chart:
    """An SVG picture with two axes; values are given in the data's units."""

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        height: float = HEIGHT,
        width: float = HALF,
    ) -> None:
        self.x, self.y, self.height, self.width = _wide(x), _wide(y), height, width
        self._parts: list[str] = []

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point of the data lies in the picture."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        bottom = self.height - BOTTOM
        return LEFT + across * (self.width - LEFT - RIGHT), bottom - up * (bottom - TOP)

    def axes(self, x_ticks: Ticks, y_ticks: Ticks, x_label: str, y_label: str = "") -> None:
        """Grid lines with their labels, and what the axes mean."""
        for value, text in y_ticks:
            x, y = self.at(self.x[0], value)
            self._line("grid", x, y, self.width - RIGHT, y)
            self.text(x - 7, y + 4, text, "end")
        for value, text in x_ticks:
            x, y = self.at(value, self.y[0])
            self._line("tick", x, y, x, y + 4)
            self.text(x, y + 17, text, "middle")
        self.text((LEFT + self.width - RIGHT) / 2, self.height - 5, x_label, "middle", "label")
        if y_label:
            self.text(LEFT, TOP - 1, y_label, "start", "label")

    def rectangle(
        self, style: str, x: tuple[float, float], y: tuple[float, float], title: str = ""
    ) -> None:
        """A filled rectangle; the title is shown where the mouse rests."""
        left, top = self.at(x[0], y[1])
        right, bottom = self.at(x[1], y[0])
        size = f'width="{max(right - left, 0.4):.2f}" height="{max(bottom - top, 0):.2f}"'
        inner = f"<title>{escape(title)}</title>" if title else ""
        self._parts.append(
            f'<rect class="{style}" x="{left:.2f}" y="{top:.2f}" {size}>{inner}</rect>'
        )

    def steps(self, style: str, edges: Floats, values: Floats) -> None:
        """The outline of a histogram."""
        points = [self.at(float(edges[0]), 0.0)]
        for low, high, value in zip(edges[:-1], edges[1:], values, strict=True):
            points += [self.at(float(low), float(value)), self.at(float(high), float(value))]
        self._path(style, [*points, self.at(float(edges[-1]), 0.0)])

    def line(self, style: str, points: Sequence[tuple[float, float]]) -> None:
        """A line through points of the data."""
        self._path(style, [self.at(*point) for point in points])

    def dot(self, style: str, x: float, y: float, title: str) -> None:
        """A point of the data."""
        across, down = self.at(x, y)
        title = f"<title>{escape(title)}</title>"
        self._parts.append(
            f'<circle class="{style}" cx="{across:.2f}" cy="{down:.2f}" r="4">{title}</circle>'
        )

    def text(self, x: float, y: float, text: str, anchor: str, style: str = "") -> None:
        """A text at a place of the picture."""
        kind = f' class="{style}"' if style else ""
        self._parts.append(
            f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def svg(self, name: str) -> str:
        """The picture, called `name` by those who cannot see it."""
        box = f"0 0 {self.width:.0f} {self.height:.0f}"
        label = escape(name, quote=True)
        inner = "".join(self._parts)
        wide = " wide" if self.width == WIDE else ""
        return (
            f'<div class="chart{wide}"><svg viewBox="{box}" role="img" aria-label="{label}">'
            f"{inner}</svg></div>"
        )

    def _line(self, style: str, *at: float) -> None:
        x1, y1, x2, y2 = (f"{value:.1f}" for value in at)
        self._parts.append(f'<line class="{style}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>')

    def _path(self, style: str, points: Sequence[tuple[float, float]]) -> None:
        places = "L".join(f"{x:.2f},{y:.2f}" for x, y in points)
        self._parts.append(f'<path class="{style}" d="M{places}"/>')


def _wide(ends: tuple[float, float]) -> tuple[float, float]:
    return ends if ends[1] > ends[0] else (ends[0], ends[0] + 1.0)


def round_ticks(low: float, high: float, text: Callable[[float], str], count: int = 6) -> Ticks:
    """About `count` ticks at round values."""
    rough = max(high - low, 1e-12) / count
    unit = 10.0 ** np.floor(np.log10(rough))
    step = unit * next(one for one in (1, 2, 2.5, 5, 10) if one * unit >= rough * 0.999)
    first = np.ceil(low / step - 1e-9)
    values = [float(step * (first + n)) for n in range(4 * count)]
    return [(value, text(value)) for value in values if value <= high + 1e-9 * abs(high)]


def short(value: float) -> str:
    """`0`, `950`, `12k`, `1.5M`."""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"


def timeline(units: UnitColumns) -> str:
    """Units in lanes of their scorers, stage by stage; start-up is shaded."""
    lanes = place_units(units)
    shown = np.flatnonzero(lanes.lane < MAX_LANES)[:MAX_UNITS]
    count = int(lanes.lane[shown].max()) + 1
    end = float(units.done.max())
    chart = Chart((0.0, end), (0.0, float(count)), TOP + BOTTOM + LANE * max(count, 4), WIDE)
    _startup(chart, units)
    chart.axes(round_ticks(0, end, short, 10), [], "seconds from the job's begin")
    for number, name in enumerate(lanes.names[:count]):
        if name:
            _, y = chart.at(0, count - number - 0.5)
            label = name if len(name) <= 9 else f"…{name[-8:]}"
            chart.text(LEFT - 7, y + 4, label, "end")
    for unit in shown.tolist():
        row = count - int(lanes.lane[unit]) - 1
        left = max(float(lanes.begin[unit]), 0.0)
        for number, stage in enumerate(STAGES):
            seconds = float(units.stages[stage][unit])
            if seconds > 0:
                title = f"{stage.replace('_', ' ')} {seconds:.3g} s of {units.rows[unit]:,.0f} rows"
                chart.rectangle(
                    f"s{number}", (left, left + seconds), (row + 0.12, row + 0.88), title
                )
            left += seconds
    return chart.svg("units over time")


def throughput(units: UnitColumns) -> str:
    """Rows a second over time; start-up is shaded."""
    rates, edges = rates_over_time(units)
    top = float(rates.max()) * 1.08
    chart = Chart((0.0, float(edges[-1])), (0.0, top))
    _startup(chart, units)
    chart.axes(
        round_ticks(0, float(edges[-1]), short),
        round_ticks(0, top, short, 4),
        "seconds from the job's begin",
        "rows/s",
    )
    for low, high, rate in zip(
        edges[:-1].tolist(), edges[1:].tolist(), rates.tolist(), strict=True
    ):
        chart.rectangle("bar", (low, high), (0, rate), f"{rate:,.0f} rows/s")
    mean = float(units.rows.sum()) / float(edges[-1])
    chart.line("mean", [(0, mean), (float(edges[-1]), mean)])
    return chart.svg("throughput over time")


def _startup(chart: Chart, units: UnitColumns) -> None:
    seconds = startup(units)
    if seconds > 0:
        chart.rectangle("startup", (0, seconds), chart.y, f"start-up {seconds:.1f} s")


def score_histogram(counts: Counts, baseline: Counts | None) -> str:
    """Rows by score, in bins that fit them; the baseline as an outline."""
    pair = [counts] if baseline is None or not baseline.sum() else [counts, baseline]
    edges, shares = fitted_bins(pair)
    top = float(max(one.max() for one in shares)) * 1.08
    chart = Chart((float(edges[0]), float(edges[-1])), (0.0, top))
    ticks = list(zip(*score_ticks(*chart.x), strict=True))
    percent = round_ticks(0, top, lambda value: f"{100 * value:.3g}%", 4)
    chart.axes(ticks, percent, "score, spaced by its logit", "share of the rows")
    bins = zip(edges[:-1].tolist(), edges[1:].tolist(), shares[0].tolist(), strict=True)
    for low, high, share in bins:
        scores = " to ".join(f"{100 / (1 + np.exp(-at)):.3g}%" for at in (low, high))
        chart.rectangle("bar", (low, high), (0, share), f"{scores}: {100 * share:.2f}% of the rows")
    if len(shares) > 1:
        chart.steps("baseline", edges, shares[1])
    return chart.svg("histogram of the scores")


def latency(batches: Floats) -> str:
    """Engine batches by their milliseconds, with the percentiles of the metrics."""
    milliseconds = batches * 1e3
    p50, p95, p99 = (float(value) for value in np.percentile(milliseconds, [50, 95, 99]))
    high = max(p99 * 1.25, 1e-6)
    counts, edges = np.histogram(np.minimum(milliseconds, high), LATENCY_BINS, (0.0, high))
    top = float(counts.max()) * 1.15
    chart = Chart((0.0, high), (0.0, top))
    chart.axes(
        round_ticks(0, high, short),
        round_ticks(0, top, short, 4),
        "milliseconds of one engine batch",
        "batches",
    )
    bins = zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
    for low, end, count in bins:
        chart.rectangle("bar", (low, end), (0, count), f"{low:.3g} to {end:.3g} ms: {count:,}")
    for name, value in (("p50", p50), ("p95", p95), ("p99", p99)):
        chart.line("mean", [(value, 0), (value, top)])
        x, y = chart.at(value, top)
        chart.text(x + 3, y + {"p50": 10, "p95": 24, "p99": 38}[name], name, "start", "label")
    return chart.svg("latency of batches")


def calibration(curves: Sequence[tuple[str, Sequence[Sequence[float]]]]) -> str:
    """Share of clicks against mean score, a point a bin, on logarithmic axes.

    `curves`: a style each, and its bins (rows, mean score, click rate).
    """
    values = np.array([one[1:] for _, curve in curves for one in curve], np.float64)
    low = max(float(values[values > 0].min(initial=1.0)), 1e-6)
    ends = float(np.log10(low)), float(np.log10(max(values.max(), low * 1.01)))
    chart = Chart(ends, ends, HEIGHT + 50)
    ticks = [
        (float(np.log10(p)), f"{100 * p:.3g}%")
        for power in range(-6, 1)
        for p in 10.0**power
        * np.array((1, 2, 5) if ends[1] - ends[0] > 1 else (1, 1.5, 2, 3, 4, 5, 7))
        if ends[0] <= np.log10(p) <= ends[1]
    ] or [(end, f"{100 * 10**end:.3g}%") for end in ends]
    chart.axes(ticks, ticks, "mean score", "share of clicks")
    chart.line("mean", [(ends[0], ends[0]), (ends[1], ends[1])])
    for style, curve in curves:
        for rows, score, clicks in curve:
            x, y = (float(np.log10(max(value, low))) for value in (score, clicks))
            title = f"{rows:,.0f} rows: score {100 * score:.3g}%, clicks {100 * clicks:.3g}%"
            chart.dot(style, x, y, title)
    return chart.svg("calibration")
