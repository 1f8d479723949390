"""The engine benchmark: contenders agree, and its table says what was measured."""

from __future__ import annotations

import numpy as np

from pipeline.bench.cases import EngineCase
from pipeline.bench.engine import OURS, bench_engine, show


def test_a_small_case_runs_and_agrees():
    case = EngineCase(model="deepfm", batch=19, scale=1e-5, hidden=(8,), dim=4, repeats=3)
    report = bench_engine(case)
    assert report.largest_difference < 1e-5
    assert set(report.milliseconds) == {OURS, "eager", "compile"}
    assert set(report.ratios()) == {"eager", "compile"}
    assert "deepfm, batch 19" in show(report)


def test_ids_stay_inside_their_tables_and_follow_the_distribution():
    for ids in ("zipf", "uniform"):
        case = EngineCase(batch=1111, ids=ids, scale=1e-3)
        spec = case.spec()
        drawn = case.inputs(spec)[0]
        assert drawn.shape == (39, 1111)
        assert (drawn >= 0).all() and (drawn.max(1) < [f.rows for f in spec.fields]).all()
        share = np.bincount(drawn[15]).max() / 1111
        assert (share > 0.05) == (ids == "zipf")
