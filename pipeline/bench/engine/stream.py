"""`dpiframe bench stream`: throughput of `Engine.stream` from host memory, in steady state."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from dpiframe_core import Engine, ModelSpec
from pipeline.bench.cases.engine_case import Batch, EngineCase
from pipeline.bench.engine.ceilings import host_to_device_rate
from pipeline.bench.engine.cuda_engine import (
    DeviceInput,
    on_device,
    open_engine,
    require_gpu,
    time_back_to_back,
)
from pipeline.bench.engine.implementations import SCORES_AGREE
from pipeline.bench.machine import machine
from pipeline.bench.timing import Timing
from pipeline.errors import DpiframeError

GROUP = 8  # batches per time sample
SKIPPED = 16  # batches at the start and at the end, which are not in steady state


class StreamCase(EngineCase):
    """A case whose batches lie in host memory, pinned or pageable."""

    inputs: Literal["pinned", "pageable"] = "pinned"
    batch: int = Field(default=65536, ge=1)
    id_type: Literal["int32", "int64"] = "int32"
    device: Literal["cpu", "cuda"] = "cuda"
    batches: int = Field(default=200, ge=2 * SKIPPED + 2 * GROUP + 1)


class StreamReport(BaseModel):
    """Milliseconds a batch: streamed; only copied to the GPU; only computed on the GPU."""

    model_config = ConfigDict(frozen=True)

    case: StreamCase
    title: str
    stream: Timing
    compute: Timing
    copy_ms: float
    copy_gb_s: float
    copied_bytes: int  # to the GPU, a batch
    machine: dict[str, str]

    def share(self) -> float:
        """The rate reached, as a share of the smaller of copy rate and compute rate."""
        return max(self.copy_ms, self.compute.median) / self.stream.median

    def million_rows_s(self) -> float:
        """Rows scored, in 10^6 a second."""
        return self.case.batch / self.stream.median / 1e3


def bench_stream(case: StreamCase) -> StreamReport:
    """Stream many batches; also measure the copy and compute rates, which bound the stream."""
    require_gpu()
    spec, weights = case.load()
    engine, backend = open_engine(spec, weights, case)
    try:
        batches = [in_memory(batch, case.inputs) for batch in case.draw(spec)]
        inputs = on_device(batches)
        _agree(engine, batches, inputs)
        stream = Timing.of(stream_gaps(engine, batches, case.batches))
        compute = time_back_to_back(backend, inputs, 10)
    finally:
        engine.close()
    rate = host_to_device_rate(pinned=True)
    size = copied_bytes(spec, case.batch, case.inputs, case.id_type)
    return StreamReport(
        case=case,
        title=case.describe(spec),
        stream=stream,
        compute=compute,
        copy_ms=size / rate / 1e6,
        copy_gb_s=rate,
        copied_bytes=size,
        machine=machine("cuda"),
    )


def show(report: StreamReport) -> str:
    """The report in words."""
    r, case = report, report.case
    return (
        f"stream, {r.title}, {case.inputs} memory, {r.machine['gpu']}\n"
        f"{r.stream.median:.3f} ms a batch ({r.stream.p10:.3f} to {r.stream.p90:.3f}), "
        f"{r.million_rows_s():.1f} M rows/s: {r.share():.0%} of the smaller of copy "
        f"({r.copy_ms:.3f} ms for {r.copied_bytes:,} bytes at {r.copy_gb_s:.1f} GB/s) and compute "
        f"({r.compute.median:.3f} ms back to back)"
    )


def stream_gaps(engine: Engine, batches: Sequence[Batch], count: int) -> list[float]:
    """Milliseconds a batch, each over GROUP batches, of `count` batches in steady state."""
    many = itertools.islice(itertools.cycle(batches), count)
    ends = []
    for _ in engine.stream((batch.ids, batch.dense) for batch in many):
        ends.append(time.perf_counter())
    sampled = ends[SKIPPED:-SKIPPED:GROUP]
    return [1e3 * (end - began) / GROUP for began, end in itertools.pairwise(sampled)]


def copied_bytes(spec: ModelSpec, batch: int, inputs: str, id_type: str) -> int:
    """Bytes of a batch on their way to the GPU.

    Pageable ids are packed, into 32 bits where all tables allow; pinned ids are copied as they are.
    """
    narrow = all(field.rows <= np.iinfo(np.int32).max for field in spec.fields)
    id_bytes = np.dtype(id_type).itemsize if inputs == "pinned" else 4 if narrow else 8
    return batch * (id_bytes * len(spec.fields) + 4 * len(spec.dense))


def in_memory(batch: Batch, memory: str) -> Batch:
    """The batch copied to pinned or pageable memory."""
    if memory == "pageable":
        return Batch(batch.ids.copy(), batch.dense.copy())
    return Batch(*(torch.from_numpy(x).pin_memory().numpy() if len(x) else x for x in batch))


def _agree(engine: Engine, batches: Sequence[Batch], inputs: Sequence[DeviceInput]) -> None:
    """DpiframeError unless streamed scores are those of arrays on the device."""
    streamed = list(engine.stream((batch.ids, batch.dense) for batch in batches))
    for scores, given in zip(streamed, inputs, strict=True):
        difference = np.abs(engine.score(*given).cpu().numpy() - scores).max()
        if not difference <= SCORES_AGREE:
            raise DpiframeError(
                f"streamed scores differ from those on the device by {difference:.1e}"
            )
