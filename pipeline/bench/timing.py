"""How runs are timed: side by side and in turns; and a graph of launches, which is GPU time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

ROTATED_INPUTS = 8
GRAPH_LAUNCHES = 20  # of a graph that is timed as a whole
GRAPH_INPUTS = 20  # rotated inside it, so that a launch finds no rows of the one before in a cache


class Timing(BaseModel):
    """Milliseconds: the median, and the 10th and 90th percentile over the repeats."""

    model_config = ConfigDict(frozen=True)

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Timing:
        """The timing of samples in milliseconds, 2 at least."""
        cuts = statistics.quantiles(samples, n=10, method="inclusive")
        return cls(median=statistics.median(samples), p10=cuts[0], p90=cuts[-1])


def time_side_by_side(
    runs: Mapping[str, Callable[[int], object]], repeats: int
) -> dict[str, Timing]:
    """Time the runs in turns, so that they share the machine's disturbances.

    A turn is every input once, after every input once that is not counted: a run is measured as its
    user calls it, many times in a row, not in caches that another run has filled.
    """
    taken: dict[str, list[float]] = {name: [] for name in runs}
    while taken and min(map(len, taken.values())) < repeats:
        for name, run in runs.items():
            for call in range(-ROTATED_INPUTS, ROTATED_INPUTS):
                began = time.perf_counter()
                run(call % ROTATED_INPUTS)
                if call >= 0:
                    taken[name].append(1e3 * (time.perf_counter() - began))
    return {name: Timing.of(samples) for name, samples in taken.items()}


def capture(launches: Callable[[], Any], warm_ups: int = 3) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of what `launches` enqueues on torch's current stream, and what it returned."""
    for _ in range(warm_ups):
        launches()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = launches()
    return graph, result


def time_graphs(
    graphs: Mapping[str, torch.cuda.CUDAGraph], launches: int, repeats: int
) -> dict[str, Timing]:
    """Milliseconds of one of a graph's `launches`, by the GPU's own clock; in turns."""
    taken: dict[str, list[float]] = {name: [] for name in graphs}
    for repeat in range(-1, repeats):
        for name, graph in graphs.items():
            milliseconds = time_on_gpu(graph.replay) / launches
            if repeat >= 0:
                taken[name].append(milliseconds)
    return {name: Timing.of(samples) for name, samples in taken.items()}


def time_on_gpu(work: Callable[[], object]) -> float:
    """Milliseconds between two events around what `work` enqueues on torch's current stream."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    work()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended))


def seconds(work: Callable[[], object], repeats: int = 20) -> float:
    """The median time of one call, synchronised."""

    def run(_: int) -> None:
        work()
        torch.cuda.synchronize()

    return time_side_by_side({"": run}, repeats)[""].median / 1e3
