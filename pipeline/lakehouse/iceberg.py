"""Iceberg tables, by pyiceberg: the files of a snapshot, and parts committed as they are.

A table is `iceberg://CATALOG/NAMESPACE.TABLE`. Its catalog is configured as pyiceberg is:
`~/.pyiceberg.yaml`, or PYICEBERG_CATALOG__CATALOG__URI and the like in the environment.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.errors import ConfigError, ContractError, ResumableError
from pipeline.redaction import redacted

SCHEME = "iceberg"
COMMITS = 8  # tries, as other writers may commit between reading a table and committing to it
_ADDRESS = re.compile(r"iceberg://(?P<catalog>[\w-]+)/(?P<table>[\w-]+(\.[\w-]+)+)(@(?P<id>\d+))?")


class TableAddress(NamedTuple):
    """A table, and one of its snapshots (None: the one it has when it is read)."""

    catalog: str
    table: str
    snapshot: int | None = None

    def __str__(self) -> str:
        at = "" if self.snapshot is None else f"@{self.snapshot}"
        return f"{SCHEME}://{self.catalog}/{self.table}{at}"


class Commit(NamedTuple):
    """What became of a commit: the table's snapshot with the parts, and whether it is a new one."""

    snapshot: int
    new: bool


def is_table(address: str) -> bool:
    """Whether an address names a table."""
    return address.startswith(f"{SCHEME}://")


