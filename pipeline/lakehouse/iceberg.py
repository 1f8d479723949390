"""Iceberg tables, by pyiceberg: the files of a snapshot, and parts committed as they are.

A table is `iceberg://CATALOG/NAMESPACE.TABLE`. Its catalog is configured as pyiceberg is:
`~/.pyiceberg.yaml`, or PYICEBERG_CATALOG__CATALOG__URI and the like in the environment.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.errors import ConfigError, ContractError
from pipeline.lakehouse.table import (
    Commit,
    DataFile,
    check_columns,
    columns_of,
    one_line,
    overtaken,
    reaching,
    side_by_side,
)

_ADDRESS = re.compile(r"iceberg://(?P<catalog>[\w-]+)/(?P<table>[\w-]+(\.[\w-]+)+)(@(?P<id>\d+))?")


@dataclass(frozen=True)
class IcebergTable:
    """A table of a catalog, or one of its snapshots (`version`). See `Table` for what it does."""

    catalog: str
    name: str
    version: int | None = None

    def __str__(self) -> str:
        at = "" if self.version is None else f"@{self.version}"
        return f"iceberg://{self.catalog}/{self.name}{at}"

    @classmethod
    def parse(cls, address: str) -> IcebergTable:
        """The table of an address; ValueError says how one looks."""
        found = _ADDRESS.fullmatch(address)
        if found is None:
            raise ValueError(
                f"must be a table such as iceberg://catalog/namespace.table, or one of its "
                f"snapshots (...table@1234), got {address!r}"
            )
        return cls(found["catalog"], found["table"], int(found["id"]) if found["id"] else None)

    def check(self, schema: pa.Schema, output: str) -> None:
        """See `Table`."""
        check_columns(schema)
        _check_installed()

    def pinned(self) -> IcebergTable:
        """See `Table`."""
        table = self._load()
        if self.version is not None:
            return self
        current = table.current_snapshot()
        if current is None:
            raise ConfigError(f"input {self} has no snapshot: nothing was ever written to it")
        return replace(self, version=current.snapshot_id)

    def files(self) -> list[DataFile]:
        """See `Table`."""
        table = self._load()
        if self.version is not None and table.snapshot_by_id(self.version) is None:
            raise ConfigError(f"input {self}: the table has no such snapshot (any more)")
        with _reaching(f"read the table {self}"):
            tasks = list(table.scan(snapshot_id=self.version).plan_files())
        deleted = [task for task in tasks if task.delete_files]
        if deleted:
            raise ContractError(
                f"input {self}: rows of {len(deleted)} of its {len(tasks)} files are deleted by "
                "delete files, which only the table's readers see; compact the table (rewrite its "
                "data files) and read the new snapshot"
            )
        files = [task.file for task in tasks]
        other = [file for file in files if str(file.file_format.value).upper() != "PARQUET"]
        if other:
            raise ContractError(f"input {self}: {other[0].file_path} is not parquet")
        return [DataFile(path) for path in sorted(_path_of(file.file_path) for file in files)]

    def commit(
        self,
        parts: Sequence[str],
        replaces: Sequence[str],
        properties: Mapping[str, str],
        partition_by: Sequence[str],
    ) -> Commit:
        """See `Table`."""
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        try:
            table = self._load_or_make(columns_of(parts[0]), partition_by)
            return self._commit(table, parts, replaces, properties)
        except (CommitFailedException, ValidationException) as error:
            raise overtaken(self, error) from None

    def _commit(
        self,
        table: Any,
        parts: Sequence[str],
        replaces: Sequence[str],
        properties: Mapping[str, str],
    ) -> Commit:
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        uris = [_uri_of(part) for part in parts]
        below = tuple(_uri_of(folder).rstrip("/") + "/" for folder in replaces)
        with _reaching(f"read the table {self}"):
            there = {task.file.file_path: task.file for task in table.scan().plan_files()}
        ours = set(uris)
        old = [file for path, file in there.items() if path.startswith(below) and path not in ours]
        new = [uri for uri in uris if uri not in there]
        current = table.current_snapshot()
        if not old and not new and current is not None:
            return Commit(current.snapshot_id, new=False)
        _forbid_blind_retries(table)
        with _reaching(f"commit to the table {self}"), table.transaction() as change:
            if table.metadata.name_mapping() is None:  # parts hold no field ids: columns by name
                mapping = table.schema().name_mapping.model_dump_json()
                change.set_properties(**{"schema.name-mapping.default": mapping})
            try:
                of = partial(parquet_file_to_data_file, table.io, change.table_metadata)
                files = side_by_side(of, new)
            except (ValueError, NotImplementedError) as error:
                raise ConfigError(
                    f"the published parts do not fit the table {self}: {one_line(error)}"
                ) from None
            snapshot = change.update_snapshot(snapshot_properties=dict(properties))
            with snapshot.overwrite() as overwrite:
                for file in old:
                    overwrite.delete_data_file(file)
                for file in files:
                    overwrite.append_data_file(file)
        return Commit(table.current_snapshot().snapshot_id, new=True)

    def _load(self) -> Any:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        catalog = self._catalog()
        try:
            with _reaching(f"load the table {self}"):
                return catalog.load_table(self.name)
        except (NoSuchTableError, NoSuchNamespaceError):
            raise ConfigError(f"there is no table {self}") from None

    def _load_or_make(self, schema: pa.Schema, partition_by: Sequence[str]) -> Any:
        from pyiceberg.exceptions import (
            NoSuchNamespaceError,
            NoSuchTableError,
            TableAlreadyExistsError,
        )

        catalog = self._catalog()
        with _reaching(f"load the table {self}"):
            try:
                return catalog.load_table(self.name)
            except NoSuchTableError:
                pass
            try:
                change = catalog.create_table_transaction(self.name, schema=schema)
                if change.table_metadata.spec().is_unpartitioned():
                    with change, change.update_spec() as spec:
                        for name in partition_by:
                            if name in schema.names:
                                spec.add_identity(name)
                # else a catalog that gives the table that another job has made meanwhile
            except NoSuchNamespaceError:
                namespace = self.name.rpartition(".")[0]
                raise ConfigError(
                    f"the catalog {self.catalog} has no namespace {namespace}; make it first"
                ) from None
            except TableAlreadyExistsError:  # made by another job meanwhile
                pass
            return catalog.load_table(self.name)

    def _catalog(self) -> Any:
        _check_installed()
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import (
            BadRequestError,
            ForbiddenError,
            OAuthError,
            UnauthorizedError,
        )

        refused = (BadRequestError, ForbiddenError, OAuthError, UnauthorizedError)
        try:
            with _reaching(f"open the catalog {self.catalog}"):
                return load_catalog(self.catalog)
        except (ValueError, KeyError, *refused) as error:
            raise ConfigError(
                f"the catalog {self.catalog} cannot be opened: {one_line(error)}; configure it in "
                f"~/.pyiceberg.yaml or by PYICEBERG_CATALOG__{self.catalog.upper()}__URI"
            ) from None


def _check_installed() -> None:
    if importlib.util.find_spec("pyiceberg") is None:
        raise ConfigError("Iceberg tables need pyiceberg: pip install 'dpiframe[iceberg]'")


def _forbid_blind_retries(table: Any) -> None:
    """Commit this table's state or fail: pyiceberg itself would add the files again to a table that
    has them by now, or leave in it what another job has put there meanwhile.
    """
    from pyiceberg.table import TableProperties

    properties = {**table.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})


def _uri_of(path: str) -> str:
    """What Iceberg calls a file: an address as it is, a path as file:// URI."""
    return path if "://" in path else f"file://{Path(path).absolute()}"


def _path_of(uri: str) -> str:
    """A path or an address from what Iceberg calls a file."""
    if uri.startswith("file:"):
        return "/" + uri.removeprefix("file:").lstrip("/")
    return uri


def _reaching(what: str) -> AbstractContextManager[None]:
    return reaching(what, _away)


def _away(error: Exception) -> bool:
    """Whether a catalog of pyiceberg that is out of reach raises this."""
    from pyiceberg.exceptions import (
        CommitStateUnknownException,
        ServerError,
        ServiceUnavailableError,
        TooManyRequestsError,
    )

    answers = (CommitStateUnknownException, ServerError, ServiceUnavailableError)
    # By its name, as importing SQLAlchemy takes half a second, which other catalogs need not.
    database = type(error).__module__.partition(".")[0] == "sqlalchemy"
    return database or isinstance(error, (*answers, TooManyRequestsError))
