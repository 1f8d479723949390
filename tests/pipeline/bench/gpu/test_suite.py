"""The suite of a GPU: targets, parts that are measured at several times, the page."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from pipeline.bench import machine
from pipeline.bench.cases.engine_case import EngineCase
from pipeline.bench.cases.zoo import ZOO
from pipeline.bench.engine.ablation import AblationRow, TimeOfABatch
from pipeline.bench.engine.endurance import EnduranceReport
from pipeline.bench.engine.floors import Floor
from pipeline.bench.engine.implementations import OURS
from pipeline.bench.engine.latency import EngineReport
from pipeline.bench.engine.lookup import GATHER, PER_FIELD, LookupCase, LookupReport
from pipeline.bench.engine.memory import MemoryReport, table_bytes
from pipeline.bench.engine.stream import StreamCase, StreamReport, copied_bytes
from pipeline.bench.gpu import suite
from pipeline.bench.gpu.page import page
from pipeline.bench.gpu.results import Part, Results
from pipeline.bench.gpu.suite import run_suite
from pipeline.bench.gpu.targets import fast_targets, geometric_mean_target, targets
from pipeline.bench.timing import TimedError, Timing
from pipeline.errors import ConfigError

MACHINE = {"gpu": "NVIDIA H200", "driver": "1", "cuda": "13", "torch": "2", "cores": "16"}
MACHINE |= {"fbgemm_gpu": "1.6", "cpu": "Xeon"}
RATES = {"copy_tb_s": 4.0, "fp32_tflop_s": 50.0, "tf32_tflop_s": 300.0, "fp16_tflop_s": 600.0}


def _t(median: float) -> Timing:
    return Timing(median=median, p10=0.9 * median, p90=1.1 * median)


def _engine(**options: object) -> EngineReport:
    return EngineReport(
        case=EngineCase.model_validate({"device": "cuda", **options}),
        title="",
        rows=1,
        milliseconds={OURS: _t(0.05), "eager": _t(0.6), "compile": _t(0.2)},
        failed={"TBE, graph": "fbgemm_gpu is not installed"},
        largest_difference=0,
        floor=Floor(bytes_ms=0.01, products_ms=0.005),
        machine=MACHINE,
    )


def _lookup(batch: int, ids: str) -> LookupReport:
    return LookupReport(
        case=LookupCase.model_validate({"batch": batch, "ids": ids}),
        call={OURS: _t(0.01), GATHER: _t(0.01), PER_FIELD: _t(0.6), "TBE, graph": _t(0.03)},
        gpu={OURS: _t(0.01), GATHER: _t(0.007), PER_FIELD: _t(0.2), "TBE, graph": _t(0.05)},
        failed={},
        machine=MACHINE,
    )


def _part(*reports: object) -> Part:
    part = Part(commit="abc", time="now", machine=MACHINE, ceilings=RATES)
    for report in reports:
        part.add(report, floor_ms=0.02, of_floor=None)
    return part


def _results() -> Results:
    case = EngineCase(device="cuda")
    stream = StreamReport(
        case=StreamCase(),
        title="",
        stream=_t(0.4),
        compute=_t(0.3),
        copy_ms=0.2,
        copy_gb_s=50,
        copied_bytes=10,
        machine=MACHINE,
    )
    row = AblationRow(label="+ graphs", case=case, call=_t(0.1), back_to_back=_t(0.08))
    parts = {name: _t(0.1) for name in ("on_device", "compute", "copy_in", "copy_out")}
    whole = TimeOfABatch(case=case, from_host=_t(0.5), streamed=0.2, **parts)
    memory = MemoryReport(case=case, tables=100, arena=10, counted=112, used=114)
    plain = Part(commit="abc", time="now", machine=MACHINE, ceilings=RATES)
    plain.add(stream)
    plain.add(memory)
    plain.add(row)
    plain.add(whole)
    lookup = Part(commit="abc", time="now", machine=MACHINE)
    for batch, ids in ((4096, "zipf"), (65536, "uniform")):
        lookup.add(_lookup(batch, ids))
    models = _part(_engine(), _engine(batch=65536, precision="fp16"), _engine(precision="tf32"))
    found = dict.fromkeys(("stream", "memory", "ablation"), plain)
    zoo = _part(_engine(model="gdcn", precision="fp16", hidden=(400, 400)))
    shapes = _part(_engine(model="wdl", fields=10, dim=8, batch=1024))
    steady = {"wanted": 100_000, "batches": 90_000, "samples": 1, "seconds": 9}
    shapes.add(
        EnduranceReport(
            engines=["wdl fp16"], **steady, device_growth=0, host_growth=20 * 2**20, machine=MACHINE
        )
    )
    return Results(
        parts={"lookup": lookup, "models": models, **found, "zoo": zoo, "shapes": shapes}
        | {"endurance": shapes, "streams": plain}
    )


def test_targets_are_judged():
    met = {t.what: (round(t.got, 2), t.met) for t in targets(_results())}
    assert met == {
        "lookup, batch 4,096, zipf ids: over FBGEMM's TBE, on the GPU": (5.0, True),
        "lookup, batch 4,096, zipf ids: over one nn.Embedding a field, synchronised": (60.0, True),
        "lookup, batch 65,536, uniform ids: rate, of the plain gather's": (0.7, False),
        "dcnv2, batch 4,096, fp32: over the lowest peer": (4.0, True),
        "dcnv2, batch 4,096, fp32: over eager": (12.0, True),
        "dcnv2, batch 65,536, fp16: over the lowest peer": (4.0, True),
        "stream, dcnv2, fp32, int32 ids, pinned memory: of the smaller of copy and compute": (
            0.75,
            False,
        ),
        "memory, dcnv2, fp32: of tables and arena": (1.04, True),
        "gdcn, batch 4,096, fp16: over the lowest peer": (4.0, True),
        "wdl 10x8 400-400-400, batch 1,024, fp32: over the lowest peer": (4.0, True),
        "shapes: the slowest, over its lowest peer": (4.0, True),
        "endurance, 90,000 batches: growth of GPU memory": (0, True),
        "endurance, 90,000 batches: growth of host memory": (20 * 2**20, False),
    }


def test_any_model_may_be_near_its_floor_instead():
    slow = _engine().model_copy(update={"milliseconds": {OURS: _t(0.02), "eager": _t(0.03)}})
    (target,) = fast_targets(slow)
    assert (target.unit, round(target.got, 2), target.met) == ("%", 0.75, True)
    far = slow.model_copy(update={"floor": None})
    (target,) = fast_targets(far)
    assert (target.what[-15:], target.got, target.met) == ("the lowest peer", 1.5, False)


def test_the_mean_over_the_zoo_is_of_the_whole_zoo():
    reports = [
        _engine(model=m, batch=65536, precision="fp16", hidden=(400, 400), dense=13) for m in ZOO
    ]
    assert not list(geometric_mean_target(reports[1:]))
    (target,) = geometric_mean_target(reports)
    assert round(target.got, 2) == 4.0 and target.met


class Suite:
    """A suite of one part of cases that take a second each, on no GPU."""

    def __init__(self, monkeypatch, folder: Path) -> None:
        self.folder, self.ran, self.commit, self.time = folder, [], "abc", 0.0
        self.loses_gpu = ""  # the case that does
        for name, value in {
            "PARTS": {"zoo": self.cases},
            "require_gpu": lambda: None,
            "machine": lambda _: MACHINE,
            "ceilings": lambda: (RATES, {}),
            "commit": lambda: self.commit,
            "Clock": partial(suite.Clock, now=lambda: self.time),
            "gpu_answers": lambda: self.ran[-1] != self.loses_gpu,
        }.items():
            monkeypatch.setattr(suite, name, value)

    def cases(self, limits):
        for model in ("gdcn", "din", "dlrm"):
            yield suite.Measurement(model, partial(self.measure, model))

    def measure(self, model: str):
        self.ran.append(model)
        self.time += 1
        if model == self.loses_gpu:
            raise RuntimeError("unspecified launch failure")
        return [_engine(model=model, precision="fp16")]

    def run(self, **limits: object) -> list[str]:
        """The cases that a run measures."""
        self.ran.clear()
        run_suite(self.folder, suite.Limits(**limits), lambda text: None)
        return list(self.ran)

    def models(self) -> dict[str, str]:
        """The commit of each model's result."""
        part = Results.read(self.folder / "nvidia_h200.json").parts["zoo"]
        return {r["case"]["model"]: r["measured"]["commit"] for r in part.results}


