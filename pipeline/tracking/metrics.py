"""The metrics of a job: their names, their computation from unit records, the progress series."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipeline.tracking.drift import NUM_BINS, Counts, population_stability_index

if TYPE_CHECKING:
    from pipeline.publishing.records import UnitRecord


# All metric names with their meanings. "This attempt" is the process that logs; a metric without
# that word is about the whole job. A metric without a value is left out. Those of the scores have a
# `_NAME` behind for each of `bundles`.
METRICS = {
    "rows": "input rows with an outcome: scored + rejected",
    "rows_scored": "rows with a score",
    "rows_rejected": "rows rejected",
    "duplicate_keys": "rows beyond the first of each key, where check_keys asks for it",
    "rows_attempt": "rows with an outcome that this attempt reached",
    "bad_ids": "ids outside their table",
    "units": "units done",
    "units_attempt": "units done by this attempt",
    "bytes_in": "bytes of the input files",
    "bytes_out": "bytes of the score files",
    "wall_seconds": "seconds of this attempt, start-up included",
    "startup_seconds": "seconds from the start of this attempt to the start of its first unit",
    "rows_per_second": "rows_attempt / wall_seconds",
    "rows_per_second_steady": "rows/s between the first and the last tenth of unit completions",
    "rows_per_second_steady_error": "standard error of the same",
    "rows_per_second_per_gpu": "rows_per_second / gpus",
    "batch_latency_p50_ms": "median milliseconds of one engine batch of this attempt",
    "batch_latency_p95_ms": "95th percentile of the same",
    "batch_latency_p99_ms": "99th percentile of the same",
    "batches": "engine batches of this attempt",
    "reduced_batch": "fewest rows of a full batch, where GPU memory was too short for max_batch",
    "read_seconds": "reading and decoding, summed over the units of this attempt",
    "encode_seconds": "raw values to ids, summed likewise",
    "copy_in_seconds": "copies to the device, summed likewise",
    "unpack_seconds": "pages decompressed and decoded by the device, summed likewise",
    "score_seconds": "the engine, summed likewise",
    "copy_out_seconds": "copies from the device, summed likewise",
    "write_seconds": "writing and syncing score files, summed likewise",
    "scorers": "scorer actors that finished a unit in this attempt",
    "scorer_busy_fraction": "score_seconds / (scorers * seconds from first unit start to end)",
    "gpus": "GPUs of this attempt",
    "cost_per_million_rows": "price_per_hour * max(gpus, 1) * wall hours / million rows_attempt",
    "cost_per_million_rows_without_startup": "the same of the time after startup_seconds",
    "score_mean": "mean score",
    "score_min": "smallest score",
    "score_max": "largest score",
    "score_psi": "population stability index of the scores against the baseline run",
    "auc": "area under the ROC curve of the rows with a label",
    "auc_error": "the exact AUC is at most so far away; 0: it is exact",
    "gauc": "mean AUC by group, weighted by rows",
    "logloss": "mean negative log likelihood of the labels",
    "normalised_entropy": "logloss / that of always saying the mean label",
    "calibration": "mean score / mean label",
    "ece": "expected calibration error over 20 bins of as many rows",
    "brier": "mean squared error of the scores",
    "labelled_rows": "rows with a score and a label",
    "labelled_clicks": "of these, those with the label 1",
    "progress_rows": "series: rows done so far by this attempt",
    "progress_rows_per_second": "series: rows/s since the point before",
}

STAGES = ("read", "encode", "copy_in", "unpack", "score", "copy_out", "write")
# A rate is called steady from so many completions and seconds on; its error is from so many blocks.
STEADY_COMPLETIONS, STEADY_SECONDS, STEADY_BLOCKS = 20, 10.0, 8
FIRST_INTERVAL_S = 2.0  # of the progress series
POINTS_AN_INTERVAL = 128  # then the interval doubles: 10 hours give fewer than 1,000 points


@dataclass
class Attempt:
    """What the driver observed of one attempt; times in seconds of the driver's clock."""

    started_epoch: float
    wall_s: float = 0.0
    num_gpus: int = 0
    bytes_in: int = 0
    price_per_hour: float | None = None
    done: dict[str, float] = field(default_factory=dict)  # unit -> seconds since the start


