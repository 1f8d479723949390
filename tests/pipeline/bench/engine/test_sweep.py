"""A sweep: its cases, and its runs in MLflow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from jobs.bench import command
from pipeline.bench.engine.sweep import metric_name, sweep_cases
from pipeline.errors import ConfigError
from pipeline.storage.mlflow_access import quiet_mlflow

SMALL = ["--scale", "1e-5", "--hidden", "8,5", "--dim", "4", "--model", "wdl", "--repeats", "3"]
MODULE = """
import torch

class Scorer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = torch.nn.Embedding(100, 4), torch.nn.Linear(4, 1)

    def forward(self, ids):
        return self.head(self.table(ids))

    def example_inputs(self):
        return torch.arange(8)
"""


def test_the_cases_of_a_sweep() -> None:
    cases = sweep_cases({"model": "wdl"}, ["batch=19,40", "hidden=8,5/7"])
    assert [name for name, _ in cases] == [
        "batch=19 hidden=8,5",
        "batch=19 hidden=7",
        "batch=40 hidden=8,5",
        "batch=40 hidden=7",
    ]
    assert cases[1].case.hidden == (7,)
    assert cases[2].case.batch == 40
    assert metric_name("TBE + Inductor, graph") == "tbe_inductor_graph"


@pytest.mark.parametrize("wrong", ["nothing=1", "batch", "batch=", "batch=x", "dim=0"])
def test_a_sweep_that_is_none(wrong: str) -> None:
    with pytest.raises(ConfigError, match="--vary"):
        sweep_cases({}, [wrong])


def test_a_file_that_cannot_be_written_is_told_before_measuring(tmp_path: Path) -> None:
    path = tmp_path / "none" / "x.json"
    for name in ("engine", "sweep", "lookup", "stream", "job"):
        found = CliRunner().invoke(command, [name, "--json", str(path)])
        assert found.exit_code == 2 and f"folder {path.parent} is not there" in found.output


@pytest.mark.slow
def test_a_sweep_that_fails_keeps_what_was_measured(tmp_path: Path) -> None:
    path, uri = tmp_path / "found.json", f"sqlite:///{tmp_path}/mlflow.db"
    good = tmp_path / "good.py"
    good.write_text(MODULE)
    varied = f"module={good}:Scorer,{tmp_path}/none.py:Scorer"
    options = ["--peers", "none", "--repeats", "3", "--vary", varied, "--json", str(path)]
    found = CliRunner().invoke(command, ["sweep", *options, "--mlflow-uri", uri])
    assert found.exit_code != 0 and len(json.loads(path.read_text())) == 1


@pytest.mark.slow
def test_a_sweep_is_a_run_with_children(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    arguments = ["sweep", *SMALL, "--vary", "batch=19,40", "--mlflow-uri", uri]
    arguments += ["--json", str(tmp_path / "found.json")]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert "batch=40" in done.output
    with quiet_mlflow():
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("dpiframe-bench").experiment_id
        runs = {run.info.run_name: run for run in client.search_runs([experiment])}
        assert set(runs) == {"engine sweep wdl cpu: batch", "batch=19", "batch=40"}
        parent = runs["engine sweep wdl cpu: batch"]
        for name in ("batch=19", "batch=40"):
            assert runs[name].data.tags["mlflow.parentRunId"] == parent.info.run_id
            assert runs[name].info.status == "FINISHED"
            assert runs[name].data.params["hidden"] == "[8, 5]"
        metrics = runs["batch=19"].data.metrics
        assert metrics.keys() >= {"ms_dpiframe", "ms_eager", "speedup_over_eager"}
        artifacts = {found.path for found in client.list_artifacts(parent.info.run_id)}
    assert artifacts == {"sweep.json", "latency.png", "speedup.png", "floor.png"}
    assert json.loads((tmp_path / "found.json").read_text())["batch=19"] == metrics
