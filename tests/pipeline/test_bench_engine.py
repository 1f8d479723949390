"""The engine benchmark: contenders agree, and its table says what was measured."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpiframe_core import CTRModel
from dpiframe_core.interpreter import run_program
from dpiframe_core.lowering import lower
from dpiframe_core.program import Lookup
from pipeline.bench.cases import EngineCase, random_weights
from pipeline.bench.contenders import OURS
from pipeline.bench.engine import bench_engine, show
from pipeline.bench.peers import Dense, OneTable, Peer, PerField


def test_a_small_case_runs_and_agrees():
    case = EngineCase(model="deepfm", batch=19, scale=1e-5, hidden=(8,), dim=4, repeats=3)
    report = bench_engine(case)
    assert report.largest_difference < 1e-5
    assert set(report.milliseconds) == {OURS, "eager", "compile"}
    assert set(report.ratios()) == {"eager", "compile"}
    assert "deepfm, batch 19" in show(report)


def test_ids_stay_inside_their_tables_and_follow_the_distribution():
    for ids in ("zipf", "uniform"):
        case = EngineCase(batch=1111, ids=ids, scale=1e-3)
        spec = case.spec()
        drawn = case.inputs(spec)[0]
        assert drawn.shape == (39, 1111)
        assert (drawn >= 0).all() and (drawn.max(1) < [f.rows for f in spec.fields]).all()
        share = np.bincount(drawn[15]).max() / 1111
        assert (share > 0.05) == (ids == "zipf")


@pytest.mark.parametrize("model", ["wdl", "deepfm", "dcn", "dcnv2"])
def test_peers_compute_the_model(model):
    case = EngineCase(model=model, batch=19, scale=1e-5, hidden=(8, 5), dim=4)
    spec, weights = case.spec(), random_weights(case)
    ids = torch.from_numpy(case.inputs(spec)[0])
    expected = CTRModel.from_weights(spec, weights)(ids)
    for kind in (PerField, OneTable):
        peer = Peer(kind(spec, weights), Dense(spec, weights))
        torch.testing.assert_close(peer(*kind.prepare(ids)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", ["wdl", "deepfm", "dcn", "dcnv2"])
@pytest.mark.parametrize("fusion", [True, False])
def test_ablation_changes_no_result(model, fusion):
    case = EngineCase(
        model=model, batch=19, scale=1e-5, hidden=(8, 5), lookup="by_table", fusion=fusion
    )
    spec, weights = case.spec(), random_weights(case)
    weights = {name: weight.double() for name, weight in weights.items()}
    ids = torch.from_numpy(case.inputs(spec)[0])
    program = lower(spec, weights, case.passes())
    expected = run_program(lower(spec, weights, ()), ids, torch.empty(0, 19))
    torch.testing.assert_close(run_program(program, ids, torch.empty(0, 19)), expected)
    assert len([s for s in program.steps if isinstance(s, Lookup) and s.out]) == 39
