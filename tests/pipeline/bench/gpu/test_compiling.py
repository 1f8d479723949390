"""Peers compiled ahead by other processes."""

from __future__ import annotations

import pytest

from pipeline.bench.engine.cases import EngineCase
from pipeline.bench.engine.implementations import build_all, implementations
from pipeline.bench.gpu.compiling import compile_ahead

CASE = EngineCase(model="wdl", batch=19, scale=1e-5, hidden=(8, 5), dim=4, fields=5)


@pytest.mark.slow
def test_a_run_finds_what_was_compiled(monkeypatch, tmp_path):
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    said: list[str] = []
    assert compile_ahead([CASE], 1, said.append) == {}
    assert said == ["compiled: wdl 19 fp32 "]
    counters.clear()
    peers = implementations(*CASE.load(), CASE)
    _, failed = build_all({name: peers[name] for name in ("dpiframe", "compile")})
    assert failed == {}
    graphs, whole = counters["inductor"], counters["aot_autograd"]
    assert graphs["fxgraph_cache_hit"] + whole["autograd_cache_hit"]
    assert not graphs["fxgraph_cache_miss"]


def test_what_cannot_be_compiled_is_said():
    nothing = CASE.model_copy(update={"module": "nowhere.py:Scorer"})
    (why,) = compile_ahead([nothing], 1, lambda text: None).values()
    assert "nowhere.py" in why