def parse_table(address: str) -> TableAddress:
    """A table's address; ValueError says how one looks."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ValueError(
            f"must be a table such as iceberg://catalog/namespace.table, or one of its snapshots "
            f"(...table@1234), got {address!r}"
        )
    snapshot = found["id"]
    return TableAddress(found["catalog"], found["table"], int(snapshot) if snapshot else None)


def pinned(address: TableAddress) -> TableAddress:
    """The address of the snapshot that the table has now. ConfigError: there is no table, or none.

    ResumableError: its catalog is out of reach.
    """
    table = _load(address)
    if address.snapshot is not None:
        return address
    current = table.current_snapshot()
    if current is None:
        raise ConfigError(f"input {address} has no snapshot: nothing was ever written to it")
    return address._replace(snapshot=current.snapshot_id)


def snapshot_files(address: TableAddress) -> list[str]:
    """Paths and addresses of the data files of a snapshot, sorted.

    ConfigError: there is no such snapshot. ContractError: rows of it are deleted by delete files,
    which its data files still hold; or files are not parquet.
    """
    table = _load(address)
    if address.snapshot is not None and table.snapshot_by_id(address.snapshot) is None:
        raise ConfigError(f"input {address}: the table has no such snapshot (any more)")
    with _reaching(f"read the table {address}"):
        tasks = list(table.scan(snapshot_id=address.snapshot).plan_files())
    deleted = [task for task in tasks if task.delete_files]
    if deleted:
        raise ContractError(
            f"input {address}: rows of {len(deleted)} of its {len(tasks)} files are deleted by "
            "delete files, which only the table's readers see; compact the table (rewrite its data "
            "files) and read the new snapshot"
        )
    other = [task.file for task in tasks if str(task.file.file_format.value).upper() != "PARQUET"]
    if other:
        raise ContractError(f"input {address}: {other[0].file_path} is not parquet")
    return sorted(_path_of(task.file.file_path) for task in tasks)


def commit_parts(
    address: TableAddress,
    parts: Sequence[str],
    replaces: Sequence[str],
    properties: Mapping[str, str],
    partition_by: Sequence[str] = (),
) -> Commit:
    """Make `parts` (paths or addresses) files of the table in one snapshot with these properties.

    Files of the table below one of `replaces`, which are not among the parts, leave it in the same
    snapshot. Committing what the table has already changes nothing. The table is made, partitioned
    by those of the columns `partition_by` that parts have, where there is none. ConfigError: the
    table's columns differ, or its catalog or namespace is not there; ResumableError: a store or
    catalog is out of reach.
    """
    from pyiceberg.exceptions import CommitFailedException, ValidationException

    schema = _schema_of(parts[0])
    columns = [name for name in partition_by if name in schema.names]
    uris = [_uri_of(part) for part in parts]
    below = [_uri_of(folder).rstrip("/") + "/" for folder in replaces]
    for attempt in range(COMMITS):
        table = _load_or_make(address, schema, columns)
        try:
            return _commit(table, address, uris, below, properties)
        except (CommitFailedException, ValidationException) as error:  # another was faster
            if attempt + 1 == COMMITS:
                raise ResumableError(
                    f"the table {address} was changed by others {COMMITS} times in a row; run the "
                    f"same command to commit the published parts: {_line(error)}"
                ) from None
            time.sleep(random.uniform(0, 0.1 * 2**attempt))
    raise AssertionError


def _commit(
    table: Any,
    address: TableAddress,
    parts: Sequence[str],
    replaces: Sequence[str],
    properties: Mapping[str, str],
) -> Commit:
    from pyiceberg.io.pyarrow import parquet_files_to_data_files

    with _reaching(f"read the table {address}"):
        there = {task.file.file_path: task.file for task in table.scan().plan_files()}
    below, ours = tuple(replaces), set(parts)
    old = [file for path, file in there.items() if path.startswith(below) and path not in ours]
    new = [path for path in parts if path not in there]
    current = table.current_snapshot()
    if not old and not new and current is not None:
        return Commit(current.snapshot_id, new=False)
    with _reaching(f"commit to the table {address}"), table.transaction() as change:
        if table.metadata.name_mapping() is None:  # parts hold no field ids: columns go by name
            mapping = table.schema().name_mapping.model_dump_json()
            change.set_properties(**{"schema.name-mapping.default": mapping})
        try:
            files = list(
                parquet_files_to_data_files(
                    io=table.io, table_metadata=change.table_metadata, file_paths=iter(new)
                )
            )
        except (ValueError, NotImplementedError) as error:
            raise ConfigError(
                f"the published parts do not fit the table {address}: {_line(error)}"
            ) from None
        with change.update_snapshot(snapshot_properties=dict(properties)).overwrite() as snapshot:
            for file in old:
                snapshot.delete_data_file(file)
            for file in files:
                snapshot.append_data_file(file)
    return Commit(table.current_snapshot().snapshot_id, new=True)


def _load(address: TableAddress) -> Any:
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    catalog = _catalog(address)
    try:
        with _reaching(f"load the table {address}"):
            return catalog.load_table(address.table)
    except (NoSuchTableError, NoSuchNamespaceError):
        raise ConfigError(f"there is no table {address}") from None


def _load_or_make(address: TableAddress, schema: pa.Schema, partition_by: Sequence[str]) -> Any:
    from pyiceberg.exceptions import (
        NoSuchNamespaceError,
        NoSuchTableError,
        TableAlreadyExistsError,
    )

    catalog = _catalog(address)
    with _reaching(f"load the table {address}"):
        try:
            return catalog.load_table(address.table)
        except NoSuchTableError:
            pass
        try:
            table = catalog.create_table(address.table, schema=schema)
        except NoSuchNamespaceError:
            namespace = address.table.rpartition(".")[0]
            raise ConfigError(
                f"the catalog {address.catalog} has no namespace {namespace}; make it first"
            ) from None
        except TableAlreadyExistsError:  # made by another job meanwhile
            return catalog.load_table(address.table)
        if partition_by:
            with table.update_spec() as spec:
                for name in partition_by:
                    spec.add_identity(name)
        return catalog.load_table(address.table)


def _catalog(address: TableAddress) -> Any:
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError:
        raise ConfigError(
            "Iceberg tables need pyiceberg: pip install 'dpiframe[iceberg]'"
        ) from None
    try:
        with _reaching(f"open the catalog {address.catalog}"):
            return load_catalog(address.catalog)
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"the catalog {address.catalog} cannot be opened: {_line(error)}; configure it in "
            f"~/.pyiceberg.yaml or by PYICEBERG_CATALOG__{address.catalog.upper()}__URI"
        ) from None


def _schema_of(part: str) -> pa.Schema:
    """The columns of a part, without what parquet files of other writers need not have."""
    import pyarrow.dataset as pads
    from pyarrow.fs import FileSystem

    if "://" in part:
        filesystem, path = FileSystem.from_uri(part)
        schema = pads.dataset(path, filesystem=filesystem, format="parquet").schema
    else:
        schema = pads.dataset(part, format="parquet").schema
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _uri_of(path: str) -> str:
    """What Iceberg calls a file: an address as it is, a path as file:// URI."""
    return path if "://" in path else f"file://{Path(path).absolute()}"


def _path_of(uri: str) -> str:
    """A path or an address from what Iceberg calls a file."""
    if uri.startswith("file:"):
        return "/" + uri.removeprefix("file:").lstrip("/")
    return uri


@contextmanager
def _reaching(what: str) -> Iterator[None]:
    """Turns errors of the way to a catalog or a store into ResumableError."""
    try:
        yield
    except (OSError, ConnectionError) as error:
        raise ResumableError(
            f"cannot {what}: {_line(error)}; run the same command when it is within reach"
        ) from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("sqlalchemy", "requests", "urllib3"):
            raise
        raise ResumableError(
            f"cannot {what}: {_line(error)}; run the same command when it is within reach"
        ) from None


def _line(error: Exception) -> str:
    return redacted(" ".join(str(error).split()))[:300]
