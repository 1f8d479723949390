"""System metrics: the same names whatever the number of machines."""

from __future__ import annotations

import pytest

from pipeline.scoring.machine_watch import MachineSample, MachineWatch
from pipeline.tracking.machine_metrics import MACHINE_METRICS, SYSTEM_METRICS, MachineMetrics

SAMPLES = [
    MachineSample(machine="a", time=1.0, busy=0.2, memory_bytes=3_000_000, memory_share=0.3),
    MachineSample(machine="b", time=1.0, busy=0.6, memory_bytes=5_000_000, memory_share=0.5),
    MachineSample(
        machine="a/gpu0", time=1.0, busy=0.9, memory_bytes=7, memory_share=0.1, watts=300
    ),
    MachineSample(
        machine="a/gpu0", time=2.0, busy=0.7, memory_bytes=9, memory_share=0.2, watts=400
    ),
    MachineSample(
        machine="b/gpu1", time=1.0, busy=0.5, memory_bytes=8, memory_share=0.1, watts=100
    ),
]


def test_machines_become_one_point_and_a_summary():
    metrics = MachineMetrics(begin=0.0)
    assert metrics.add(SAMPLES[:1], now=1.0) is None  # the window is open still
    point = metrics.add(SAMPLES[1:], now=2.0)
    assert set(point) == set(SYSTEM_METRICS)
    assert point["system/cpu_utilization_percentage"] == pytest.approx(40)
    assert point["system/gpu_utilization_percentage"] == pytest.approx(70)
    assert point["system/system_memory_usage_megabytes"] == 5
    assert point["system/gpu_memory_usage_percentage"] == pytest.approx(20)
    assert point["system/gpu_power_usage_watts"] == pytest.approx(450)
    summary = metrics.summary()
    assert set(summary) == set(MACHINE_METRICS)
    assert summary["gpu_busy_fraction"] == pytest.approx(0.7)
    assert summary["gpu_memory_peak_bytes"] == 9


def test_what_was_not_measured_is_left_out():
    metrics = MachineMetrics(begin=0.0)
    sample = MachineSample(machine="a/gpu0", time=1.0)
    assert metrics.add([sample], now=3.0) == {}
    assert metrics.summary() == {}


def test_points_become_rarer():
    metrics = MachineMetrics(begin=0.0)
    points = [metrics.add(SAMPLES[:1], now=float(second)) for second in range(36_000)]
    assert sum(point is not None for point in points) < 1000


def test_a_host_is_watched():
    watch = MachineWatch(on_gpu=False, interval_s=0.01)
    found: list[MachineSample] = []
    while len(found) < 2:
        found += watch.take()
    assert len({sample.machine for sample in found}) == 1
    assert 0 < found[-1].memory_share < 1 and 0 <= found[-1].busy <= 1
