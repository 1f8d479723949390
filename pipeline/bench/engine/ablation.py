"""Ablation: what each optimisation is worth, and where the time of a batch goes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from dpiframe_core import Engine
from pipeline.bench.cases.engine_case import Batch, EngineCase
from pipeline.bench.engine.ceilings import time_copy
from pipeline.bench.engine.cuda_engine import DeviceInput, on_device, open_engine, time_back_to_back
from pipeline.bench.engine.stream import SKIPPED, copied_bytes, in_memory, stream_gaps
from pipeline.bench.timing import Timing, time_interleaved

TOGETHER = 20  # batches of each engine that are enqueued without a wait

SERIAL: dict[str, Any] = {"policy": "serial", "streams": 1}
NO_GRAPHS: dict[str, Any] = {"graphs": False}
NO_FUSED_KERNEL: dict[str, Any] = {"one_kernel": False}

# Label -> options of the engine. The first six each add one optimisation; the sixth is the default
# engine; the others change one or two options of the fifth.
VARIANTS: dict[str, dict[str, Any]] = {
    "a kernel an operation, a lookup a table": {
        **SERIAL,
        **NO_GRAPHS,
        "fusion": False,
        "lookup": "by_table",
    },
    "+ one lookup for all tables": {**SERIAL, **NO_GRAPHS, "fusion": False},
    "+ fusion": {**NO_FUSED_KERNEL, **SERIAL, **NO_GRAPHS},
    "+ graphs": {**NO_FUSED_KERNEL, **SERIAL},
    "+ streams, breadth first": NO_FUSED_KERNEL,
    "+ one kernel": {},
    "depth first": {**NO_FUSED_KERNEL, "policy": "depth_first"},
    "breadth first, no graphs": {**NO_FUSED_KERNEL, **NO_GRAPHS},
    "depth first, no graphs": {**NO_FUSED_KERNEL, **NO_GRAPHS, "policy": "depth_first"},
    "breadth first, no fusion": {"fusion": False},
    "breadth first, a lookup a table": {"lookup": "by_table"},
}

# Order of launches and streams of the steps' kernels.
STREAM_VARIANTS: dict[str, dict[str, Any]] = {
    "serial": {**NO_FUSED_KERNEL, **SERIAL},
    "depth first": {**NO_FUSED_KERNEL, "policy": "depth_first"},
    "breadth first": NO_FUSED_KERNEL,
    "auto": {**NO_FUSED_KERNEL, "policy": "auto"},
}


class AblationRow(BaseModel):
    """Milliseconds of one variant at one batch size: a synchronised call, and a batch of many that
    run back to back on the GPU. The difference is launch and synchronisation overhead."""

    model_config = ConfigDict(frozen=True)

    label: str
    case: EngineCase
    call: Timing
    back_to_back: Timing

    def waiting(self) -> float:
        """Launch and synchronisation overhead, as a share of a call."""
        return 1 - self.back_to_back.median / self.call.median


class TimeOfABatch(BaseModel):
    """Milliseconds of a batch from host memory: the whole call, and each part measured alone."""

    model_config = ConfigDict(frozen=True)

    case: EngineCase
    from_host: Timing  # one synchronised call with arrays in host memory
    on_device: Timing  # one synchronised call with arrays on the GPU
    compute: Timing  # a batch of many that run back to back on the GPU
    copy_in: Timing
    copy_out: Timing
    streamed: float  # a batch of a stream from the host, in steady state

    def launch_and_wait(self) -> float:
        """Launch and synchronisation overhead of a call with arrays on the GPU."""
        return self.on_device.median - self.compute.median

    def packing(self) -> float:
        """The rest of a call from the host: packing into pinned memory, and waits."""
        copies = self.copy_in.median + self.copy_out.median
        return self.from_host.median - self.on_device.median - copies


def bench_variant(
    label: str, options: dict[str, Any], case: EngineCase, batches: Sequence[int]
) -> list[AblationRow]:
    """Time one variant at each batch size; one engine, made for the largest, serves all."""
    case = case.model_copy(update=options)
    spec, weights = case.load()
    engine, backend = open_engine(spec, weights, case, max(batches))
    found = []
    try:
        for size in batches:
            sized = case.model_copy(update={"batch": size})
            given = on_device(sized.draw(spec))
            call = time_interleaved({"": partial(_score, engine, given)}, case.repeats)
            gpu = time_back_to_back(backend, given, 8)
            found.append(AblationRow(label=label, case=sized, call=call[""], back_to_back=gpu))
    finally:
        engine.close()
    return found


def bench_together(label: str, cases: Sequence[EngineCase]) -> list[AblationRow]:
    """Several engines on one GPU, a batch of each at one time; of the first case's options."""
    opened = []
    try:
        for case in cases:
            spec, weights = case.load()
            engine, backend = open_engine(spec, weights, case)
            given = on_device(case.draw(spec))
            outs = [torch.empty(case.batch, device="cuda") for _ in given]
            opened.append((engine, backend, given, outs, torch.cuda.Stream().cuda_stream))
        torch.cuda.synchronize()

        def run(i: int, repeats: int = 1) -> None:
            for _ in range(repeats):
                for _, backend, given, outs, stream in opened:
                    out = outs[i].data_ptr()
                    backend.start_on_device(*given[i], out, len(outs[i]), False, stream)
            for _, backend, *_ in opened:
                backend.finish_on_device()

        calls = time_interleaved({"one": run, "many": lambda i: run(i, TOGETHER)}, cases[0].repeats)
        many = calls["many"]
        gpu = Timing(**{name: x / TOGETHER for name, x in many.model_dump().items()})
        return [AblationRow(label=label, case=cases[0], call=calls["one"], back_to_back=gpu)]
    finally:
        for engine, *_ in opened:
            engine.close()


def _score(engine: Engine, inputs: list[DeviceInput], i: int) -> None:
    engine.score(*inputs[i])


def time_of_a_batch(case: EngineCase) -> TimeOfABatch:
    """Measure the whole and its parts on one engine."""
    spec, weights = case.load()
    engine, backend = open_engine(spec, weights, case)
    try:
        batches: list[Batch] = [in_memory(batch, "pinned") for batch in case.draw(spec)]
        given = on_device(batches)
        times = time_interleaved(
            {
                "host": lambda i: engine.score(batches[i].ids, batches[i].dense),
                "device": lambda i: engine.score(*given[i]),
            },
            case.repeats,
        )
        return TimeOfABatch(
            case=case,
            from_host=times["host"],
            on_device=times["device"],
            compute=time_back_to_back(backend, given, 8),
            copy_in=time_copy(
                copied_bytes(spec, case.batch, "pinned", case.id_type), to_device=True
            ),
            copy_out=time_copy(4 * case.batch, to_device=False),
            streamed=Timing.of(stream_gaps(engine, batches, 2 * SKIPPED + 65)).median,
        )
    finally:
        engine.close()
