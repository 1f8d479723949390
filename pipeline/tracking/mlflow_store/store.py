"""`MlflowStore`: writes spooled events to MLflow. Every step is idempotent.

A run is looked up by its tag `spool_id` before one is created, a model by its digest; a repeated
metric has the same value, step and time, which MLflow keeps once; tags and artifacts are replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.data.dataset_source_registry import resolve_dataset_source
from mlflow.data.meta_dataset import MetaDataset
from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    LoggedModelInput,
    Metric,
    Param,
    RunTag,
)

from pipeline.redaction import without_credentials
from pipeline.storage.mlflow_access import experiment_id, sqlite_path
from pipeline.tracking.artifacts import write_artifacts
from pipeline.tracking.drift import measure_drift
from pipeline.tracking.settings import DATASET_DIGEST_LENGTH
from pipeline.tracking.spool import Event, StoreState

PARAM_LIMIT = 6000
# Chooses MLflow's pages of runs and metrics over those of traces, and keeps them chosen.
RUNS_VIEW = "workflowType=machine_learning"
TAG_LIMIT = 5000
MODEL_PARAM_LIMIT = 250
PARAMS_A_BATCH = 100
DATASET_NAME_LIMIT = 500
PROGRESS = ("progress_rows", "progress_rows_per_second")


class MlflowStore:
    """One MLflow store, as seen by the sender; every method may raise whatever MLflow raises."""

    def __init__(self, uri: str) -> None:
        mlflow.set_tracking_uri(uri)
        self.uri = uri
        with _folder_lock(sqlite_path(uri)):  # only one of several senders may create the tables
            self.client = MlflowClient(tracking_uri=uri)
            self.client.search_experiments(max_results=1)

    def apply(self, event: Event, state: StoreState, run_dir: Path) -> str | None:
        """Write one event to the store, keep its ids in `state`; returns a warning or None."""
        if event["kind"] == "start":
            self._start(event, state)
        elif event["kind"] == "progress":
            self._series(event, state, {name: event[name] for name in PROGRESS})
        elif event["kind"] == "machines":
            self._series(event, state, event["metrics"])
        else:
            return self._finish(event, state, run_dir)
        return None

    def end_lost(self, state: StoreState, time_ms: int) -> None:
        """End the run of a process that died without a finish event."""
        assert state.run_id is not None
        self.client.set_tag(state.run_id, "problems", "the job's process ended without a word")
        self.client.set_terminated(state.run_id, "KILLED", end_time=time_ms)

    def _start(self, event: Event, state: StoreState) -> None:
        experiment_id = self.experiment(event["experiment"])
        if state.run_id is None:
            state.run_id = self._find_or_create_run(experiment_id, event)
            state.url = run_url(self.uri, experiment_id, state.run_id)
            state.started_ms = event["time"]
        run = self.client.get_run(state.run_id)
        if run.info.status != "RUNNING":
            self.client.update_run(state.run_id, status="RUNNING")
        known = run.data.params
        params = {key: value[:PARAM_LIMIT] for key, value in event["params"].items()}
        new = [Param(key, value) for key, value in params.items() if key not in known]
        for first in range(0, len(new), PARAMS_A_BATCH):
            self.client.log_batch(state.run_id, params=new[first : first + PARAMS_A_BATCH])
        tags = {**event["tags"], "attempts": str(event["attempt"] + 1)}
        changed = {
            key: [known[key], value]
            for key, value in params.items()
            if key in known and known[key] != value
        }
        if changed:
            tags["changed_params"] = json.dumps(changed)
        self._set_tags(state.run_id, tags)
        state.model_id = self._model(experiment_id, event)
        self.client.log_inputs(
            state.run_id,
            datasets=[_dataset_input(event)],
            models=[LoggedModelInput(state.model_id)],
        )
        state.lost = False

    def _series(self, event: Event, state: StoreState, values: dict[str, float]) -> None:
        assert state.run_id is not None
        # At least 0: the clock of a later attempt's host may be behind.
        step = max(0, event["time"] - state.started_ms) // 1000
        points = [Metric(name, value, event["time"], step) for name, value in values.items()]
        self.client.log_batch(state.run_id, metrics=points)

    def _finish(self, event: Event, state: StoreState, run_dir: Path) -> str | None:
        assert state.run_id is not None
        drift = measure_drift(event, self.client)
        if drift.psi is not None:
            state.derived = {"score_psi": drift.psi}
        metrics = {**event["metrics"], **({} if drift.psi is None else {"score_psi": drift.psi})}
        step, time_ms = event["attempt"], event["time"]
        points = [
            Metric(name, value, time_ms, step, model_id=state.model_id)
            for name, value in metrics.items()
        ]
        self.client.log_batch(state.run_id, metrics=points)
        self._set_tags(state.run_id, {**event["tags"], **drift.tags})
        if "problems" not in event["tags"]:
            self._remove_tag(state.run_id, "problems")  # of an attempt before
        with tempfile.TemporaryDirectory(prefix="dpiframe-tracking-") as folder:
            problem = write_artifacts(Path(folder), event, run_dir, drift.baseline)
            self.client.log_artifacts(state.run_id, folder)
        self.client.set_terminated(state.run_id, event["status"], end_time=time_ms)
        return drift.warning or problem

    def experiment(self, name: str) -> str:
        """Id of the experiment, created where there is none."""
        return experiment_id(self.client, name)

    def _find_or_create_run(self, experiment_id: str, event: Event) -> str:
        spool_id = event["spool_id"]
        found = self.client.search_runs([experiment_id], f"tags.spool_id = '{spool_id}'")
        if found:
            return str(found[0].info.run_id)
        run = self.client.create_run(
            experiment_id,
            start_time=event["time"],
            tags={"spool_id": spool_id},
            run_name=event["run_name"],
        )
        return str(run.info.run_id)

    def _model(self, experiment_id: str, event: Event) -> str:
        """Id of the model with this digest, created where the experiment has none."""
        info = event["model"]
        found = self.client.search_logged_models(
            [experiment_id], filter_string=f"params.digest = '{info['digest']}'", max_results=1
        )
        if found:
            if found[0].status != "READY":
                self.client.finalize_logged_model(found[0].model_id, "READY")
            return str(found[0].model_id)
        params = {key: value[:MODEL_PARAM_LIMIT] for key, value in info["params"].items()}
        name = re.sub(r"[^\w-]", "-", info["name"])
        model = mlflow.create_external_model(
            name=name,
            model_type="ctr",
            params={**params, "digest": info["digest"]},
            tags={
                "digest": info["digest"],
                "bundle": name,
                "mlflow.source.name": (info.get("source") or name)[:TAG_LIMIT],
                "mlflow.source.type": "PROJECT",
                **info.get("tags", {}),
            },
            experiment_id=experiment_id,
        )
        return str(model.model_id)

    def _remove_tag(self, run_id: str, key: str) -> None:
        if key in self.client.get_run(run_id).data.tags:
            self.client.delete_tag(run_id, key)

    def _set_tags(self, run_id: str, tags: dict[str, str]) -> None:
        self.client.log_batch(
            run_id, tags=[RunTag(key, value[:TAG_LIMIT]) for key, value in tags.items()]
        )


@contextlib.contextmanager
def _folder_lock(database: Path | None) -> Iterator[None]:
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(database.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def run_url(uri: str, experiment_id: str, run_id: str) -> str | None:
    """The page of a run on a tracking server; None for a local file, which has no server."""
    if not uri.startswith(("http://", "https://")):
        return None
    server = without_credentials(uri).rstrip("/")
    return f"{server}/#/experiments/{experiment_id}/runs/{run_id}?{RUNS_VIEW}"


def _dataset_input(event: Event) -> DatasetInput:
    info = event["dataset"]
    dataset = MetaDataset(
        source=resolve_dataset_source(Path(info["source"][:PARAM_LIMIT])),  # any text is a path
        name=info["name"][:DATASET_NAME_LIMIT],
        digest=info["digest"][:DATASET_DIGEST_LENGTH],
    )
    profile = json.dumps({"num_rows": info["rows"], "num_bytes": info["bytes"]})
    entity = Dataset.from_dictionary({**dataset.to_dict(), "profile": profile})
    return DatasetInput(entity, [InputTag("mlflow.data.context", "scoring")])
