"""What the benchmark alone uses of the engine, and the benchmark itself at a small size."""

from __future__ import annotations

import mixed_types
import numpy as np
import pytest
import torch

from dpiframe_core import _core, save_bundle
from pipeline.bench.cases.engine_case import EngineCase
from pipeline.bench.engine.ablation import bench_together
from pipeline.bench.engine.cuda_engine import on_device, open_engine
from pipeline.bench.engine.endurance import endure
from pipeline.bench.engine.implementations import OURS
from pipeline.bench.engine.latency import bench_engine
from pipeline.bench.engine.lookup import CHECKED, GATHER, PER_FIELD, LookupCase, bench_lookup
from pipeline.bench.engine.stream import StreamCase, bench_stream

SMALL = {"scale": 1e-4, "device": "cuda", "hidden": (40, 24), "repeats": 3}


@pytest.mark.parametrize("width", [4, 20, 1028])
@pytest.mark.parametrize("num_rows", [0, 1, 1111])
def test_plain_gather(width, num_rows):
    table = torch.randn(37, width, device="cuda")
    rows = torch.randint(37, (num_rows,), device="cuda")
    out = torch.full((num_rows, width), torch.nan, device="cuda")
    torch.cuda.synchronize()
    _core.plain_gather(table.data_ptr(), rows.data_ptr(), num_rows, 4 * width, out.data_ptr())
    torch.cuda.synchronize()
    assert torch.equal(out, table[rows])


def test_plain_gather_wants_pieces_of_16_bytes():
    with pytest.raises(ValueError, match="row_bytes must be a multiple of 16, got 20"):
        _core.plain_gather(0, 0, 1, 20, 0)
    with pytest.raises(ValueError, match="must start at 16 bytes"):
        _core.plain_gather(8, 0, 1, 16, 0)


def test_a_prepared_lookup_keeps_its_arrays():
    table = torch.randn(50, 16, device="cuda")
    ids = torch.randint(50, (1, 19), device="cuda")
    out = torch.full((19, 16), torch.nan, device="cuda")
    report = torch.tensor([0, 2**63 - 1], device="cuda")
    expected = table[ids[0]]
    call = _core.CudaMultiTableLookup([_core.CudaLookupField(table, 0)]).prepare(ids, out, report)
    del table, ids, report
    torch.cuda.synchronize()
    call.run()
    torch.cuda.synchronize()
    assert torch.equal(out, expected)


class Prepared:
    """A lookup on arrays that change in place, beside the checked call's output and report."""

    def __init__(self, batch: int) -> None:
        self.tables = [torch.randn(rows, 16, device="cuda") for rows in (50, 7)]
        self.ids = torch.zeros((2, batch), dtype=torch.int32, device="cuda")
        self.out = torch.full((batch, 32), torch.nan, device="cuda")
        self.expected = self.out.clone()
        self.report = torch.tensor([0, 0, 2**63 - 1], device="cuda")
        self.expected_report = self.report.clone()
        fields = [_core.CudaLookupField(t, 16 * f) for f, t in enumerate(self.tables)]
        self.lookup = _core.CudaMultiTableLookup(fields)
        torch.cuda.synchronize()
        self.call = self.lookup.prepare(self.ids, self.out, self.report)

    def change(self) -> None:
        self.ids.random_(-1, 8)
        for table in self.tables:
            table.normal_()
        self.out.fill_(torch.nan)
        self.lookup.run(self.ids, self.expected, self.expected_report)
        torch.cuda.synchronize()

    def check(self) -> None:
        assert torch.equal(self.out, self.expected)
        assert torch.equal(self.report, self.expected_report)


@pytest.mark.parametrize("batch", [0, 1, 111])
def test_a_prepared_lookup_equals_the_checked_one(batch):
    case = Prepared(batch)
    assert case.out.isnan().all() and case.report.tolist() == [0, 0, 2**63 - 1]
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        case.change()
        case.call.run_and_wait(stream.cuda_stream)
        case.check()
        case.change()
        case.call.run(stream.cuda_stream)
        stream.synchronize()
        case.check()


