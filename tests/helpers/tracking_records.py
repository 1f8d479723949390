"""Unit records and whole tracked jobs for the tests of tracking."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.publishing.records import UnitRecord
from pipeline.tracking.settings import DatasetInfo, ModelInfo, TrackingSettings
from pipeline.tracking.tracker import Tracker

DATASET = DatasetInfo(name="synth", source="/data/synth", digest="ab" * 32, rows=333, bytes=4000)
MODEL = ModelInfo(name="deepfm", digest="cd" * 32, source="/models/deepfm", params={"dim": 16})


def make_record(index: int, **changes: Any) -> UnitRecord:
    """A unit of 111 rows, 109 of them scored, with logits around zero."""
    logits = np.random.default_rng(index).normal(size=109)
    bins = np.clip(np.floor((logits + 10) / 0.1).astype(int) + 1, 0, 201)
    scores = 1 / (1 + np.exp(-logits))
    fields = {
        "unit": f"u{index:06d}-0badcafe",
        "index": index,
        "path": "/data/synth/a.parquet",
        "first_row_group": index,
        "stop_row_group": index + 1,
        "rows": 111,
        "scored": 109,
        "rejected": 2,
        "part": f"part-u{index:06d}-0badcafe.parquet",
        "bytes": 1900,
        "sha256": "ef" * 32,
        "bad_ids": {"C3": 1},
        "score_min": float(scores.min()),
        "score_max": float(scores.max()),
        "score_sum": float(scores.sum()),
        "score_histogram": np.bincount(bins, minlength=202).tolist(),
        "started": time.time(),
        "read_s": 0.01,
        "encode_s": 0.02,
        "score_s": 0.03,
        "write_s": 0.04,
        "batch_s": [0.010, 0.020],
        "scorer": f"node:{index % 2}",
        "device": "cpu",
    }
    return UnitRecord(**{**fields, **changes})


def start_job(output: Path, uri: str | None, identity: str = "id-1", **changes: Any) -> Tracker:
    """A tracker with a started attempt."""
    settings = {"uri": uri, "price_per_hour": 3.6, "experiment": "tests"}
    fields = {name: changes.pop(name) for name in list(changes) if name != "params"}
    tracker = Tracker(TrackingSettings(**{**settings, **fields}), output / "_tracking")
    params = {"max_batch": 65536, "threads": None, "graphs": True, **changes.get("params", {})}
    tracker.start(params, {"identity": identity}, DATASET, MODEL)
    return tracker


def track_job(output: Path, uri: str | None, timeout_s: float = 120, **changes: Any) -> Tracker:
    """A whole job of three units, closed."""
    tracker = start_job(output, uri, **changes)
    records = [make_record(index) for index in range(3)]
    for record in records:
        tracker.unit_done(record)
    tracker.finish("FINISHED", records, wall_s=2.0, num_gpus=0, problems=None)
    tracker.close(timeout_s)
    return tracker
