"""Whole tracked jobs against a real sqlite store: what arrives, and that nothing arrives twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tracking_records import MODEL, make_record, start_job, track_job

from pipeline.storage.mlflow_access import quiet_mlflow
from pipeline.tracking.metrics import METRICS
from pipeline.tracking.mlflow_store.replay import replay

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


@pytest.fixture(scope="module")
def client(store: str) -> Iterator[object]:
    with quiet_mlflow():
        from mlflow import MlflowClient

        yield MlflowClient(tracking_uri=store)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory, store: str) -> Path:
    """The output of a tracked job."""
    folder = tmp_path_factory.mktemp("job") / "out"
    track_job(folder, store)
    return folder


@pytest.fixture(scope="module")
def run_id(output: Path, store: str) -> str:
    return str(replay(output, store, 60).run_id)  # also: a second sending finds nothing to do


def runs_of(client, **tags: str) -> list:
    experiment = client.get_experiment_by_name("tests").experiment_id
    query = " and ".join(f"tags.{key} = '{value}'" for key, value in tags.items())
    return client.search_runs([experiment], query)


def test_a_job_arrives_whole(client, run_id: str):
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"max_batch": "65536", "threads": "none", "graphs": "true"}
    assert set(run.data.metrics) <= set(METRICS)
    assert run.data.metrics["rows"] == 333
    assert run.data.metrics["rows_per_second"] == 166.5
    tags = run.data.tags
    assert tags["identity"] == "id-1"
    assert tags["bundle_digest"] == MODEL.digest
    assert {"host", "python_version", "ray_version", "torch_version", "mlflow_version"} <= set(tags)


def test_input_and_model_are_linked(client, run_id: str):
    inputs = client.get_run(run_id).inputs
    dataset = inputs.dataset_inputs[0].dataset
    assert (dataset.name, dataset.digest) == ("synth", "ab" * 18)
    assert json.loads(dataset.profile) == {"num_rows": 333, "num_bytes": 4000}
    model = client.get_logged_model(inputs.model_inputs[0].model_id)
    assert model.params == {"dim": "16", "digest": MODEL.digest}
    assert model.status == "READY"


def test_the_model_is_found_by_digest_and_name_and_names_its_bundle(client, run_id: str):
    run = client.get_run(run_id)
    (linked,) = run.inputs.model_inputs
    for query in (f"tags.digest = '{MODEL.digest}'", "name = 'deepfm'"):
        (found,) = client.search_logged_models([run.info.experiment_id], filter_string=query)
        assert found.model_id == linked.model_id
    assert found.tags["mlflow.source.name"] == MODEL.source
    assert {"rows_per_second", "score_mean"} <= {metric.key for metric in found.metrics}
    kinds = client.get_experiment(run.info.experiment_id).tags
    assert kinds["mlflow.experimentKind"] == "custom_model_development"


def test_an_experiment_keeps_the_kind_that_a_user_gave_it(client, store: str, tmp_path: Path):
    kind = "mlflow.experimentKind"
    own = client.create_experiment("own", str(tmp_path / "own"), {kind: "genai_development"})
    bare = client.create_experiment("bare", str(tmp_path / "bare"))
    for name in ("own", "bare"):
        track_job(tmp_path / name, store, identity=name, experiment=name)
    assert client.get_experiment(own).tags[kind] == "genai_development"
    assert client.get_experiment(bare).tags[kind] == "custom_model_development"


def test_artifacts_are_there(client, run_id: str, tmp_path: Path):
    names = {item.path for item in client.list_artifacts(run_id)}
    assert names == {"units.parquet", "score_histogram.json", "figures"}
    figures = {Path(item.path).name for item in client.list_artifacts(run_id, "figures")}
    expected = {"batch_latency", "stage_timeline", "throughput", "score_histogram"}
    assert figures == {f"{name}.png" for name in expected}
    histogram = client.download_artifacts(run_id, "score_histogram.json", str(tmp_path))
    assert json.loads(Path(histogram).read_text())["rows"] == 327


def test_sending_again_from_nothing_doubles_nothing(client, output: Path, run_id: str, store: str):
    before = client.get_run(run_id).to_dictionary()
    for path in output.glob("_tracking/run-*/store-*.json"):
        path.unlink()  # as if the sender had been killed before it could remember
    again = replay(output, store, 60)
    assert (again.sent, again.run_id) == (3, run_id)
    assert client.get_run(run_id).to_dictionary() == before
    for name in before["data"]["metrics"]:
        assert len(client.get_metric_history(run_id, name)) == 1
    assert len(runs_of(client, spool_id=before["data"]["tags"]["spool_id"])) == 1


def test_drift_against_a_run_and_the_same_model_again(client, tmp_path: Path, run_id: str, store):
    tracker = track_job(tmp_path / "out", store, identity="id-2", baseline_run=run_id)
    run = client.get_run(tracker.run_id)
    assert run.data.metrics["score_psi"] == 0.0  # the same scores
    assert run.data.tags["baseline_status"] == "ok"
    assert run.inputs.model_inputs[0].model_id == (
        client.get_run(run_id).inputs.model_inputs[0].model_id
    )


def test_a_missing_baseline_is_a_warning_and_a_tag(client, tmp_path: Path, store: str, caplog):
    tracker = track_job(tmp_path / "out", store, identity="id-3", baseline_run="nosuchrun")
    run = client.get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["baseline_status"].startswith("missing: ")
    assert "score_psi" not in run.data.metrics
    assert "baseline 'nosuchrun' cannot be read" in caplog.text


KILLED_JOB = """
import sys, time
from pathlib import Path
from tracking_records import make_record, start_job
tracker = start_job(Path(sys.argv[1]), sys.argv[2], identity="killed")
tracker.unit_done(make_record(0))
while tracker.run_id is None:
    time.sleep(0.05)
print(tracker.run_id, flush=True)
time.sleep(60)
"""


def test_a_killed_job_goes_on_in_the_same_run(client, tmp_path: Path, store: str):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests/helpers'}"}
    command = [sys.executable, "-c", KILLED_JOB, str(tmp_path), store]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as job:
        run_id = job.stdout.readline().strip()
        job.send_signal(signal.SIGKILL)
    until = time.monotonic() + 30
    while client.get_run(run_id).info.status != "KILLED" and time.monotonic() < until:
        time.sleep(0.1)
    assert client.get_run(run_id).info.status == "KILLED"
    assert "problems" in client.get_run(run_id).data.tags

    tracker = start_job(tmp_path, store, identity="killed", params={"max_batch": 19})
    tracker.unit_done(make_record(1))
    tracker.finish("FINISHED", [make_record(0), make_record(1)], 1.0, 0, None)
    tracker.close(60)
    run = client.get_run(run_id)
    assert tracker.run_id == run_id
    assert run.info.status == "FINISHED"
    assert run.data.metrics["rows"] == 222
    assert run.data.metrics["rows_attempt"] == 111
    assert run.data.tags["attempts"] == "2"
    assert "problems" not in run.data.tags
    assert json.loads(run.data.tags["changed_params"]) == {"max_batch": ["65536", "19"]}
    assert run.data.params["max_batch"] == "65536"