def test_a_prepared_lookup_inside_a_graph():
    case = Prepared(111)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.call.run(torch.cuda.current_stream().cuda_stream)
    assert case.out.isnan().all()
    for _ in range(2):
        case.change()
        graph.replay()
        torch.cuda.synchronize()
        case.check()
        case.change()
        case.call.run_and_wait()
        case.check()


def test_batches_started_one_behind_the_other():
    case = EngineCase(model="deepfm", batch=111, **SMALL)
    spec, weights = case.load()
    engine, backend = open_engine(spec, weights, case)
    inputs = on_device(case.draw(spec))
    expected = [engine.score(*given).clone() for given in inputs]
    outs = [torch.full((111,), torch.nan, device="cuda") for _ in inputs]
    torch.cuda.synchronize()
    for given, out in zip(inputs, outs, strict=True):
        backend.start_on_device(*given, out.data_ptr(), 111, False)
    assert not backend.finish_on_device().any()
    assert all(torch.equal(a, b) for a, b in zip(outs, expected, strict=True))

    bad = inputs[0][0].clone()
    bad[3, 5] = -1
    backend.start_on_device(bad, None, outs[0].data_ptr(), 111, False)
    backend.start_on_device(*inputs[1], outs[1].data_ptr(), 111, False)
    assert np.flatnonzero(backend.finish_on_device()).tolist() == [3]
    engine.close()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_lookup_benchmark(precision):
    case = LookupCase(batch=111, scale=1e-4, precision=precision, repeats=3)
    report = bench_lookup(case)
    assert {OURS, CHECKED, GATHER, PER_FIELD, "one table, graph"} <= report.gpu.keys()
    assert report.call.keys() == report.gpu.keys()


@pytest.mark.parametrize("options", [{"precision": "fp16"}, {"dense": 3, "id_type": "int32"}])
def test_the_engine_benchmark(options):
    report = bench_engine(EngineCase(batch=111, peers="plain", **SMALL, **options))
    assert set(report.milliseconds) == {OURS, "eager", "one-table, graph"}, report.failed


ZOO_SHAPE = {"fields": 5, "dense": 3, "dim": 8, "batch": 111} | SMALL


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("model", ["masknet", "din"])
def test_the_engine_benchmark_of_the_zoo(model, precision):
    case = EngineCase(model=model, precision=precision, peers="plain", **ZOO_SHAPE)
    report = bench_engine(case)
    assert set(report.milliseconds) == {OURS, "eager", "one-table, graph"}, report.failed
    assert report.floor.ms > 0


def test_the_engine_benchmark_of_a_bundle_and_of_a_module(tmp_path):
    small = EngineCase(model="deepfm", **ZOO_SHAPE)
    save_bundle(tmp_path / "mine", *small.load())
    (tmp_path / "m.py").write_text("from pipeline.bench.cases.zoo import DLRM\n")
    for own in ({"bundle": tmp_path / "mine"}, {"module": f"{tmp_path}/m.py:DLRM"}):
        report = bench_engine(EngineCase(batch=111, device="cuda", repeats=3, **own))
        peers = {"eager", "one-table, graph", "compile", "one-table, compile"}
        assert set(report.ratios()) == peers, report.failed


def test_a_module_that_mixes_types_has_peers_in_16_bits():
    case = {"batch": 111, "device": "cuda", "precision": "fp16", "repeats": 3}
    report = bench_engine(EngineCase(module=f"{mixed_types.__file__}:NamesFloat32", **case))
    peers = {"eager", "one-table, graph", "compile", "one-table, compile"}
    assert set(report.ratios()) == set(report.notes) == peers, report.failed


def test_engines_side_by_side():
    cases = [EngineCase(model=m, policy="auto", **ZOO_SHAPE) for m in ("masknet", "deepfm")]
    (row,) = bench_together("two", cases)
    assert row.call.median > 0 and row.back_to_back.median > 0


def test_endurance():
    cases = [EngineCase(model=m, **ZOO_SHAPE) for m in ("gdcn", "dcnv2")]
    report = endure(cases, minutes=1, batches=600)
    assert report.batches == 600
    assert report.device_growth == 0


@pytest.mark.parametrize("inputs", ["pinned", "pageable"])
def test_the_stream_benchmark(inputs):
    report = bench_stream(StreamCase(batch=111, batches=65, inputs=inputs, **SMALL))
    assert report.share() > 0
