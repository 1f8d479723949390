"""The CUDA engine with the options of a case, and the time of its batches back to back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from dpiframe_core import Bundle, Engine, ModelSpec
from dpiframe_core.engine.cuda.backend import CudaBackend, CudaOptions
from dpiframe_core.lowering import lower
from pipeline.bench.cases.engine_case import Batch, EngineCase
from pipeline.bench.engine.peers import Weights
from pipeline.bench.timing import Timing
from pipeline.errors import ConfigError

BACK_TO_BACK = 40  # batches that are enqueued without a wait and timed as a whole

DeviceInput = tuple[Tensor, Tensor | None]  # ids [F, B]; dense [N, B], None without dense features


def open_engine(
    spec: ModelSpec, weights: Weights, case: EngineCase, max_batch: int | None = None
) -> tuple[Engine, CudaBackend]:
    """The engine of a case and its CUDA backend; `max_batch` is the case's batch by default."""
    options = CudaOptions(
        precision=case.precision,
        max_batch=max_batch or case.batch,
        streams=case.streams,
        graphs=case.graphs,
        fused=case.one_kernel,
        compiled=case.fusion,
        policy=case.policy,
        threads=case.threads,
    )
    backend = CudaBackend(lower(spec, weights, case.passes()), options)
    return Engine(Bundle(Path(), spec, digest=""), backend, case.precision, "fail"), backend


def require_gpu() -> None:
    """ConfigError where torch sees no GPU."""
    if not torch.cuda.is_available():
        raise ConfigError("device cuda: torch sees no GPU here; see `dpiframe doctor`")


def on_device(batches: Sequence[Batch]) -> list[DeviceInput]:
    """The batches in GPU memory."""
    return [
        (torch.from_numpy(b.ids).cuda(), torch.from_numpy(b.dense).cuda() if len(b.dense) else None)
        for b in batches
    ]


def time_back_to_back(backend: CudaBackend, inputs: Sequence[DeviceInput], repeats: int) -> Timing:
    """Milliseconds of a batch on the GPU where many run back to back and none is waited for."""
    batch = inputs[0][0].shape[1]
    outs = [torch.empty(batch, device="cuda") for _ in inputs]
    torch.cuda.synchronize()  # the copies of the inputs are done
    taken = []
    for repeat in range(-1, repeats):
        began = time.perf_counter()
        for call in range(BACK_TO_BACK):
            i = call % len(inputs)
            backend.start_on_device(*inputs[i], outs[i].data_ptr(), batch, False)
        backend.finish_on_device()
        if repeat >= 0:
            taken.append(1e3 * (time.perf_counter() - began) / BACK_TO_BACK)
    return Timing.of(taken)
