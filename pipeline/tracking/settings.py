"""A job's tracking settings, input and model; the address of the MLflow store."""

from __future__ import annotations

import hashlib

from pydantic import BaseModel, ConfigDict, Field

from pipeline.redaction import without_credentials

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
    source: str = ""  # the bundle as configured, or its name and version in a registry
    params: dict[str, ParamValue] = {}
    tags: dict[str, str] = {}


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
