"""Many batches through several engines, here on the CPU."""

from __future__ import annotations

import pytest

from pipeline.bench.cases.engine_case import EngineCase
from pipeline.bench.engine import endurance
from pipeline.bench.engine.endurance import endure, show
from pipeline.errors import DpiframeError

CASES = [
    EngineCase(model=model, fields=5, dim=4, hidden=(8,), dense=2, scale=1e-4, batch=111)
    for model in ("deepfm", "dcnv2")
]


def test_all_batches_are_scored_and_memory_is_counted():
    report = endure(CASES, minutes=5, batches=40)
    assert report.engines == ["deepfm fp32", "dcnv2 fp32"]
    assert report.batches == 40 and 40 <= report.samples <= 40 * 111
    assert report.device_growth == 0
    assert "40 of 40 batches" in show(report)


def test_time_ends_it():
    assert endure(CASES, minutes=0, batches=40).batches == 0


def test_another_score_than_at_first_ends_it(monkeypatch):
    monkeypatch.setattr(endurance, "ROUNDING", -1.0)
    with pytest.raises(DpiframeError, match="turn 0: a score is"):
        endure(CASES, minutes=1, batches=40)
