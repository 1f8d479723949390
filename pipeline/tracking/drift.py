"""Drift of the scores: the population stability index (PSI) between two score histograms.

A histogram has 202 bins of the logit: below -10, 200 bins of width 0.1, and 10 or more. They are
merged at the baseline's deciles, so that the baseline has about a tenth of its rows in each group:

    PSI = sum over groups of (a - e) * ln(a / e)

where e and a are the shares of baseline and current rows in the group, each at least `SHARE_FLOOR`
(without rescaling), so that an empty group stays finite. By the usual rule of thumb a PSI below 0.1
is stable and above 0.25 has shifted.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from pipeline.tracking.spool import Event

NUM_BINS = 202
BIN_WIDTH = 0.1
LOWEST_LOGIT = -10.0
SHARE_FLOOR = 1e-4
HISTOGRAM_FILE = "score_histogram.json"
HISTOGRAM_FORMAT = "dpiframe-score-histogram/1"

Counts = NDArray[np.int64]  # [202]


def bin_edges() -> NDArray[np.float64]:
    """The 201 inner edges of the bins: -10, -9.9, ..., 10."""
    return np.round(LOWEST_LOGIT + BIN_WIDTH * np.arange(NUM_BINS - 1), 10)


def decile_starts(baseline: Counts) -> NDArray[np.int64]:
    """First bin of each group (at most 10): a group ends where the next tenth of rows is reached.

    The last group goes to the end, so that none lies wholly above the baseline. A baseline within
    one bin has three groups: below, in, and above it.
    """
    cumulative = np.cumsum(baseline)
    targets = cumulative[-1] * np.arange(1, 10) / 10
    cuts = np.searchsorted(cumulative, targets, side="left") + 1
    last = int(np.flatnonzero(baseline)[-1])
    starts = np.unique(np.concatenate([[0], cuts[cuts <= last]]))
    if len(starts) == 1:
        starts = np.unique([0, last, min(last + 1, len(baseline) - 1)])
    return starts.astype(np.int64)


def population_stability_index(baseline: Counts, current: Counts) -> float | None:
    """PSI of `current` against `baseline`, None when either has no rows.

    Raises ValueError when the histograms differ in their number of bins.
    """
    if baseline.shape != current.shape:
        raise ValueError(
            f"histograms must have the same bins, got {baseline.shape} and {current.shape}"
        )
    if baseline.sum() == 0 or current.sum() == 0:
        return None
    starts = decile_starts(baseline)
    expected = np.maximum(np.add.reduceat(baseline, starts) / baseline.sum(), SHARE_FLOOR)
    actual = np.maximum(np.add.reduceat(current, starts) / current.sum(), SHARE_FLOOR)
    return float(np.sum((actual - expected) * np.log(actual / expected)))


def histogram_document(counts: Counts, bundle_digest: str) -> dict[str, Any]:
    """The content of `score_histogram.json`, which later runs take as their baseline."""
    return {
        "format": HISTOGRAM_FORMAT,
        "bundle_digest": bundle_digest,
        "bins": f"logit < -10, {NUM_BINS - 2} bins of {BIN_WIDTH} over [-10, 10), logit >= 10",
        "rows": int(counts.sum()),
        "counts": counts.tolist(),
    }


def histogram_from_path(path: Path) -> Counts:
    """The histogram of an output folder, its `_manifest.json`, or a `score_histogram.json`.

    Raises OSError when there is no such file, ValueError when it holds no histogram.
    """
    file = path / "_manifest.json" if path.is_dir() else path
    document = json.loads(file.read_text())
    try:
        if "counts" in document:
            rows = [document["counts"]]
        else:
            rows = [unit["score_histogram"] for unit in document["units"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file} holds no score histogram (missing {error})") from error
    counts = np.zeros(NUM_BINS, np.int64)
    for row in filter(None, rows):
        if len(row) != NUM_BINS:
            raise ValueError(f"{file}: histogram must have {NUM_BINS} bins, got {len(row)}")
        counts += np.asarray(row, np.int64)
    return counts


@dataclass
class Drift:
    """The baseline's histogram, the PSI, tags for the run, a warning."""

    baseline: Counts | None = None
    psi: float | None = None
    tags: dict[str, str] = field(default_factory=dict)
    warning: str | None = None


def measure_drift(event: Event, client: MlflowClient) -> Drift:
    """The drift of a finished job; an unreadable baseline gives a warning and a tag."""
    name = event["baseline_run"]
    if name is None or event["histogram"] is None:
        return Drift()
    tags = {"baseline_run": name}
    try:
        baseline = load_baseline(name, client)
        psi = population_stability_index(baseline, np.asarray(event["histogram"], np.int64))
    except Exception as error:  # a broken baseline must not fail this run
        warning = f"no drift: baseline {name!r} cannot be read: {error}"
        return Drift(tags={**tags, "baseline_status": f"missing: {error}"}, warning=warning)
    status = "ok" if psi is not None else "empty: one of the histograms has no rows"
    return Drift(baseline, psi, {**tags, "baseline_status": status})


def load_baseline(name: str, client: MlflowClient) -> Counts:
    """Histogram of an output folder, a manifest or histogram file, or else an MLflow run id.

    Raises OSError, ValueError or MlflowException when there is none.
    """
    path = Path(name)
    if path.exists():
        return histogram_from_path(path)
    if "/" in name:
        raise FileNotFoundError(f"there is no file or folder {name}")
    with tempfile.TemporaryDirectory(prefix="dpiframe-baseline-") as folder:
        return histogram_from_path(Path(client.download_artifacts(name, HISTOGRAM_FILE, folder)))