def summarise(records: Sequence[UnitRecord], attempt: Attempt) -> dict[str, float]:
    """All single-point metrics of a job (`METRICS` but the series and the drift)."""
    own = [record for record in records if record.unit in attempt.done]
    metrics = {**count_metrics(records), **stage_metrics(own), **latency_metrics(own)}
    if attempt.bytes_in:
        metrics["bytes_in"] = attempt.bytes_in
    metrics.update(rate_metrics(own, attempt))
    return {name: float(value) for name, value in metrics.items()}


def count_metrics(records: Sequence[UnitRecord]) -> dict[str, float]:
    """Counts and score statistics of the whole job."""
    scored = sum(record.scored for record in records)
    rejected = sum(record.rejected for record in records)
    metrics: dict[str, float] = {
        "rows": scored + rejected,
        "rows_scored": scored,
        "rows_rejected": rejected,
        "bad_ids": sum(sum(record.bad_ids.values()) for record in records),
        "units": len(records),
        "bytes_out": sum(record.bytes for record in records),
    }
    with_scores = [record for record in records if record.scored]
    if with_scores:
        metrics["score_mean"] = sum(record.score_sum for record in with_scores) / scored
        lows = [record.score_min for record in with_scores if record.score_min is not None]
        highs = [record.score_max for record in with_scores if record.score_max is not None]
        if lows and highs:
            metrics |= {"score_min": min(lows), "score_max": max(highs)}
        for name in with_scores[0].others:
            metrics |= _other_scores(name, with_scores)
    return metrics


def _other_scores(name: str, records: Sequence[UnitRecord]) -> dict[str, float]:
    """Statistics of the scores by one of `bundles`, of units with scores; PSI against `score`."""
    others = [record.others[name] for record in records]
    scored = sum(record.scored for record in records)
    metrics = {
        f"score_mean_{name}": sum(other.score_sum for other in others) / scored,
        f"score_min_{name}": min(o.score_min for o in others if o.score_min is not None),
        f"score_max_{name}": max(o.score_max for o in others if o.score_max is not None),
    }
    counts = np.sum([other.score_histogram for other in others], axis=0)
    psi = population_stability_index(sum_histograms(records), counts)
    return metrics if psi is None else metrics | {f"score_psi_{name}": psi}


def stage_metrics(own: Iterable[UnitRecord]) -> dict[str, float]:
    """Seconds of each stage, summed over units: stages of several workers overlap in time."""
    totals = dict.fromkeys(STAGES, 0.0)
    for record in own:
        for stage in STAGES:
            totals[stage] += getattr(record, f"{stage}_s")
    return {f"{stage}_seconds": seconds for stage, seconds in totals.items()}


def latency_metrics(own: Sequence[UnitRecord]) -> dict[str, float]:
    """Percentiles of the engine's batches, linear between samples; short last batches count."""
    batches = batch_seconds(record.batch_s for record in own)
    metrics: dict[str, float] = {"batches": len(batches)}
    if reduced := [record.reduced_batch for record in own if record.reduced_batch is not None]:
        metrics["reduced_batch"] = min(reduced)
    if len(batches):
        p50, p95, p99 = np.percentile(batches * 1e3, [50, 95, 99])
        metrics |= {
            "batch_latency_p50_ms": p50,
            "batch_latency_p95_ms": p95,
            "batch_latency_p99_ms": p99,
        }
    return metrics


