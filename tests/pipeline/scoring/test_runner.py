"""Which runner a job gets that leaves it to us."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from job_cases import job_keys, tiny_bundle, write_shards

import pipeline
from pipeline.cluster import ray_cluster
from pipeline.config.job import JobConfig
from pipeline.planning.plan import make_plan
from pipeline.publishing.verify import verify_output
from pipeline.scoring import runner


def on_gpus(monkeypatch: pytest.MonkeyPatch, count: int, cuda: bool = True) -> None:
    core = SimpleNamespace(cuda_device_count=lambda: count, build_info=lambda: {"cuda": cuda})
    monkeypatch.setattr(runner, "_core", core)


def chosen(**keys: Any) -> str:
    return runner.choose_runner(JobConfig.model_validate(job_keys(Path("/job"), **keys)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # by another test
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 3, 111, 19)
    return tmp_path


@pytest.mark.parametrize(("gpus", "cuda", "wanted"), [(1, True, "local"), (1, False, "ray")])
def test_one_gpu_needs_no_ray(
    folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, cuda: bool, wanted: str
) -> None:
    on_gpus(monkeypatch, gpus, cuda)
    assert chosen(device="auto", ray_address=None) == wanted
    assert chosen(device="cuda", ray_address=None, num_scorers=1) == wanted
    assert chosen(device="cuda", ray_address=None, runner="ray") == "ray"


@pytest.mark.parametrize("gpus", [0, 2, 8])
def test_more_gpus_or_none_are_for_ray(
    folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    on_gpus(monkeypatch, gpus)
    assert chosen(device="auto", ray_address=None) == "ray"
    assert chosen(device="auto", ray_address=None, runner="local") == "local"


@pytest.mark.parametrize(
    "keys",
    [
        {"device": "cpu"},
        {"ray_address": "local"},
        {"num_scorers": 2},
        {"read_in": "tasks"},
        {"max_tasks_in_flight": 3},
        {"object_store_bytes": 10**9},
    ],
)
def test_what_is_said_of_ray_asks_for_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    on_gpus(monkeypatch, 1)
    assert chosen(**{"device": "auto", "ray_address": None} | keys) == "ray"


def test_a_cluster_that_runs_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpus(monkeypatch, 1)
    left = folder / "ray/ray_current_cluster"
    left.parent.mkdir()
    left.write_text("127.0.0.1:1")
    assert chosen(device="auto", ray_address=None) == "local"  # it does not answer
    monkeypatch.setattr(ray_cluster, "listens", lambda address: address == "127.0.0.1:1")
    assert chosen(device="auto", ray_address=None) == "ray"
    left.unlink()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert chosen(device="auto", ray_address=None) == "ray"


def test_a_chosen_runner_is_the_job_s(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is written down, scores without Ray, and another runner goes on with the job."""
    monkeypatch.setattr(runner, "choose_runner", lambda config: "local")
    keys = job_keys(folder, ray_address=None, unit_rows=40)
    plan = runner.with_runner(make_plan(JobConfig.model_validate(keys)), "local")
    assert (plan.config.runner, plan.config.tracking_wait) == ("local", 20)
    result = pipeline.score(keys)
    assert (result.rows, result.units, result.run_id is None) == (333, 9, not keys["tracking"])
    assert "runner: local" in (folder / "output/_config.yaml").read_text()
    assert verify_output(folder / "output").problems == []
    monkeypatch.undo()
    assert pipeline.score(keys).status == "complete before"
