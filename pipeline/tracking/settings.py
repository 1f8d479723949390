"""A job's tracking settings, input and model; the address of the MLflow store."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from pipeline.redaction import without_credentials

DEFAULT_URI = "sqlite:///mlflow.db"
SQLITE_PREFIX = "sqlite:///"
# MLflow refuses dataset digests above this length; a sha256 in hex has 64 characters.
DATASET_DIGEST_LENGTH = 36

ParamValue = str | int | float | bool | None


class TrackingSettings(BaseModel):
    """Where and how a job is tracked; `uri` None: MLFLOW_TRACKING_URI, else the local sqlite."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: str | None = None
    experiment: str = "dpiframe"
    run_name: str | None = None
    baseline_run: str | None = None  # an MLflow run id, an output folder, or its _manifest.json
    price_per_hour: float | None = Field(default=None, ge=0)  # of one GPU, or one machine without
    enabled: bool = True
    late: bool = False  # MLflow's process starts with the first event after the start of the job


class DatasetInfo(BaseModel):
    """The input of a job: name, location, digest, size."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    source: str
    digest: str
    rows: int
    bytes: int = 0


class ModelInfo(BaseModel):
    """The model of a job; the digest of its bundle identifies it in the store."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    digest: str
    params: dict[str, ParamValue] = {}


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


def store_name(uri: str) -> str:
    """A short name of a resolved store for its cursor file."""
    return hashlib.sha256(without_credentials(uri).encode()).hexdigest()[:8]


def param_text(value: object) -> str:
    """A parameter as MLflow keeps it: text, with None as `none` and booleans in lower case."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
