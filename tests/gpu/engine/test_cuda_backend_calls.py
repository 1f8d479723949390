"""What a batch asks of CUDA, as torch's profiler sees it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from cuda_cases import DEVICE, cuda_engine, even_model, on_device
from model_zoo import random_inputs
from odd_models import odd_shapes
from torch.profiler import ProfilerActivity, profile, record_function

# cudaMemcpy and cudaMemset without Async wait for the device.
FORBIDDEN = re.compile(
    r"Alloc|Free|HostRegister|DeviceSynchronize|CtxSynchronize|Create|Destroy|Instantiate"
    r"|ModuleLoad|(Memcpy|Memset)(_v\d+)?$"
)
SIZES = (1, 111, 4096, 64, 4096, 19)


def calls_of(work, path) -> list[str]:
    """The calls of CUDA that `work` makes."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        with record_function("batches"):
            work()
        torch.cuda.synchronize()
    profiled.export_chrome_trace(str(path))
    events = [e for e in json.loads(path.read_text())["traceEvents"] if {"dur", "cat"} <= set(e)]
    span = next(e for e in events if e["name"] == "batches" and e["cat"] == "user_annotation")
    end = span["ts"] + span["dur"]
    calls = [e for e in events if e["cat"] in ("cuda_runtime", "cuda_driver")]
    names = [e["name"] for e in calls if span["ts"] <= e["ts"] <= end]
    if not names:
        pytest.skip("the profiler saw no call of CUDA")
    return names


class Case:
    """An engine, and batches from host and device memory; nothing here asks torch for memory."""

    def __init__(self, **options) -> None:
        model = even_model(odd_shapes("dcnv2")[0].spec())
        self.engine = cuda_engine(model, max_batch=4096, **options)
        self.ids, self.dense = random_inputs(model.spec, 4096)
        (self.there,) = on_device(self.ids)
        self.out = torch.empty(4096, device=DEVICE)
        self.host_out = np.empty(4096, np.float32)
        torch.cuda.synchronize()

    def run(self, bad: bool = False) -> None:
        for size in SIZES:
            self.engine.run_on_device(self.there[:, :size], None, self.out.data_ptr(), size, False)
        ids = self.ids.copy()
        ids[0] -= bad
        parts = [(list(ids[:, :n]), self.dense[:, :n], self.host_out[:n]) for n in SIZES]
        for _ in self.engine.stream(parts, False):
            pass


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_batches_allocate_nothing_and_do_not_stop_the_device(precision, graphs, tmp_path):
    case = Case(precision=precision, graphs=graphs)
    case.run()
    names = calls_of(lambda: (case.run(), case.run(bad=True)), tmp_path / "trace.json")
    assert not [name for name in names if FORBIDDEN.search(name)]
    launch = "GraphLaunch" if graphs else "LaunchKernel"
    assert any(launch in name for name in names), sorted(set(names))