def rate_metrics(own: Sequence[UnitRecord], attempt: Attempt) -> dict[str, float]:
    """Times, rates and cost of this attempt."""
    rows = sum(record.scored + record.rejected for record in own)
    scorers = len({record.scorer for record in own})
    metrics: dict[str, float] = {
        "rows_attempt": rows,
        "units_attempt": len(own),
        "wall_seconds": attempt.wall_s,
        "scorers": scorers,
        "gpus": attempt.num_gpus,
    }
    if own:
        startup = max(0.0, min(record.started for record in own) - attempt.started_epoch)
        busy = sum(record.score_s for record in own)
        if startup < attempt.wall_s:  # otherwise the hosts' clocks differ, or one was changed
            metrics["startup_seconds"] = startup
            metrics["scorer_busy_fraction"] = busy / (scorers * (attempt.wall_s - startup))
    if attempt.wall_s > 0:
        metrics["rows_per_second"] = rows / attempt.wall_s
        if attempt.num_gpus:
            metrics["rows_per_second_per_gpu"] = rows / attempt.wall_s / attempt.num_gpus
    done = [(attempt.done[record.unit], record.scored + record.rejected) for record in own]
    if (steady := steady_rate(done)) is not None:
        metrics["rows_per_second_steady"] = steady.rate
        metrics["rows_per_second_steady_error"] = steady.error
    if attempt.price_per_hour is not None and rows:
        price = attempt.price_per_hour * max(attempt.num_gpus, 1)
        metrics["cost_per_million_rows"] = price * attempt.wall_s / 3600 / (rows / 1e6)
        if (startup_s := metrics.get("startup_seconds")) is not None:
            without = price * (attempt.wall_s - startup_s) / 3600 / (rows / 1e6)
            metrics["cost_per_million_rows_without_startup"] = without
    return metrics


class SteadyRate(NamedTuple):
    """Rows/s, and the standard error of it."""

    rate: float
    error: float


def steady_rate(done: Iterable[tuple[float, int]]) -> SteadyRate | None:
    """Rows/s between the first and the last tenth of the completions (seconds, rows).

    With n completions in order of time and k = ceil(n / 10), the window opens at completion k and
    closes at completion n - k; its rows are those of completions k + 1 to n - k. The error is that
    of the mean of the rates in STEADY_BLOCKS parts of the window. None where it would not be one:
    with fewer than STEADY_COMPLETIONS completions, or a window shorter than STEADY_SECONDS.
    """
    ordered = sorted(done)
    if len(ordered) < STEADY_COMPLETIONS:
        return None
    margin = -(-len(ordered) // 10)
    times, rows = (np.array(column) for column in zip(*ordered, strict=True))
    edges = np.linspace(margin - 1, len(ordered) - margin - 1, STEADY_BLOCKS + 1).astype(int)
    total = np.cumsum(rows)
    seconds = float(times[edges[-1]] - times[edges[0]])
    if seconds < STEADY_SECONDS:
        return None
    rate = float(total[edges[-1]] - total[edges[0]]) / seconds
    # Blocks that end in one moment with the one before have no rate of their own.
    edges = edges[np.r_[True, np.diff(times[edges]) > 0]]
    rates = np.diff(total[edges]) / np.diff(times[edges])
    spread = float(rates.std(ddof=1)) if len(rates) > 1 else rate
    return SteadyRate(rate, spread / len(rates) ** 0.5)


def batch_seconds(lists: Iterable[Sequence[float]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """One flat float64 array of all batch times."""
    parts = [np.asarray(values, np.float64) for values in lists]
    return np.concatenate(parts) if parts else np.empty(0)


def sum_histograms(records: Iterable[UnitRecord]) -> Counts:
    """The score histogram of a job, int64 [202]."""
    total = np.zeros(NUM_BINS, np.int64)
    for record in records:
        if record.score_histogram:
            total += np.asarray(record.score_histogram, np.int64)
    return total


class Progress:
    """The series of rows done over time, one point per interval. Times are of a monotonic clock."""

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.rows = 0
        self._interval = FIRST_INTERVAL_S
        self._points = 0
        self._last_time = begin
        self._last_rows = 0

    def add(self, rows: int, now: float) -> dict[str, float] | None:
        """Count rows; returns a point when one is due."""
        self.rows += rows
        return self.last(now) if now - self._last_time >= self._interval else None

    def last(self, now: float) -> dict[str, float] | None:
        """The point for `now`; None when no rows were added since the previous point."""
        seconds, rows = now - self._last_time, self.rows - self._last_rows
        if rows == 0 or seconds <= 0:
            return None
        self._last_time, self._last_rows = now, self.rows
        self._points += 1
        if self._points % POINTS_AN_INTERVAL == 0:
            self._interval *= 2
        return {"progress_rows": float(self.rows), "progress_rows_per_second": rows / seconds}
