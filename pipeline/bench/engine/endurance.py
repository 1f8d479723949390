"""Many batches of mixed sizes through engines of every kind of model: does memory grow?"""

from __future__ import annotations

import gc
import itertools
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from dpiframe_core import Bundle, Engine
from dpiframe_core.engine.cpu import CpuBackend
from dpiframe_core.lowering import lower
from pipeline.bench.cases.engine_case import Batch, EngineCase
from pipeline.bench.engine.cuda_engine import on_device, open_engine
from pipeline.bench.machine import machine
from pipeline.errors import DpiframeError

BATCHES = 100_000
WARM_UP = 0.02  # of the batches: what is made once is there after them
BATCHES_A_TURN = 4
ROUNDING = 2e-2  # of scores: a batch of another size may be computed by another kernel
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class EnduranceReport(BaseModel):
    """Batches scored after the warm-up, and by how many bytes memory grew meanwhile.

    `wanted`: how many batches there should have been; a limit of time may have come before.
    """

    model_config = ConfigDict(frozen=True)

    engines: list[str]
    wanted: int
    batches: int
    samples: int
    seconds: float
    device_growth: int
    host_growth: int
    machine: dict[str, str]


def show(report: EnduranceReport) -> str:
    """The report in a line."""
    return (
        f"{report.batches:,} of {report.wanted:,} batches ({report.samples:,} samples) through "
        f"{len(report.engines)} engines in {report.seconds:.0f} s: GPU memory grew by "
        f"{report.device_growth:,} bytes, the process by {report.host_growth:,}"
    )


class _Opened(NamedTuple):
    """An engine, samples on the host and on its device, and the scores that they have."""

    engine: Engine
    host: Batch
    device: Sequence[Any]  # as host: ids [F, B], dense [N, B] or None
    scores: np.ndarray


def endure(cases: Sequence[EngineCase], minutes: float, batches: int = BATCHES) -> EnduranceReport:
    """Score batches of random sizes, from the host, in streams and on the GPU, in turns.

    DpiframeError where a sample's score is another than at first.
    """
    device = cases[0].device
    opened = [_open(case) for case in cases]
    sizes = random.Random(0)
    try:
        turns = _turns(opened, sizes)
        for _ in range(max(3 * len(cases), int(WARM_UP * batches) // BATCHES_A_TURN)):
            next(turns)
        before, began, done, samples = _memory(device), time.perf_counter(), 0, 0
        while done < batches and time.perf_counter() - began < 60 * minutes:
            scored = next(turns)
            done, samples = done + len(scored), samples + sum(scored)
        seconds, after = time.perf_counter() - began, _memory(device)
    finally:
        for each in opened:
            each.engine.close()
    return EnduranceReport(
        engines=[f"{case.model} {case.precision}" for case in cases],
        wanted=batches,
        batches=done,
        samples=samples,
        seconds=seconds,
        device_growth=after[0] - before[0],
        host_growth=after[1] - before[1],
        machine=machine(device),
    )


def _open(case: EngineCase) -> _Opened:
    spec, weights = case.load()
    host = case.draw(spec)[0]
    if case.device == "cuda":
        engine, _ = open_engine(spec, weights, case)
        (device,) = on_device([host])
        return _Opened(engine, host, device, engine.score(*device).cpu().numpy())
    backend = CpuBackend(lower(spec, weights), case.batch, case.threads)
    engine = Engine(Bundle(Path(), spec, digest=""), backend, case.precision, "fail")
    return _Opened(engine, host, host, engine.score(*host))


def _turns(opened: Sequence[_Opened], sizes: random.Random) -> Iterator[list[int]]:
    """Score BATCHES_A_TURN batches of one engine, each way in turn; yields their sizes."""
    for turn in itertools.count():
        engine, host, device, scores = opened[turn % len(opened)]
        counts = [sizes.randint(1, len(scores)) for _ in range(BATCHES_A_TURN)]
        way = turn // len(opened) % 3
        given = [_first(device if way == 2 else host, n) for n in counts]
        if way == 0:
            found = list(engine.stream((ids, dense) for ids, dense in given))
        else:
            found = [engine.score(*inputs) for inputs in given]
        last = torch.as_tensor(found[-1]).cpu().numpy()
        away = float(np.abs(last - scores[: counts[-1]]).max())
        if not away <= ROUNDING:
            raise DpiframeError(f"turn {turn}: a score is {away:.1e} away from what it was")
        yield counts


def _first(arrays: Sequence[Any], count: int) -> list[Any]:
    return [None if array is None else array[:, :count] for array in arrays]


def _memory(device: str) -> tuple[int, int]:
    """Bytes in use on the GPU, by anyone, and resident bytes of this process."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
    if device == "cpu":
        return 0, resident
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free, resident
