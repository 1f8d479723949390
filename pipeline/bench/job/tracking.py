"""Logging a benchmark of the job: the same figures for ours and for the peer, a run each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from pipeline.bench.job.case import JobCase
from pipeline.bench.job.runs import JobRun, PeerRun
from pipeline.storage.mlflow_access import experiment_id, quiet_mlflow
from pipeline.tracking.settings import param_text

PEER = "ray data + torch"


def bench_metrics(run: JobRun | PeerRun) -> dict[str, float]:
    """The figures of a run as taken from outside, by their names in MLflow."""
    metrics = {
        "bench_rows": float(run.rows),
        "bench_seconds": run.rates.seconds,
        "bench_startup_seconds": run.rates.first_s,
        "bench_tail_seconds": run.rates.tail_s,
        "bench_rows_per_second": run.rates.rows_per_s,
    }
    if run.rates.steady_rows_per_s is not None:
        metrics["bench_rows_per_second_steady"] = run.rates.steady_rows_per_s
    return metrics


def log_ours(case: JobCase, run: JobRun) -> str | None:
    """Add the figures to the run that the job itself logged; its id, None where there is none."""
    with _client(case) as client:
        found = client.search_runs(
            [experiment_id(client, case.experiment)],
            f"tags.identity = '{run.identity}'",
            order_by=["attributes.start_time DESC"],
            max_results=1,
        )
        if not found:
            return None
        run_id = str(found[0].info.run_id)
        _log(client, run_id, bench_metrics(run), {})
        return run_id


def log_peer(case: JobCase, run: PeerRun) -> str:
    """A run for the peer; its id."""
    name = f"{PEER} {case.model} {case.precision} {case.form} x{max(run.gpus, 1)}"
    began = int(1000 * (time.time() - run.rates.seconds))
    params = case.model_dump(include={"model", "device", "precision", "form", "dim", "peer_batch"})
    with _client(case) as client:
        experiment = experiment_id(client, case.experiment)
        created = client.create_run(experiment, start_time=began, run_name=name)
        run_id = str(created.info.run_id)
        _log(client, run_id, bench_metrics(run), params | {"engine": PEER, "gpus": run.gpus})
        client.set_terminated(run_id)
        return run_id


@contextlib.contextmanager
def _client(case: JobCase) -> Iterator[Any]:
    with quiet_mlflow():
        from mlflow import MlflowClient

        yield MlflowClient(tracking_uri=case.mlflow_uri)


def _log(client: Any, run_id: str, metrics: dict[str, float], params: dict[str, Any]) -> None:
    from mlflow.entities import Metric, Param

    now = int(1000 * time.time())
    client.log_batch(
        run_id,
        metrics=[Metric(name, value, now, 0) for name, value in metrics.items()],
        params=[Param(name, param_text(value)) for name, value in params.items()],
    )