def test_a_part_is_resumed_case_by_case(monkeypatch, tmp_path):
    cases = Suite(monkeypatch, tmp_path)
    assert cases.run(minutes=2.5 / 60) == ["gdcn", "din"]
    assert cases.run(minutes=2.5 / 60, resume=True) == ["dlrm"]
    assert cases.run(resume=True) == []
    cases.commit = "def"
    assert cases.run(resume=True, match="di") == ["din"]
    assert cases.models() == {"gdcn": "abc", "din": "def", "dlrm": "abc"}
    text = (tmp_path / "nvidia_h200.md").read_text()
    assert "Cases were measured at abc, def." in text
    assert cases.run() == ["gdcn", "din", "dlrm"]
    assert cases.models() == dict.fromkeys(("gdcn", "din", "dlrm"), "def")


def test_after_a_case_that_loses_the_gpu_a_new_run_goes_on(monkeypatch, tmp_path):
    cases = Suite(monkeypatch, tmp_path)
    cases.loses_gpu = "din"
    assert cases.run() == ["gdcn", "din"]
    assert cases.run(resume=True) == ["dlrm", "din"]
    part = Results.read(tmp_path / "nvidia_h200.json").parts["zoo"]
    assert part.failed == {"din": "RuntimeError: unspecified launch failure"}


