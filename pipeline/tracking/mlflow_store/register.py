"""`dpiframe register`: a bundle as a version of a model in MLflow's registry.

The version's artifacts hold the bundle's folder, so a job finds it by name, and a pyfunc model made
from code, so `mlflow.pyfunc.load_model` scores DataFrames with the same numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpiframe_core.bundle.reading import Bundle
from dpiframe_core.errors import BundleError
from pipeline.errors import ConfigError
from pipeline.redaction import without_credentials
from pipeline.storage.bundle_cache import bundle_folder, open_bundle_at
from pipeline.storage.mlflow_access import quiet_mlflow, resolve_uri
from pipeline.storage.registered import DIGEST_TAG, PATH_TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.models import ModelSignature

MODEL_CODE = Path(__file__).with_name("bundle_model.py")
PACKAGES = ("dpiframe", "numpy", "pandas", "pyarrow", "safetensors", "torch")


class Version(NamedTuple):
    """A registered version, and whether it was there before."""

    name: str
    version: str
    digest: str
    uri: str
    is_new: bool


def register(
    location: str, name: str, aliases: tuple[str, ...], uri: str | None, experiment: str
) -> Version:
    """Register the bundle at a path or address, and move the aliases to that version.

    A bundle that is a version of this model already is not logged again. ConfigError: no bundle, a
    name that MLflow refuses, a server that does not answer.
    """
    try:
        bundle = open_bundle_at(location)
        folder = bundle_folder(location, bundle.digest)
    except (BundleError, OSError) as error:
        raise ConfigError(f"the bundle cannot be registered: {error}") from None
    store = resolve_uri(uri)
    with quiet_mlflow(), _mlflow_errors(store):
        import mlflow

        from pipeline.tracking.mlflow_store.store import MlflowStore

        experiment_id = MlflowStore(store).experiment(experiment)
        mlflow.set_registry_uri(store)
        client = mlflow.MlflowClient(tracking_uri=store, registry_uri=store)
        found = _version_of(client, name, bundle.digest)
        number = found or _log(client, bundle, folder, name, experiment_id)
        for alias in aliases:
            client.set_registered_model_alias(name, alias, number)
    return Version(name, number, bundle.digest, without_credentials(store), not found)


@contextlib.contextmanager
def _mlflow_errors(store: str) -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        shown = without_credentials(store)
        raise ConfigError(f"{shown} does not take the model: {error.message}") from None


def _version_of(client: MlflowClient, name: str, digest: str) -> str | None:
    """The newest version of this model that is this bundle."""
    found = client.search_model_versions(f"name = '{name}'")
    same = [int(one.version) for one in found if one.tags.get(DIGEST_TAG) == digest]
    return str(max(same)) if same else None


def _log(client: MlflowClient, bundle: Bundle, folder: Path, name: str, experiment_id: str) -> str:
    import mlflow

    mlflow.set_experiment(experiment_id=experiment_id)
    tags = {DIGEST_TAG: bundle.digest, PATH_TAG: f"artifacts/{folder.name}", **summary(bundle)}
    logged = mlflow.pyfunc.log_model(
        name=name,
        python_model=str(MODEL_CODE),
        artifacts={"bundle": str(folder)},
        signature=signature(bundle),
        pip_requirements=[f"{package}=={version(package)}" for package in PACKAGES],
        registered_model_name=name,
        model_type="ctr",
        params={"digest": bundle.digest},
        tags={"digest": bundle.digest, "mlflow.source.name": str(folder)},
    )
    number = str(logged.registered_model_version)
    for key, value in tags.items():
        client.set_model_version_tag(name, number, key, value)
    return number


def summary(bundle: Bundle) -> dict[str, str]:
    """The model spec in a few tags."""
    spec = bundle.spec
    return {
        "dpiframe.model": spec.name,
        "dpiframe.fields": str(len(spec.fields)),
        "dpiframe.dense_features": str(len(spec.dense)),
        "dpiframe.table_rows": str(sum({f.table: f.rows for f in spec.fields}.values())),
        "dpiframe.modules": ", ".join(module.op for module in spec.modules),
        "dpiframe.form": "encoded" if bundle.schema is None else "raw",
    }


def signature(bundle: Bundle) -> ModelSignature | None:
    """Raw columns of the feature schema, each optional, else ids and dense features; the score.

    None of a bundle whose columns hold lists.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema

    columns: dict[str, str] = {}
    if bundle.spec.lists:
        return None
    if bundle.schema is None:
        columns = {bundle.spec.columns.get(f.name, f.name): "long" for f in bundle.spec.fields}
        columns |= {bundle.spec.columns.get(n, n): "double" for n in bundle.spec.dense}
    else:
        for feature in bundle.schema.features:
            columns[feature.column] = _raw_type(feature)
    inputs = [ColSpec(kind, column, required=False) for column, kind in columns.items()]
    return ModelSignature(Schema(inputs), Schema([ColSpec("float", "score")]))


def _raw_type(feature: Any) -> str:
    if not hasattr(feature, "encoding") or feature.encoding.kind == "log_bucket":
        return "double"
    return "string" if feature.values == "string" else "long"
