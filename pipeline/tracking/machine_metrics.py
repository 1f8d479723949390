"""Metrics of the scorers' machines: series for MLflow's page of system metrics, and their means.

Names are the same whatever the number of machines: shares are means over hosts or GPUs, memory is
that of the fullest one, power the sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

from pipeline.tracking.metrics import FIRST_INTERVAL_S, POINTS_AN_INTERVAL

# Series, named as MLflow's own: its page shows what begins with `system/`.
SYSTEM_METRICS = {
    "system/cpu_utilization_percentage": "mean over the scorers' hosts",
    "system/system_memory_usage_megabytes": "in use on the fullest of them",
    "system/system_memory_usage_percentage": "the same, of its memory",
    "system/gpu_utilization_percentage": "time with a kernel running, mean over the scorers' GPUs",
    "system/gpu_memory_usage_megabytes": "in use on the fullest of them",
    "system/gpu_memory_usage_percentage": "the same, of its memory",
    "system/gpu_power_usage_watts": "of all of them",
}
# Of the whole attempt.
MACHINE_METRICS = {
    "cpu_busy_fraction": "mean share of the hosts' CPU time, other programs' too",
    "gpu_busy_fraction": "mean share of the time in which a kernel ran",
    "gpu_memory_peak_bytes": "most memory in use on one GPU, other programs' too",
    "gpu_power_mean_watts": "mean power of one GPU",
}


class Figures(Protocol):
    """What a scorer samples: see `MachineSample`. A GPU is called `host/gpu0`."""

    @property
    def machine(self) -> str: ...
    @property
    def busy(self) -> float | None: ...
    @property
    def memory_bytes(self) -> int | None: ...
    @property
    def memory_share(self) -> float | None: ...
    @property
    def watts(self) -> float | None: ...


class MachineMetrics:
    """Gathers samples of one attempt. Times are of a monotonic clock."""

    def __init__(self, begin: float) -> None:
        self._window: list[Figures] = []
        self._opened, self._interval, self._points = begin, FIRST_INTERVAL_S, 0
        self._sums: dict[str, float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)
        self._peak = 0

    def add(self, samples: Iterable[Figures], now: float) -> dict[str, float] | None:
        """Take samples; returns a point of the series when one is due."""
        self._window.extend(samples)
        if not self._window or now - self._opened < self._interval:
            return None
        point = _series(self._window)
        self._summarise(self._window)
        self._window, self._opened = [], now
        self._points += 1
        if self._points % POINTS_AN_INTERVAL == 0:
            self._interval *= 2
        return point

    def summary(self) -> dict[str, float]:
        """`MACHINE_METRICS`, those that have a value."""
        self._summarise(self._window)
        self._window = []
        found = {name: total / self._counts[name] for name, total in self._sums.items()}
        return found | ({"gpu_memory_peak_bytes": float(self._peak)} if self._peak else {})

    def _summarise(self, window: list[Figures]) -> None:
        for one in window:
            on_gpu = _is_gpu(one)
            self._count("gpu_busy_fraction" if on_gpu else "cpu_busy_fraction", one.busy)
            self._count("gpu_power_mean_watts", one.watts)
            if on_gpu and one.memory_bytes is not None:
                self._peak = max(self._peak, one.memory_bytes)

    def _count(self, name: str, value: float | None) -> None:
        if value is not None:
            self._sums[name] += value
            self._counts[name] += 1


def _is_gpu(one: Figures) -> bool:
    return "/gpu" in one.machine


def _series(window: list[Figures]) -> dict[str, float]:
    hosts = [one for one in window if not _is_gpu(one)]
    gpus = [one for one in window if _is_gpu(one)]
    point = _of_kind(hosts, "cpu", "system_memory") | _of_kind(gpus, "gpu", "gpu_memory")
    watts: dict[str, list[float]] = defaultdict(list)
    for one in gpus:
        if one.watts is not None:
            watts[one.machine].append(one.watts)
    if watts:
        total = sum(sum(values) / len(values) for values in watts.values())
        point["system/gpu_power_usage_watts"] = total
    return point


def _of_kind(some: list[Figures], kind: str, memory: str) -> dict[str, float]:
    point = {}
    if busy := [one.busy for one in some if one.busy is not None]:
        point[f"system/{kind}_utilization_percentage"] = 100 * sum(busy) / len(busy)
    if used := [one.memory_bytes for one in some if one.memory_bytes is not None]:
        point[f"system/{memory}_usage_megabytes"] = max(used) / 1e6
    if shares := [one.memory_share for one in some if one.memory_share is not None]:
        point[f"system/{memory}_usage_percentage"] = 100 * max(shares)
    return point
