"""Batches on the GPU run on the caller's stream: after its work, and all is there on return."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache

import numpy as np
import pytest
import torch
from cuda_cases import DEVICE, cuda_engine, even_model, inputs, logits, on_device
from odd_models import odd_shapes

from dpiframe_core import _core, load_engine, save_bundle
from dpiframe_core.engine.cuda.backend import CudaBackend, Faults
from dpiframe_core.model.builtin import MODELS
from dpiframe_core.model.torch_module import CTRModel

SIZES = (1, 19, 111, 4096, 8193)
TOLD_ROWS = 16384  # batches of up to so many rows tell their end themselves
CALLS = 50  # of each size
LEGACY, PER_THREAD = 1, 2  # CUDA's names of its default streams; 0 is the first, too
LATE = 10**6  # cycles


@lru_cache(maxsize=1)
def model_of(name: str) -> CTRModel:
    return even_model(odd_shapes(name)[0].spec())


class Outputs:
    """Where scores go: memory of the host, which no copy stands before, and of the device."""

    def __init__(self, engine: CudaBackend, name: str, size: int) -> None:
        self.engine, self.size = engine, size
        ids, dense = inputs(model_of(name).spec, size)
        self.expected = logits(engine, ids, dense, scores=True)
        (self.ids,) = on_device(ids)
        self.late = torch.zeros_like(self.ids)
        self.host = torch.empty(size, pin_memory=True)
        self.device = torch.empty(size, device=DEVICE)
        self.copy = torch.empty(size, pin_memory=True)
        self.other = torch.cuda.Stream()
        torch.cuda.synchronize()

    def call(self, ids: torch.Tensor, out: torch.Tensor, stream: int) -> None:
        self.engine.run_on_device(ids, None, out.data_ptr(), self.size, False, stream)

    def check(self, stream: int = 0) -> None:
        self.host.fill_(torch.nan)
        self.call(self.ids, self.host, stream)
        assert np.array_equal(self.host.numpy(), self.expected)
        self.device.fill_(torch.nan)
        torch.cuda.synchronize()
        self.call(self.ids, self.device, stream)
        self._check_device()

    def check_behind(self, stream: torch.cuda.Stream) -> None:
        """The ids, and what the output is poisoned with, come late on the caller's stream."""
        with torch.cuda.stream(stream):
            self.late.zero_()
            torch.cuda._sleep(LATE)
            self.late.copy_(self.ids)
            self.device.fill_(torch.nan)
            self.call(self.late, self.device, stream.cuda_stream)
        self._check_device()

    def _check_device(self) -> None:
        with torch.cuda.stream(self.other):
            self.copy.copy_(self.device, non_blocking=True)
        self.other.synchronize()
        assert np.array_equal(self.copy.numpy(), self.expected)


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("name", MODELS)
def test_scores_can_be_read_when_the_call_returns(name, precision, graphs):
    engine = cuda_engine(model_of(name), precision=precision, graphs=graphs, max_batch=8193)
    outputs = [Outputs(engine, name, size) for size in SIZES]
    for _ in range(CALLS):
        for each in outputs:
            each.check()
    engine.close()


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_the_largest_batches_that_tell_their_end(precision):
    engine = cuda_engine(model_of("dcnv2"), precision=precision, max_batch=TOLD_ROWS + 1)
    outputs = [Outputs(engine, "dcnv2", TOLD_ROWS + more) for more in (-1, 0, 1)]
    for _ in range(CALLS):
        for each in outputs:
            each.check()
    engine.close()


@pytest.mark.parametrize("streams", [1, 4])
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("name", ["wdl", "dcnv2"])
def test_callers_streams_of_all_kinds_take_turns(name, graphs, streams):
    """Batches from host memory and batches that were started run between them."""
    options = {"graphs": graphs, "streams": streams, "max_batch": 4096}
    faults = Faults(delay_seed=5, branches="side_by_side")
    engine = cuda_engine(model_of(name), faults=faults, **options)
    outputs = [Outputs(engine, name, size) for size in (19, 4096)]
    callers = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream(priority=-1)]
    for turn in range(12):
        for each in outputs:
            each.check_behind(callers[turn % 3])
            each.check((0, LEGACY, PER_THREAD)[turn % 3])
            if turn % 4 == 1:
                none = np.empty((0, each.size), np.float32)
                host = logits(engine, each.ids.cpu().numpy(), none, scores=True)
                assert np.array_equal(host, each.expected)
            if turn % 4 == 2:  # still runs when the next call comes
                address = each.host.data_ptr()
                engine.start_on_device(each.ids, None, address, each.size, False)
    engine.finish_on_device()
    engine.close()


