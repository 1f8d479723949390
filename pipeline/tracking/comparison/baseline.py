"""The baseline of a job's scores: where it comes from, and the drift against it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.tracking.comparison.drift import (
    HISTOGRAM_FILE,
    Counts,
    histogram_from_path,
    population_stability_index,
)
from pipeline.tracking.spool import Event

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass
class Drift:
    """What was found: the baseline's histogram, the index, tags for the run, a warning."""

    baseline: Counts | None = None
    psi: float | None = None
    tags: dict[str, str] = field(default_factory=dict)
    warning: str | None = None


def measure_drift(event: Event, client: MlflowClient) -> Drift:
    """Drift of a finished job; a baseline that cannot be read gives a warning and a tag."""
    name = event["baseline_run"]
    if name is None or event["histogram"] is None:
        return Drift()
    tags = {"baseline_run": name}
    try:
        baseline = load_baseline(name, client)
        psi = population_stability_index(baseline, np.asarray(event["histogram"], np.int64))
    except Exception as error:  # whatever is wrong with another run is no fault of this one
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
