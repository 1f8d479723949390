"""Bundles by their name in MLflow's model registry, resolved once, to a version and a digest.

A version that `dpiframe register` made says in its tags what bundle it is and where that lies among
its artifacts. Artifacts in a file system or an object store are read where they are; those behind
a server are copied to the user's cache.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict

from dpiframe_core.bundle.files import MANIFEST
from pipeline.errors import ConfigError
from pipeline.redaction import without_credentials
from pipeline.storage.address import SCHEMES, scheme_of
from pipeline.storage.bundle_cache import cache_folder
from pipeline.storage.mlflow_access import quiet_mlflow, resolve_uri, sqlite_path

if TYPE_CHECKING:
    from mlflow import MlflowClient

DIGEST_TAG, PATH_TAG = "dpiframe.bundle_digest", "dpiframe.bundle_path"


class Registered(BaseModel):
    """One version of a registered model: its bundle's digest, and where the bundle lies.

    `alias`: the one that was asked for, if it was one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    version: str
    alias: str | None
    digest: str
    location: str

    @property
    def pinned(self) -> str:
        """The version's address, which no move of an alias changes."""
        return f"models:/{self.name}/{self.version}"

    @property
    def tags(self) -> dict[str, str]:
        """What a run says of it."""
        found = {"registered_model": self.name, "registered_version": self.version}
        return found | ({"registered_alias": self.alias} if self.alias else {})

    def check(self, digest: str) -> None:
        """Raise ConfigError when the bundle is not the one that was registered."""
        if digest != self.digest:
            raise ConfigError(
                f"{self.pinned} was registered with the bundle {self.digest}, but {self.location} "
                f"holds {digest}: register it again"
            )


def resolve_registered(address: str, uri: str | None) -> Registered:
    """The version that `models:/NAME@alias` or `models:/NAME/version` names now.

    `uri`: of the MLflow server, see `resolve_uri`. ConfigError: there is none, it is no bundle, or
    the server does not answer.
    """
    with quiet_mlflow():
        return _registered(*_version(address, uri))


def registered_digest(address: str, uri: str | None) -> str:
    """The bundle's digest alone, without a look at its files; errors as above."""
    with quiet_mlflow():
        return _bundle_of(_version(address, uri)[0])[0]


def _version(address: str, uri: str | None) -> tuple[Any, str | None, MlflowClient]:
    """The version, the alias that was asked for, and a client of the store."""
    store = resolve_uri(uri)
    database = sqlite_path(store)
    if database is not None and not database.exists():
        raise ConfigError(f"{address}: there is no MLflow store at {database}; set mlflow_uri")
    name, _, alias = address.removeprefix("models:/").partition("@")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        client = MlflowClient(tracking_uri=store, registry_uri=store)
        if alias:
            return client.get_model_version_by_alias(name, alias), alias, client
        name, _, number = name.partition("/")
        return client.get_model_version(name, number), None, client
    except MlflowException as error:
        shown = without_credentials(store)
        raise ConfigError(f"{address} cannot be found in {shown}: {error.message}") from None


def _bundle_of(version: Any) -> tuple[str, str]:
    """Digest and path of the bundle of a version."""
    digest, path = version.tags.get(DIGEST_TAG), version.tags.get(PATH_TAG)
    if not digest or not path:
        raise ConfigError(
            f"models:/{version.name}/{version.version} is not a bundle: register one with "
            "`dpiframe register BUNDLE NAME`"
        )
    return digest, path


def _registered(found: Any, alias: str | None, client: MlflowClient) -> Registered:
    digest, path = _bundle_of(found)
    root = str(client.get_model_version_download_uri(found.name, found.version))
    location = _direct(root, path) or _copied(root, path, digest)
    return Registered(
        name=found.name, version=str(found.version), alias=alias, digest=digest, location=location
    )


def _direct(root: str, path: str) -> str | None:
    """The bundle's path or address, None where only MLflow can read it."""
    scheme = scheme_of(root)
    if scheme in SCHEMES:
        return f"{root.rstrip('/')}/{path}"
    if root.startswith("file:"):
        return str(Path(unquote(urlsplit(root).path)) / path)
    return None if ":" in root.partition("/")[0] else str(Path(root).absolute() / path)


def _copied(root: str, path: str, digest: str) -> str:
    """A copy in the user's cache, fetched by MLflow where there is none."""
    from mlflow.artifacts import download_artifacts

    folder = cache_folder() / "bundles" / digest
    if not (folder / MANIFEST).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        work = folder.with_name(f".{digest}.{uuid.uuid4().hex}")
        work.mkdir(mode=0o700)
        try:
            found = download_artifacts(
                artifact_uri=f"{root.rstrip('/')}/{path}", dst_path=str(work)
            )
            Path(found).rename(folder)
        except OSError as error:
            if not (folder / MANIFEST).is_file():  # else another process was first
                raise ConfigError(f"{root}/{path} cannot be copied to {folder}: {error}") from None
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return str(folder)