@pytest.mark.parametrize("fused", [True, False])
def test_counters_are_those_of_the_call_whatever_stream_came_before(fused):
    """Good batches between bad ones, and batches that were started ahead of them."""
    model = model_of("deepfm")
    engine = cuda_engine(model, precision="fp16", fused=fused, max_batch=4096)
    rng = np.random.default_rng(0)
    out = torch.empty(4096, device=DEVICE)
    callers = [0, *(torch.cuda.Stream().cuda_stream for _ in range(2))]
    for turn in range(4 * CALLS):
        size = SIZES[turn % 4]
        ids, dense = inputs(model.spec, size)
        bad = rng.random(ids.shape) < (turn % 5 % 3) / 100
        ids[bad] = -1
        (there,) = on_device(ids)
        torch.cuda.synchronize()
        started = turn % 2
        if started:
            engine.start_on_device(there, None, out.data_ptr(), size, True)
        elif turn % 4 == 2:
            host = np.empty(size, np.float32)
            assert np.array_equal(engine.run(list(ids), dense, True, host), bad.sum(1))
        stream = callers[turn % 3]
        counts, first = engine.run_on_device(there, None, out.data_ptr(), size, True, stream)
        np.testing.assert_array_equal(counts, bad.sum(1) * (1 + started))
        rows, fields = np.nonzero(bad.T)
        assert first == ((rows[0], fields[0]) if bad.any() else None)
    engine.close()


@pytest.mark.parametrize("graphs", [True, False])
def test_a_stream_that_is_captured_is_refused_and_nothing_is_harmed(graphs):
    engine = cuda_engine(model_of("dcnv2"), graphs=graphs, max_batch=512)
    outputs = Outputs(engine, "dcnv2", 111)
    graph, filled = torch.cuda.CUDAGraph(), torch.zeros(19, device=DEVICE)
    with torch.cuda.graph(graph):
        filled.fill_(7)
        stream = torch.cuda.current_stream().cuda_stream
        with pytest.raises(ValueError, match="a stream that is being captured into a CUDA graph"):
            outputs.call(outputs.ids, outputs.device, stream)
    graph.replay()
    torch.cuda.synchronize()
    assert filled.tolist() == [7] * 19
    outputs.check()
    engine.close()


def test_scores_of_earlier_calls_stay(tmp_path):
    """Memory for a call's scores is taken during the one before."""
    model = model_of("wdl")
    opened = save_bundle(tmp_path / "b", model.spec, model.state_dict())
    engine = load_engine(opened, device="cuda", max_batch=512)
    ids = [next(on_device(inputs(model.spec, size, seed)[0])) for seed in (1, 2) for size in SIZES]
    expected = [torch.from_numpy(engine.score(i.cpu().numpy())) for i in ids]
    streams = [torch.cuda.default_stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    got = []
    for turn in range(40):
        with torch.cuda.stream(streams[turn // 7 % 2]):
            number = turn // 3 % len(ids)
            scores = engine.score(ids[number])
            scores.add_(1)  # the caller's own, on the caller's stream
            got.append((number, scores))
    torch.cuda.synchronize()
    for number, scores in got:
        torch.testing.assert_close(scores.cpu() - 1, expected[number], rtol=0, atol=1e-6)
    engine.close()


@pytest.mark.parametrize("batch", [1, 19, 4096, 16384, 16385])
def test_a_prepared_lookup_is_there_when_it_returns(batch):
    tables = [torch.randn(rows, 16, device=DEVICE) for rows in (7, 1000, 3)]
    fields = [_core.CudaLookupField(table, 16 * f) for f, table in enumerate(tables)]
    ids = torch.stack([torch.randint(0, len(table), (batch,), device=DEVICE) for table in tables])
    expected = torch.cat([table[i] for table, i in zip(tables, ids, strict=True)], 1)
    out, report = torch.empty_like(expected), torch.zeros(4, dtype=torch.int64, device=DEVICE)
    call = _core.CudaMultiTableLookup(fields).prepare(ids, out, report)
    own, other = torch.cuda.Stream(), torch.cuda.Stream()
    for _ in range(4 * CALLS):
        out.fill_(torch.nan)
        torch.cuda.synchronize()
        call.run_and_wait(own.cuda_stream)
        with torch.cuda.stream(other):
            assert torch.equal(out, expected)
        call.run(own.cuda_stream)  # tells nobody


FAILING = """
from cuda_cases import cuda_engine, even_model
from odd_models import odd_shapes
engine = cuda_engine(even_model(odd_shapes("{name}")[0].spec()), precision="fp16", max_batch=512)
nothing, nowhere = (0, 0, 0), 1 << 20
for message in ("cudaErrorIllegalAddress", ""):
    try:
        engine.run_in_place((nowhere, 512, 8), nothing, nowhere, 512, False, 0)
    except RuntimeError as error:
        assert message in str(error), error
    else:
        raise SystemExit("no error")
"""


@pytest.mark.parametrize("name", ["wdl", "dcnv2"])
def test_a_kernel_that_fails_is_an_error(name):
    """In a process of its own, whose GPU is of no use afterwards."""
    code = f"import sys; sys.path[:] = {sys.path}" + FAILING.format(name=name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
