"""Verdicts on a candidate, and the gates that a schedule can stop at."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from pipeline.evaluation.gates import (
    Gates,
    auc_standard_error,
    auc_verdict,
    broken,
    throughput_verdict,
)
from pipeline.tracking.compare import RunView


def view(label: str = "a", **metrics: float) -> RunView:
    return RunView(label, "FINISHED", metrics=metrics)


def steady(rate: float, error: float) -> RunView:
    return view(rows_per_second_steady=rate, rows_per_second_steady_error=error)


def with_auc(auc: float, rows: float = 1e6, clicks: float = 2e5) -> RunView:
    return view(auc=auc, labelled_rows=rows, labelled_clicks=clicks)


def test_a_slowdown_beyond_the_noise_is_one():
    verdict = throughput_verdict(steady(100, 0.5), steady(90, 0.5))
    assert verdict.relative == pytest.approx(-0.1)
    assert verdict.noise == pytest.approx(2 * 0.9 * math.hypot(0.005, 0.5 / 90))
    assert verdict.text == "slower by 10.00% (noise 1.35%)"
    assert throughput_verdict(steady(100, 0.5), steady(110, 0.5)).text.startswith("faster by 10")
    text = throughput_verdict(steady(100, 4), steady(97, 4)).text
    assert text.startswith("no difference beyond noise (-3.00%, noise 11")


def test_a_run_without_a_steady_rate_cannot_be_judged():
    verdict = throughput_verdict(steady(100, 1), view("short", rows_per_second=1e6))
    assert verdict.relative is None and "short has no steady rate" in verdict.text


def test_the_standard_error_of_an_auc_is_that_of_samples():
    random = np.random.default_rng(0)
    aucs = []
    for _ in range(400):
        scores = np.r_[random.normal(1, 1, 100), random.normal(0, 1, 400)]
        aucs.append(roc_auc_score(np.r_[np.ones(100), np.zeros(400)], scores))
    stated = auc_standard_error(with_auc(float(np.mean(aucs)), 500, 100))
    assert stated == pytest.approx(np.std(aucs), rel=0.15)


def test_an_auc_is_better_worse_or_the_same():
    assert auc_verdict(with_auc(0.75), with_auc(0.76)).text.startswith("better by 1.33%")
    assert auc_verdict(with_auc(0.75), with_auc(0.74)).text.startswith("worse by 1.33%")
    assert "beyond noise" in auc_verdict(with_auc(0.75), with_auc(0.7501)).text
    assert auc_verdict(with_auc(0.75), view("b")).text == "cannot tell: b has no AUC"


@pytest.mark.parametrize(
    ("gates", "base", "candidate", "psi", "expected"),
    [
        (Gates(max_psi=0.1), view(), view(), 0.05, None),
        (Gates(max_psi=0.1), view(), view(), 0.15, "PSI: 0.1500 is above --max-psi 0.1"),
        (Gates(max_psi=0.1), view(), view(), None, "PSI: cannot tell"),
        (Gates(min_auc_ratio=0.999), with_auc(0.75), with_auc(0.7495), None, None),
        (
            Gates(min_auc_ratio=0.999),
            with_auc(0.75),
            with_auc(0.74),
            None,
            "AUC: 0.74000 is 0.98667",
        ),
        (Gates(min_auc_ratio=0.999), with_auc(0.75), view(), None, "AUC: cannot tell"),
        (Gates(max_slowdown=0.05), steady(100, 0.5), steady(97, 0.5), None, None),
        (Gates(max_slowdown=0.05), steady(100, 0.5), steady(90, 0.5), None, "slower by 10.00%"),
        (Gates(max_slowdown=0.05), steady(100, 9), steady(97, 9), None, "cannot tell: the noise"),
        (Gates(max_slowdown=0.05), steady(100, 9), view(), None, "has no steady rate"),
    ],
)
def test_gates(
    gates: Gates, base: RunView, candidate: RunView, psi: float | None, expected: str | None
):
    found = broken(gates, base, candidate, psi)
    assert (not found) if expected is None else (len(found) == 1 and expected in found[0])
