"""How implementations are timed: calls interleaved on the host's clock, graphs on the GPU's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from pipeline.errors import DpiframeError

ROTATED_INPUTS = 8
GRAPH_LAUNCHES = 20  # kernel launches in a graph that is timed as a whole
GRAPH_INPUTS = 20  # rotated inside it, so that no launch finds the previous one's rows in a cache


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


def time_interleaved(
    runs: Mapping[str, Callable[[int], object]], repeats: int
) -> dict[str, Timing]:
    """Time the runs interleaved, so that all see the same disturbances of the machine.

    A turn of a run is every input once as warm-up and once timed, so that its caches hold its own
    data, as where a user calls it many times in a row. DpiframeError names the run that failed.
    """
    taken: dict[str, list[float]] = {name: [] for name in runs}
    while taken and min(map(len, taken.values())) < repeats:
        for name, run in runs.items():
            try:
                taken[name] += _turn(run)
            except Exception as error:
                raise DpiframeError(f"{name} failed while it was timed: {error}") from error
    return {name: Timing.of(samples) for name, samples in taken.items()}


def _turn(run: Callable[[int], object]) -> list[float]:
    """Milliseconds of a turn's timed calls."""
    taken = []
    for call in range(-ROTATED_INPUTS, ROTATED_INPUTS):
        began = time.perf_counter()
        run(call % ROTATED_INPUTS)
        if call >= 0:
            taken.append(1e3 * (time.perf_counter() - began))
    return taken


def capture(
    launches: Callable[[], Any], warm_ups: int = 3, shared: torch.cuda.CUDAGraph | None = None
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of what `launches` enqueues on torch's current stream, and what it returned.

    `shared`: a graph whose memory it may use too, as the two never run at one time.
    """
    for _ in range(warm_ups):
        launches()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=shared.pool() if shared else None):
        result = launches()
    return graph, result


def time_graphs(
    graphs: Mapping[str, torch.cuda.CUDAGraph], launches: int, repeats: int
) -> dict[str, Timing]:
    """Milliseconds per launch of graphs of `launches` launches, by the GPU's clock; interleaved."""
    taken: dict[str, list[float]] = {name: [] for name in graphs}
    for repeat in range(-1, repeats):
        for name, graph in graphs.items():
            milliseconds = time_with_events(graph.replay) / launches
            if repeat >= 0:
                taken[name].append(milliseconds)
    return {name: Timing.of(samples) for name, samples in taken.items()}


def time_with_events(work: Callable[[], object]) -> float:
    """Milliseconds between two events around what `work` enqueues on torch's current stream."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    work()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended))


def seconds(work: Callable[[], object], repeats: int = 20) -> float:
    """The median time of one synchronised call."""

    def run(_: int) -> None:
        work()
        torch.cuda.synchronize()

    return time_interleaved({"": run}, repeats)[""].median / 1e3
