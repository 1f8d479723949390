"""MLflow's address, and its settings here: no log output, no telemetry, bounded waits.

MLflow takes them from environment variables only: of the sender process, or of this process for
the span of `quiet_mlflow`.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

DEFAULT_URI = "sqlite:///mlflow.db"
SQLITE_PREFIX = "sqlite:///"
HTTP_TIMEOUT_S = 10
HTTP_RETRIES = 1
# Says that the experiment holds runs; MLflow guesses the kind of one without it.
EXPERIMENT_KIND = {"mlflow.experimentKind": "custom_model_development"}

MLFLOW_ENV = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_CONFIGURE_LOGGING": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(HTTP_TIMEOUT_S),
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(HTTP_RETRIES),
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}


@contextmanager
def quiet_mlflow() -> Iterator[None]:
    """Set `MLFLOW_ENV` and silence the loggers of MLflow and alembic; restore both afterwards."""
    before = {name: os.environ.get(name) for name in MLFLOW_ENV}
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    os.environ.update(MLFLOW_ENV)
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def resolve_uri(uri: str | None) -> str:
    """The store that `uri` means, with sqlite files as absolute paths.

    None: MLFLOW_TRACKING_URI, else `sqlite:///mlflow.db` in the current directory.
    """
    chosen = uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI
    path = sqlite_path(chosen)
    return chosen if path is None else f"{SQLITE_PREFIX}{path}"


def sqlite_path(uri: str) -> Path | None:
    """The absolute path of a sqlite store's file, None for any other kind of store."""
    if not uri.startswith(SQLITE_PREFIX):
        return None
    return Path(uri.removeprefix(SQLITE_PREFIX)).absolute()


def experiment_id(client: MlflowClient, name: str) -> str:
    """Id of the experiment, created where there is none.

    A sqlite store keeps artifacts beside its file, whatever the working directory.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        found = str(experiment.experiment_id)
        for key, value in EXPERIMENT_KIND.items():
            if not experiment.tags.get(key, "").strip():
                client.set_experiment_tag(found, key, value)
        return found
    database = sqlite_path(client.tracking_uri)
    location = None if database is None else str(database.parent / "mlruns")
    return str(client.create_experiment(name, location, EXPERIMENT_KIND))