def test_a_peer_that_lost_the_gpu_is_left_out_of_its_case(monkeypatch, tmp_path):
    ran: list[tuple[str, ...]] = []

    def bench(case: EngineCase) -> EngineReport:
        ran.append(case.without)
        if not case.without:
            raise TimedError("compile", RuntimeError("unspecified launch failure"))
        return _engine(model="gdcn", precision="fp16")

    cases = Suite(monkeypatch, tmp_path)
    monkeypatch.setattr(suite, "bench_engine", bench)
    monkeypatch.setattr(suite, "gpu_answers", lambda: ran[-1] != ())
    monkeypatch.setattr(
        suite, "PARTS", {"zoo": lambda _: [suite.Measurement.of("gdcn", EngineCase(model="gdcn"))]}
    )
    cases.run()
    cases.run(resume=True)
    assert ran == [(), ("compile",)]
    part = Results.read(tmp_path / "nvidia_h200.json").parts["zoo"]
    assert part.lost == {"gdcn": ["compile"]} and part.failed == {} and len(part.results) == 1


def test_a_file_read_again_gives_the_same_page(tmp_path):
    results = _results()
    results.write(tmp_path / "gpu.json")
    again = Results.read(tmp_path / "gpu.json")
    text = page(again)
    assert text == page(results)
    assert "10 of 13 targets met." in text
    assert "| gdcn | 4,096 | fp16 | 0.050 (0.045-0.055) | 0.010 + 0.005 | 30% | compile" in text
    assert "| wdl, 10 fields of 8, 400-400-400 | 1,024 | fp32 |" in text
    assert "90,000 of 100,000 batches (1 samples) through 1 engines in 9 s" in text
    assert "| dcnv2 | 4,096 | fp32 | 0.050 (0.045-0.055) |" in text
    assert "- dcnv2, 4,096, fp32 and 2 more: TBE, graph failed: fbgemm_gpu is not" in text
    assert "several commits" not in text


def test_a_page_says_where_each_part_is_from(tmp_path):
    results = _results()
    results.parts["lookup"] = results.parts["lookup"].model_copy(update={"commit": "def"})
    text = page(results)
    assert "Parts were measured at several commits: abc, def." in text
    assert "Commit def, now, 0 s" in text


def test_files_of_another_format_are_not_mixed_in(tmp_path):
    (tmp_path / "old.json").write_text('{"cases": []}')
    assert Results.read(tmp_path / "old.json").parts == {}
    assert Results.read(tmp_path / "none.json").parts == {}


def test_an_unknown_part_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no part 'lookups'; there are: lookup, models"):
        run_suite(tmp_path, suite.Limits(only="models,lookups"), print)


def test_a_name_that_no_case_has_is_refused_before_anything_is_lost(tmp_path):
    with pytest.raises(ConfigError, match="part models has no case whose name holds 'fp64'"):
        run_suite(tmp_path, suite.Limits(only="models,lookup", match="fp64"), print)
    assert not list(tmp_path.iterdir())


def test_commit_of_a_tree_without_git(monkeypatch):
    monkeypatch.setattr(machine, "_output", lambda command: "")
    monkeypatch.delenv("DPIFRAME_COMMIT", raising=False)
    assert machine.commit() == "unknown"
    monkeypatch.setenv("DPIFRAME_COMMIT", "1234567")
    assert machine.commit() == "1234567"


def test_the_commit_that_is_named_goes_before_git_s(monkeypatch):
    root = str(Path(machine.__file__).resolve().parents[2])
    monkeypatch.setattr(machine, "_output", lambda c: root if "--show-toplevel" in c else "abc")
    monkeypatch.delenv("DPIFRAME_COMMIT", raising=False)
    assert machine.commit() == "abc and changes"
    monkeypatch.setenv("DPIFRAME_COMMIT", "1234567")
    assert machine.commit() == "1234567"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (None, "not installed"),
        ("__version__ = '1.6.0'", "1.6.0"),
        ("", "unknown version"),
        ("raise OSError('libcuda.so.1')", "not importable"),
    ],
)
def test_fbgemm_without_metadata(tmp_path, monkeypatch, source, expected):
    def no_metadata(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(machine, "version", no_metadata)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "fbgemm_gpu", raising=False)
    if source is not None:
        (tmp_path / "fbgemm_gpu.py").write_text(source)
    importlib.invalidate_caches()
    assert machine._fbgemm_version() == expected
    sys.modules.pop("fbgemm_gpu", None)


def test_bytes_are_counted_from_the_model():
    spec = EngineCase(model="deepfm", fields=2, dim=4, dense=3).spec()
    rows = 1460 + 583
    assert table_bytes(spec, "fp32") == rows * (4 * 4 + 4)
    assert table_bytes(spec, "fp16") == rows * (4 * 2 + 4)
    assert copied_bytes(spec, 10, "pageable", "int64") == 10 * 4 * (2 + 3)
    assert copied_bytes(spec, 10, "pinned", "int64") == 10 * (8 * 2 + 4 * 3)
