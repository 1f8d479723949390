"""A gate on the engine's own speed: what two measurements beside the same peer say."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dpiframe_core.engine.cpu import CpuBackend
from jobs.bench import engine as bench_command
from jobs.compare import command as compare
from pipeline.bench.cases.engine_case import EngineCase
from pipeline.bench.engine import latency
from pipeline.bench.engine.comparing import compare_engines, read_engine_report
from pipeline.bench.engine.implementations import Factories, Implementation, implementations
from pipeline.bench.engine.latency import EngineReport, bench_engine
from pipeline.bench.timing import TimeRatio, Timing
from pipeline.errors import ConfigError, ContractError

# Calls of some 0.1 ms, so that the quickest of 8 is seldom disturbed.
WORK = "--model dcnv2 --fields 8 --dim 8 --hidden 128,64 --scale 0.001 --batch 256 --threads 1"
MEASURED = [*WORK.split(), "--peers", "plain", "--repeats", "104", "--loads", "24"]


def report(ratio: float, error: float = 0.01, loads: int = 8, **case: Any) -> EngineReport:
    return EngineReport(
        case=EngineCase.model_validate(case | {"loads": loads}),
        title="",
        rows=1,
        milliseconds={"dpiframe": Timing(median=1, p10=1, p90=1)},
        over_ours={"eager": TimeRatio(ratio=ratio, error=error, turns=loads)},
        largest_difference=0.0,
        machine={"cpu": "x"},
    )


def test_a_ratio_is_of_the_quickest_calls_of_each_turn():
    ours = [1.0, *[9.0] * 7] * 16
    peer = [*[9.0] * 7, 3.0] * 15 + [50.0] * 8  # one turn is disturbed
    found = TimeRatio.of(peer, ours)
    assert (found.ratio, found.error, found.turns) == (3.0, 0.0, 16)


def test_a_single_turn_has_no_error_also_after_it_was_written():
    found = TimeRatio.of([3.0] * 8, [1.0] * 8)
    assert (found.ratio, found.error, found.turns) == (3.0, math.inf, 1)
    assert TimeRatio.model_validate_json(found.model_dump_json()) == found


def test_a_verdict_knows_the_noise():
    assert compare_engines(report(5), report(4.5)).verdict.text.startswith("slower by 10.00%")
    found = compare_engines(report(5, 0.5), report(4.5, 0.5, fusion=False))
    assert found.verdict.text.startswith("no difference beyond noise")
    assert found.differs == {"fusion": ("True", "False")}
    assert "cannot tell: 7 loads" in compare_engines(report(5), report(5, loads=7)).verdict.text


def test_each_load_is_made_anew_and_closed(monkeypatch: pytest.MonkeyPatch):
    made, closed = [], []

    def counted(*args: Any) -> Factories:
        def one(name: str, make: Callable[[], Implementation]) -> Implementation:
            made.append(name)
            return make()._replace(close=lambda: closed.append(name))

        return {n: partial(one, n, make) for n, make in implementations(*args).items()}

    monkeypatch.setattr(latency, "implementations", counted)
    case = EngineCase(model="wdl", fields=3, dim=4, hidden=(5,), scale=1e-5, peers="plain", loads=3)
    found = bench_engine(case.model_copy(update={"batch": 19, "repeats": 8}))
    assert made == ["dpiframe", "eager", "one-table"] * 3
    assert set(closed) == set(made)
    assert found.over_ours["eager"].turns == 3


def test_other_work_is_refused():
    with pytest.raises(ConfigError, match="batch: 4096, 19"):
        compare_engines(report(5), report(5, batch=19))
    with pytest.raises(ConfigError, match="--peers plain"):
        compare_engines(report(5), report(5).model_copy(update={"over_ours": {}}))


def test_what_a_bundle_replaces_is_no_other_work():
    base, candidate = report(5, bundle="b", dense=5), report(5, bundle="b", hidden=(8,))
    assert compare_engines(base, candidate).over_peer == (5, 5)


def test_files_that_are_no_measurement(tmp_path: Path):
    path = tmp_path / "a.json"
    path.write_text('{"title": 3}')
    with pytest.raises(ConfigError, match=r"a\.json is no JSON of `dpiframe bench engine`: case: "):
        read_engine_report(path)
    found = CliRunner().invoke(compare, [str(path), str(path), "--rows"])
    assert found.exit_code == 2 and "--rows compares scores" in found.output


@pytest.mark.slow
def test_an_engine_that_is_made_slower_by_a_tenth_breaks_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Neither the benchmark nor the comparison knows of the time that every call wastes."""
    run = CpuBackend.run

    def slower(self: CpuBackend, *args: Any) -> None:
        began = time.perf_counter()
        run(self, *args)
        until = began + 1.1 * (time.perf_counter() - began)
        while time.perf_counter() < until:
            pass

    def measure(name: str, call: Callable[..., None] = run) -> str:
        monkeypatch.setattr(CpuBackend, "run", call)
        path = str(tmp_path / f"{name}.json")
        done = CliRunner().invoke(bench_command, [*MEASURED, "--json", path])
        assert done.exit_code == 0, done.output
        return path

    def gate(*paths: str) -> None:
        done = CliRunner().invoke(
            compare, [*paths, "--max-slowdown", "0.05"], catch_exceptions=False
        )
        print(done.output)

    base, same, slowed = measure("base"), measure("same"), measure("slowed", slower)
    gate(base, same)
    gate(slowed, same)  # faster is no reason to stop
    with pytest.raises(ContractError, match=r"slower by .* more than --max-slowdown 0.05"):
        gate(base, slowed)
