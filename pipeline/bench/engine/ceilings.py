"""The ceilings of the machine's roofline: copies, GEMM, gathers, a launch; measured in the run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from dpiframe_core import _core
from pipeline.bench.engine.implementations import reason
from pipeline.bench.timing import Timing, capture, seconds, time_with_events

COPY_BYTES = 2**31
HOST_BYTES = 2**28
GEMM_SIZE = 8192
GATHER_TABLE_ROWS = 33_000_000  # as many as the Criteo tables have
GATHER_ROWS = 65_536 * 39


def ceilings() -> tuple[dict[str, float], dict[str, str]]:
    """Each ceiling by name, with its unit in the name; and why the missing ones failed."""
    measures: dict[str, Callable[[], float]] = {
        "copy_tb_s": _copy_rate,
        "fp32_tflop_s": partial(_gemm_rate, torch.float32, False),
        "tf32_tflop_s": partial(_gemm_rate, torch.float32, True),
        "fp16_tflop_s": partial(_gemm_rate, torch.float16, False),
        "gather_64_byte_rows_g_s": partial(_gather_rate, 64),
        "gather_32_byte_rows_g_s": partial(_gather_rate, 32),
        "host_to_device_pinned_gb_s": partial(host_to_device_rate, True),
        "host_to_device_pageable_gb_s": partial(host_to_device_rate, False),
        "graph_of_one_kernel_us": _graph_of_one_kernel,
    }
    found, failed = {}, {}
    for name, measure in measures.items():
        try:
            found[name] = measure()
        except Exception as error:
            failed[name] = reason(error)
    return found, failed


def host_to_device_rate(pinned: bool) -> float:
    """GB/s of copies of 256 MiB from the host."""
    source = torch.empty(HOST_BYTES, dtype=torch.uint8, pin_memory=pinned)
    source.fill_(1)  # commit its pages
    target = torch.empty(HOST_BYTES, dtype=torch.uint8, device="cuda")
    return HOST_BYTES / seconds(lambda: target.copy_(source, non_blocking=True), 8) / 1e9


def time_copy(num_bytes: int, to_device: bool, repeats: int = 20) -> Timing:
    """Milliseconds of a copy between pinned memory and the GPU, between two events."""
    host = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
    target, source = (device, host) if to_device else (host, device)
    copy = partial(target.copy_, source, non_blocking=True)
    return _event_timing(copy, repeats)


def _event_timing(work: Callable[[], object], repeats: int) -> Timing:
    """Milliseconds by the GPU's clock, after 4 warm-up runs."""
    return Timing.of([time_with_events(work) for _ in range(repeats + 4)][4:])


def _copy_rate() -> float:
    """TB/s of a copy on the device, read and written bytes counted."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / seconds(lambda: target.copy_(source)) / 1e12


def _gemm_rate(dtype: torch.dtype, tf32: bool) -> float:
    """TFLOP/s of a large GEMM (cuBLAS)."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    a, b = (torch.randn(GEMM_SIZE, GEMM_SIZE, device="cuda", dtype=dtype) for _ in range(2))
    taken = seconds(partial(torch.matmul, a, b), 8)
    torch.backends.cuda.matmul.allow_tf32 = False
    return float(2 * GEMM_SIZE**3 / taken / 1e12)


def _gather_rate(row_bytes: int) -> float:
    """10^9 rows/s of the plain gather kernel at random rows."""
    table = torch.empty(GATHER_TABLE_ROWS, row_bytes, dtype=torch.uint8, device="cuda")
    rows = torch.randint(GATHER_TABLE_ROWS, (GATHER_ROWS,), device="cuda")
    out = torch.empty(GATHER_ROWS, row_bytes, dtype=torch.uint8, device="cuda")

    def launch() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        addresses = table.data_ptr(), rows.data_ptr(), GATHER_ROWS, row_bytes, out.data_ptr()
        _core.plain_gather(*addresses, stream)

    return GATHER_ROWS / _event_timing(launch, 20).median / 1e6


def _graph_of_one_kernel() -> float:
    """Microseconds from launch to end of a CUDA graph of one empty kernel."""
    number = torch.zeros(1, device="cuda")
    graph, _ = capture(lambda: number.add_(1))
    return 1e6 * seconds(graph.replay, 100)
