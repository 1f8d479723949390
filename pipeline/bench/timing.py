"""How implementations are timed: calls interleaved on the host's clock, graphs on the GPU's."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, field_validator

from pipeline.errors import DpiframeError

ROTATED_INPUTS = 8
GRAPH_LAUNCHES = 20  # kernel launches in a graph that is timed as a whole
GRAPH_INPUTS = 20  # rotated inside it, so that no launch finds the previous one's rows in a cache


class TimedError(DpiframeError):
    """A run failed while it was timed; `name`: which one."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(f"{name} failed while it was timed: {error}")
        self.name = name


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


class TimeRatio(BaseModel):
    """How many times as long one run takes as another in the same turns, and the standard error.

    Of each turn the quickest calls are compared, of the turns the median is taken: what disturbs
    the machine for a turn or for a few calls changes neither. What differs from load to load, such
    as its place in memory, is the same in all its turns: of several loads each counts as one turn.
    """

    model_config = ConfigDict(frozen=True)

    ratio: float
    error: float  # infinite, in JSON null, of a single turn
    turns: int

    @field_validator("error", mode="before")
    @classmethod
    def _null_is_infinite(cls, value: object) -> object:
        return math.inf if value is None else value

    @classmethod
    def of(cls, samples: Sequence[float], base: Sequence[float]) -> TimeRatio:
        """The ratio of samples that `interleaved` gave."""
        return cls.of_turns(_turns(samples), _turns(base))

    @classmethod
    def of_turns(
        cls, samples: Sequence[Sequence[float]], base: Sequence[Sequence[float]]
    ) -> TimeRatio:
        """The ratio of samples turn by turn."""
        whole = [min(some) / min(others) for some, others in zip(samples, base, strict=True)]
        if len(whole) < 2:
            return cls(ratio=whole[0], error=math.inf, turns=len(whole))
        # Of the quartiles, which outliers do not move: sigma of a normal distribution is their
        # distance over 1.349, the standard error of a median 1.2533 sigma / sqrt(n).
        low, _, high = statistics.quantiles(whole, n=4, method="inclusive")
        error = 1.2533 * (high - low) / 1.349 / math.sqrt(len(whole))
        return cls(ratio=statistics.median(whole), error=error, turns=len(whole))


def _turns(samples: Sequence[float]) -> list[Sequence[float]]:
    return [samples[i : i + ROTATED_INPUTS] for i in range(0, len(samples), ROTATED_INPUTS)]


def interleaved(
    runs: Mapping[str, Callable[[int], object]], repeats: int
) -> dict[str, list[float]]:
    """Milliseconds of calls of runs in turns, so that all see the same disturbances of the machine.

    A turn of a run is every input once as warm-up and once timed, so that its caches hold its own
    data, as where a user calls it many times in a row. TimedError names the run that failed.
    """
    taken: dict[str, list[float]] = {name: [] for name in runs}
    while taken and min(map(len, taken.values())) < repeats:
        for name, run in runs.items():
            try:
                taken[name] += _turn(run)
            except Exception as error:
                raise TimedError(name, error) from error
    return taken


def time_interleaved(
    runs: Mapping[str, Callable[[int], object]], repeats: int
) -> dict[str, Timing]:
    """The timings of runs in turns."""
    return {name: Timing.of(samples) for name, samples in interleaved(runs, repeats).items()}


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
    # A workspace of cuBLAS that an earlier graph's memory gave would go with that graph, or with
    # torch.compile's graphs, which free all of them.
    torch._C._cuda_clearCublasWorkspaces()
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
