"""Where CUDA fails: a clear error, an engine that refuses further use, and nothing else harmed."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from cuda_cases import (
    DEVICE,
    batches,
    check,
    cuda_engine,
    cuda_options,
    device_scores,
    free_bytes,
    large_model,
    logits,
    lowered,
    on_device,
    program_of_size,
)

from dpiframe_core import load_engine, save_bundle
from dpiframe_core.engine.cuda.backend import CudaBackend, Faults
from dpiframe_core.errors import DeviceMemoryError

SIZES = r"the GPU gave no (\d+) bytes \((\d+) of (\d+) bytes are free\)"


def test_too_little_memory_is_an_error_with_sizes(alone):
    """For the weights, the arena, and the ring; all that was taken before is given back."""
    model = large_model("dcn")
    made = batches(model, (111, 19))
    other = cuda_engine(model, max_batch=128)
    check(other, *made)  # a graph takes memory when it runs first
    program = program_of_size("wdl", rows=200_000)
    options = cuda_options(precision="fp16", max_batch=2**18)
    engine = CudaBackend(program, options)
    needed = engine.device_bytes
    engine.close()
    before = free_bytes()
    for part in (0.05, 0.5, 0.95):
        filler = torch.empty(before - int(part * needed), dtype=torch.uint8, device=DEVICE)
        with pytest.raises(DeviceMemoryError, match=SIZES) as error:
            CudaBackend(program, options)
        asked, free, _ = map(int, re.search(SIZES, str(error.value)).groups())
        assert free < asked + 2**22  # the driver gives whole pages
        assert asked <= needed
        check(other, *made)
        del filler, error
        assert before - free_bytes() <= 2**21
    CudaBackend(program, options).close()
    assert before - free_bytes() <= 2**21


def test_a_smaller_engine_fits_while_the_error_is_handled(alone, tmp_path):
    """What a caller does who has less memory than the batches need."""
    model = large_model("dcn")
    opened = save_bundle(tmp_path / "b", model.spec, model.state_dict())
    load_engine(opened, device="cuda", max_batch=64).close()
    engine = load_engine(opened, device="cuda", max_batch=2**18)
    needed = engine._backend.device_bytes
    engine.close()
    before = free_bytes()
    for part in (0.5, 0.85):  # for the arena, for the ring
        filler = torch.empty(before - int(part * needed), dtype=torch.uint8, device=DEVICE)
        free = int(torch.cuda.mem_get_info()[0])
        try:
            with pytest.raises(DeviceMemoryError) as raised:
                load_engine(opened, device="cuda", max_batch=2**18)
            assert raised.value.__context__ is None
            assert free - int(torch.cuda.mem_get_info()[0]) <= 2**21
            smaller = load_engine(opened, device="cuda", max_batch=2**12)
            batch = batches(model, (111,))[0]
            assert len(smaller.score(batch.ids)) == 111
            smaller.close()
        finally:  # a failure must not keep all memory from the tests that follow
            del filler
            free_bytes()


def test_an_arena_larger_than_any_gpu():
    model = large_model("dcn")
    with pytest.raises(DeviceMemoryError, match=SIZES):
        cuda_engine(model, max_batch=2**31)
    check(cuda_engine(model, max_batch=64), *batches(model, (19, 64)))


@pytest.mark.parametrize("streams", [1, 4])
def test_a_failed_launch_makes_the_engine_unusable_and_nothing_else(streams):
    """Whichever step it is, from host and device inputs."""
    model = large_model("dcnv2")
    made = batches(model, (19, 64))
    ids, dense = on_device(made[0].ids, made[0].dense)
    options = {"max_batch": 64, "streams": streams}
    other = cuda_engine(model, **options)
    for step in range(len(lowered(model).steps)):
        for first_on_device in (False, True):
            engine = cuda_engine(model, graphs=False, faults=Faults(refused_step=step), **options)
            calls = [
                lambda engine=engine: logits(engine, made[0].ids, made[0].dense),
                lambda engine=engine: device_scores(engine, ids, dense),
            ]
            refused = r"cudaGetLastError\(\) failed at .*: cudaErrorInvalid"
            with pytest.raises(RuntimeError, match=refused):
                calls[first_on_device]()
            for call in calls:
                with pytest.raises(RuntimeError, match="failed before and cannot be used any more"):
                    call()
            check(other, *made)
            engine.close()


def test_a_failed_launch_gives_its_memory_back(alone):
    model = large_model("dcn")
    ids, dense = (np.zeros((12, 5), np.int64), np.empty((0, 5), np.float32))
    options = {"max_batch": 100_000, "graphs": False}
    cuda_engine(model, **options).close()
    before = free_bytes()
    for _ in range(3):
        engine = cuda_engine(model, faults=Faults(refused_step=2), **options)
        with pytest.raises(RuntimeError, match="cudaErrorInvalid"):
            logits(engine, ids, dense)
        engine.close()
    assert before - free_bytes() <= 2**21
