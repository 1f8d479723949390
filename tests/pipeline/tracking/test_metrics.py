"""The metrics of a job, against values worked out by hand."""

from __future__ import annotations

import pytest
from tracking_records import make_record

from pipeline.tracking.metrics import METRICS, Attempt, Progress, steady_rate, summarise

EVALUATED = {"auc", "auc_error", "gauc", "logloss", "normalised_entropy", "calibration", "ece"}
EVALUATED |= {"brier", "labelled_rows", "labelled_clicks"}


def test_the_names_are_few():
    assert len(METRICS) <= 50


def test_every_metric_of_a_job_has_a_documented_name():
    records = [make_record(index) for index in range(25)]
    attempt = Attempt(records[0].started - 1, wall_s=5.0, num_gpus=2, bytes_in=9)
    attempt.price_per_hour = 3.6
    attempt.done = {record.unit: float(record.index) for record in records}
    metrics = summarise(records, attempt)
    series = {"score_psi", "progress_rows", "progress_rows_per_second", "reduced_batch"}
    series |= {"duplicate_keys"}  # of a job that checks them
    assert set(metrics) == set(METRICS) - series - EVALUATED


def test_rates_and_cost_are_of_this_attempt_only():
    records = [make_record(index, started=101.0 + index) for index in range(4)]
    attempt = Attempt(100.0, wall_s=10.0, num_gpus=2, price_per_hour=3.6)
    attempt.done = {records[2].unit: 4.0, records[3].unit: 6.0}
    metrics = summarise(records, attempt)
    assert metrics["rows"] == 444
    assert metrics["rows_scored"] == 436
    assert metrics["rows_rejected"] == 8
    assert metrics["rows_attempt"] == 222
    assert metrics["startup_seconds"] == 3.0
    assert metrics["rows_per_second"] == pytest.approx(22.2)
    assert metrics["rows_per_second_per_gpu"] == pytest.approx(11.1)
    assert metrics["scorers"] == 2
    assert metrics["scorer_busy_fraction"] == pytest.approx(2 * 0.03 / (2 * 7.0))
    # 2 GPUs at 3.6 an hour for 10 s cost 0.02, for 222 rows
    assert metrics["cost_per_million_rows"] == pytest.approx(0.02 / 222e-6)


def test_latency_percentiles_are_over_all_batches():
    records = [make_record(0, batch_s=[0.001, 0.002]), make_record(1, batch_s=[0.003])]
    attempt = Attempt(0.0, wall_s=1.0, done={record.unit: 1.0 for record in records})
    metrics = summarise(records, attempt)
    assert metrics["batches"] == 3
    assert metrics["batch_latency_p50_ms"] == pytest.approx(2.0)
    assert metrics["batch_latency_p99_ms"] == pytest.approx(2.98)


def test_the_steady_rate_leaves_out_a_tenth_at_both_ends():
    # Completions at 10, 20, ..., 200 s; the window is from the 2nd (20 s) to the 18th (180 s).
    done = [(10.0 * (unit + 1), 100 if unit < 18 else 10**6) for unit in range(20)]
    steady = steady_rate(reversed(done))
    assert steady is not None
    assert steady.rate == pytest.approx(1600 / 160)
    assert steady.error == pytest.approx(0)


def test_the_error_of_the_steady_rate_is_that_of_the_mean_of_its_blocks():
    # 8 blocks of 2 completions, every second one twice as fast: rates of 10 and 20 rows/s.
    times = [0.0, 1.0]
    for unit in range(18):
        times.append(times[-1] + (10.0 if unit // 2 % 2 else 5.0))
    steady = steady_rate([(time, 100) for time in times])
    assert steady is not None
    assert steady.rate == pytest.approx(1600 / 120)
    spread = (8 * 25 / 7) ** 0.5
    assert steady.error == pytest.approx(spread / 8**0.5)


@pytest.mark.parametrize(("count", "seconds"), [(0, 1.0), (2, 10.0), (19, 5.0), (200, 0.06)])
def test_there_is_no_steady_rate_of_few_units_or_seconds(count: int, seconds: float):
    assert steady_rate([(seconds * unit, 5) for unit in range(count)]) is None


def test_a_job_without_new_units_has_counts_and_no_rates():
    metrics = summarise([make_record(0)], Attempt(0.0, wall_s=2.0))
    assert metrics["rows"] == 111
    assert metrics["rows_per_second"] == 0
    assert "startup_seconds" not in metrics
    assert "batch_latency_p50_ms" not in metrics


def test_a_job_without_rows_has_no_score_statistics():
    metrics = summarise([], Attempt(0.0, wall_s=2.0, price_per_hour=1.0))
    assert metrics["rows"] == 0
    assert not {"score_mean", "score_min", "cost_per_million_rows"} & set(metrics)


def test_the_series_stays_short_in_a_long_job():
    progress = Progress(0.0)
    points = [progress.add(111, float(second)) for second in range(1, 36001)]
    kept = [point for point in points if point is not None]
    assert 100 < len(kept) < 1000
    assert kept[0] == {"progress_rows": 222.0, "progress_rows_per_second": 111.0}
    assert kept[-1]["progress_rows_per_second"] == pytest.approx(111.0)
