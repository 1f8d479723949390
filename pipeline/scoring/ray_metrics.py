"""Metrics of a running job by Ray's own exporter, for Prometheus: docs/metrics.md.

A cluster that was started with its agents exports them on each node; a local Ray of the job alone
does not, and a job without Ray has none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from pipeline.config.job import JobConfig
from pipeline.publishing.records import UnitRecord
from pipeline.redaction import without_credentials

STAGES = ("read", "encode", "copy_in", "unpack", "score", "copy_out", "write")
ROWS_SCORED, ROWS_REJECTED = "dpiframe_rows_scored", "dpiframe_rows_rejected"
STAGE_SECONDS, UNITS_PENDING = "dpiframe_stage_seconds", "dpiframe_units_pending"
TAGS = ("output", "bundle")


def scorer_metrics(config: JobConfig) -> Callable[[UnitRecord], None]:
    """What counts a published unit in its scorer's process."""
    if not _on_ray(config):
        return lambda record: None
    from ray.util.metrics import Counter

    tags = _tags(config)
    scored = Counter(ROWS_SCORED, "rows with a score", TAGS)
    rejected = Counter(ROWS_REJECTED, "rejected rows", TAGS)
    seconds = Counter(STAGE_SECONDS, "seconds of a stage, summed over units", (*TAGS, "stage"))

    def count(record: UnitRecord) -> None:
        if record.scored > 0:
            scored.inc(record.scored, tags)
        if record.rejected:
            rejected.inc(record.rejected, tags)
        for stage in STAGES:
            if (spent := getattr(record, f"{stage}_s")) > 0:
                seconds.inc(spent, {**tags, "stage": stage})

    return count


def pending_metric(config: JobConfig) -> Callable[[int], None]:
    """What tells, in the driver, how many units are not done yet."""
    if not _on_ray(config):
        return lambda units: None
    from ray.util.metrics import Gauge

    gauge, tags = Gauge(UNITS_PENDING, "units that are not done yet", TAGS), _tags(config)
    return lambda units: gauge.set(units, tags)


def _on_ray(config: JobConfig) -> bool:
    ray = sys.modules.get("ray")
    return config.runner != "local" and ray is not None and ray.is_initialized()


def _tags(config: JobConfig) -> dict[str, str]:
    return {"output": without_credentials(config.output), "bundle": Path(config.bundle).name}
