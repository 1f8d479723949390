"""Where the time of a batch goes on a GPU: the kernels of our engine, by torch's profiler.

    python tests/gpu/kernel_times.py gdcn,dcnv2 --precision fp16,fp32 --batch 65536

Tables are small (`--scale`), so that a case opens in seconds; times of lookups are those of caches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from pipeline.bench.cases.engine_case import EngineCase
from pipeline.bench.engine.implementations import OURS, implementations

CALLS = 4  # that are profiled


class Measured(NamedTuple):
    """Seconds until the engine was open, ms of a call (median), what the profiler saw of CALLS."""

    opened: float
    call: float
    events: list[Any]


def measure(case: EngineCase, calls: int = 32) -> Measured:
    """So many calls of our engine, the first eight not counted, then those that are profiled."""
    spec, weights = case.load()
    began = time.perf_counter()
    ours = implementations(spec, weights, case)[OURS]()
    opened = time.perf_counter() - began
    taken = []
    for i in range(calls):
        began = time.perf_counter()
        ours.run(i % 8)
        taken.append(1e3 * (time.perf_counter() - began))
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for i in range(CALLS):
            ours.run(i)
        torch.cuda.synchronize()
    ours.close()
    return Measured(opened, statistics.median(taken[8:]), list(profiled.events()))


def show(case: EngineCase, timeline: bool) -> None:
    """One case: a call's time, then its kernels, the longest first."""
    measured = measure(case)
    times: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in measured.events:
        times[event.name] += event.device_time / CALLS
        calls[event.name] += 1
    last = sorted(measured.events, key=lambda event: event.time_range.start)
    last = last[len(last) - len(last) // CALLS :]
    title = f"{case.model} {case.precision} {case.batch:,}"
    print(f"{title}: {measured.call:.3f} ms, opened in {measured.opened:.1f} s")
    for name, microseconds in times.most_common(12):
        if microseconds >= 1:
            print(f"  {microseconds:9.1f} us in {calls[name] / CALLS:g}: {name[:100]}")
    if timeline:
        # A kernel may start early, and wait for those before it: what it adds is seen by the ends.
        for event in last:
            span = event.time_range
            start, end = span.start - last[0].time_range.start, span.end - last[0].time_range.start
            print(f"  {start:9.1f} to {end:.1f} us: {event.name[:80]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--batch", default="65536")
    parser.add_argument("--fields", type=int, default=26)
    parser.add_argument("--dense", type=int, default=13)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--hidden", default="400,400")
    parser.add_argument("--scale", type=float, default=0.02)
    parser.add_argument("--timeline", action="store_true", help="the kernels of the last call")
    options = vars(parser.parse_args())
    models, precisions, batches = (
        options.pop(name).split(",") for name in ("models", "precision", "batch")
    )
    timeline = options.pop("timeline")
    options["hidden"] = tuple(map(int, options["hidden"].split(",")))
    for model in models:
        for precision in precisions:
            for batch in batches:
                named = {"model": model, "precision": precision, "batch": int(batch)}
                case = {"device": "cuda", "peers": "none", **options, **named}
                show(EngineCase.model_validate(case), timeline)


if __name__ == "__main__":
    main()
