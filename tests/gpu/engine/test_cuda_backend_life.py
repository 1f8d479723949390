"""The CUDA engine's memory over its life, and several engines at once."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from cuda_cases import (
    DEVICE,
    Batch,
    batches,
    check,
    check_on_device,
    cuda_engine,
    cuda_options,
    free_bytes,
    large_model,
    logits,
    on_device,
    program_of_size,
)

from dpiframe_core.engine.cuda.backend import CudaBackend
from dpiframe_core.model.torch_module import CTRModel

PAGE = 2**21  # the driver's own unit
CONSTANT = 2**24  # graphs and what else the driver keeps for an engine


def host_bytes() -> int:
    """Memory of this process."""
    gc.collect()
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["wdl", "dcnv2"])
def test_memory_is_tables_and_one_arena(alone, name, precision):
    program, rows = program_of_size(name, rows=600_000), 39 * 600_000
    options = cuda_options(precision=precision)
    CudaBackend(program, options).close()  # CUDA's own memory for kernels is taken here
    before = free_bytes()
    engine = CudaBackend(program, options)
    taken = before - free_bytes()
    tables = rows * 16 * (4 if precision == "fp32" else 2) + (rows * 4 if name == "wdl" else 0)
    assert taken <= 1.05 * (tables + engine.arena_bytes) + CONSTANT
    assert abs(taken - engine.device_bytes) <= CONSTANT
    engine.close()
    assert before - free_bytes() <= PAGE


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_10_000_batches_take_no_memory_and_close_frees_all(alone, precision):
    model = large_model("dcnv2")
    batch = batches(model, [20_000])[0]
    (ids,) = on_device(batch.ids)
    out = torch.empty(batch.size, device=DEVICE)
    options = {"precision": precision, "max_batch": 20_000}
    cuda_engine(model, **options).close()
    before = free_bytes()
    engine = cuda_engine(model, **options)
    expected = logits(engine, batch.ids, batch.dense)
    for i in range(11_000):
        if i == 1000:
            taken, held = before - free_bytes(), host_bytes()
        size = 20_000 if i % 250 == 0 else 1 + i * 7 % 700
        if i % 2:
            engine.run_on_device(ids[:, :size], None, out.data_ptr(), size, False)
        else:
            logits(engine, batch.ids[:, :size], batch.dense[:, :size])
    assert before - free_bytes() == taken
    assert host_bytes() - held < 2**24
    np.testing.assert_array_equal(logits(engine, batch.ids, batch.dense), expected)
    engine.close()
    assert before - free_bytes() <= PAGE


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_two_engines_take_turns_on_one_thread(precision):
    models = [large_model("dcn", 1), large_model("dcnv2", 2)]
    made = [batches(model, (19, 500, 111, 1111)) for model in models]
    engines = [cuda_engine(m, precision=precision, max_batch=512) for m in models]
    for turn in range(4):
        for engine, own in zip(engines, made, strict=True):
            check(engine, own[turn], own[0])
    expected = [logits(e, own[3].ids, own[3].dense) for e, own in zip(engines, made, strict=True)]
    got = [np.full(1111, np.nan, np.float32) for _ in models]
    both = [
        engine.stream(parts_of(own[3], out, 100), False, scores=False)
        for engine, own, out in zip(engines, made, got, strict=True)
    ]
    for _ in zip(*both, strict=True):  # batches of both are in flight
        pass
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 if precision == "fp32" else 6e-2)


def parts_of(batch: Batch, out: np.ndarray, rows: int):
    for start in range(0, batch.size, rows):
        part = slice(start, start + rows)
        yield list(batch.ids[:, part]), batch.dense[:, part], out[part]


def test_two_engines_on_two_threads():
    """Each thread makes its engine, uses it and closes it while the other does the same."""
    models = [large_model("dcn", 1), large_model("deepfm", 2)]
    cases = [(model, batches(model, (1, 19, 500, 111, 700))) for model in models]

    def work(model: CTRModel, made: list[Batch], precision: str) -> None:
        for turn in range(10):
            engine = cuda_engine(model, precision=precision, max_batch=512, graphs=turn % 2 == 0)
            for batch, between in zip(made, reversed(made), strict=True):
                check(engine, batch, between)
                with torch.cuda.stream(torch.cuda.Stream()):
                    check_on_device(engine, batch)
            engine.close()

    with ThreadPoolExecutor(2) as pool:
        for precision in ("fp32", "fp16"):
            for done in [pool.submit(work, *case, precision) for case in cases]:
                done.result()


def test_a_second_thread_on_one_engine_is_refused():
    model = large_model("dcn")
    batch = batches(model, [64])[0]
    engine = cuda_engine(model, max_batch=64)
    started, go_on = threading.Event(), threading.Event()
    out = np.empty(64, np.float32)

    def parts():
        yield from parts_of(batch, out, 64)
        started.set()
        go_on.wait(30)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: list(engine.stream(parts(), False)))
        assert started.wait(30)
        try:
            with pytest.raises(RuntimeError, match="another thread"):
                engine.run(list(batch.ids), batch.dense, False, np.empty(64, np.float32))
        finally:
            go_on.set()
            other.result()
