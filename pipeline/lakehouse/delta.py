"""Delta tables, by deltalake: the files of a version, and parts committed as they are.

A table is `delta:` and the path or address of its folder. The parts that become its files lie in
that folder, at any depth, as deltalake reads files of no other place. Credentials and endpoint of a
store come from the environment, as elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

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

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from deltalake.transaction import AddAction

LEAD = "delta:"
LONGEST_STATISTIC = 32  # characters; longer texts are left out of a file's statistics
_ADDRESS = re.compile(r"delta:(?P<folder>(?!@|//)[^\0]*?[^\0/])/*(@(?P<version>\d+))?")


@dataclass(frozen=True)
class DeltaTable:
    """The table in `folder`, or one of its versions. See `Table` for what it does."""

    folder: str
    version: int | None = None

    def __str__(self) -> str:
        return f"{LEAD}{self.folder}" + ("" if self.version is None else f"@{self.version}")

    @classmethod
    def parse(cls, address: str) -> DeltaTable:
        """The table of an address, a path made absolute; ValueError says how one looks."""
        found = _ADDRESS.fullmatch(address)
        if found is None:
            raise ValueError(
                "must be delta: and the path or address of a table's folder, or one of its "
                f"versions (delta:folder@12), got {address!r}"
            )
        folder, version = found["folder"], found["version"]
        if "://" not in folder:
            folder = str(Path(folder).expanduser().absolute())
        return cls(folder, int(version) if version else None)

    def check(self, schema: pa.Schema, output: str) -> None:
        """See `Table`."""
        check_columns(schema)
        _delta_schema(schema)
        self._relative(output)

    def pinned(self) -> DeltaTable:
        """See `Table`."""
        return replace(self, version=self._load().version())

    def files(self) -> list[DataFile]:
        """See `Table`."""
        table = self._load()
        with _reaching(f"read the table {self}"):
            deleted = pa.table(table.deletion_vectors()).num_rows
            found = _files_of(table)
        if deleted:
            raise ContractError(
                f"input {self}: rows of {deleted} of its {len(found)} files are deleted by "
                "deletion vectors, which only the table's readers see; purge them (REORG TABLE ... "
                "APPLY (PURGE), or rewrite the files) and read the new version"
            )
        if _mapped(table):
            raise ContractError(
                f"input {self}: its files name columns by column mapping, which only the table's "
                "readers know; write the rows to a table without it"
            )
        return sorted(
            DataFile(f"{self.folder}/{file['path']}", file["partition"] or {}) for file in found
        )

    def commit(
        self,
        parts: Sequence[str],
        replaces: Sequence[str],
        properties: Mapping[str, str],
        partition_by: Sequence[str],
    ) -> Commit:
        """See `Table`. ConfigError: parts lie outside the table's folder."""
        delta = _deltalake()
        ours = {self._relative(part): part for part in parts}
        below = tuple(self._relative(folder).rstrip("/") + "/" for folder in replaces)
        table = self._load_or_make(columns_of(parts[0]), partition_by)
        with _reaching(f"read the table {self}"):
            there = {file["path"]: file for file in _files_of(table)}
        old = [there[path] for path in there if path.startswith(below) and path not in ours]
        new = {path: part for path, part in ours.items() if path not in there}
        if not old and not new:
            return Commit(table.version(), new=False)
        self._check_columns(table, columns_of(parts[0]))
        now, columns = int(time.time() * 1000), table.metadata().partition_columns
        actions: list[Any] = [
            delta.transaction.RemoveAction(
                file["path"],
                data_change=True,
                deletion_timestamp=now,
                size=file["size_bytes"],
                partition_values={name: _text(v) for name, v in (file["partition"] or {}).items()},
            )
            for file in old
        ]
        with _reaching(f"commit to the table {self}"):
            actions += side_by_side(lambda path: _added(path, new[path], columns, now), list(new))
            try:
                table.create_write_transaction(
                    actions,
                    mode="append",
                    schema=table.schema(),
                    partition_by=columns,
                    # deltalake would commit the same actions to what the table has by then
                    commit_properties=delta.CommitProperties(
                        dict(properties), max_commit_retries=0
                    ),
                )
            except delta.exceptions.CommitFailedError as error:
                raise overtaken(self, error) from None
            except delta.exceptions.DeltaProtocolError as error:
                raise ConfigError(f"cannot write to {self}: {one_line(error)}") from None
        return Commit(self._load().version(), new=True)

    def _relative(self, path: str) -> str:
        path = path if "://" in path else str(Path(path).absolute())
        if not f"{path}/".startswith(f"{self.folder}/"):
            raise ConfigError(
                f"the output {path} does not lie in the folder of the table {self}, and the files "
                "of a Delta table must; choose an output below it"
            )
        return path.removeprefix(f"{self.folder}/")

    def _load(self) -> Any:
        delta = _deltalake()
        with _reaching(f"load the table {self}"):
            try:
                table = delta.DeltaTable(self.folder, storage_options=_options())
            except delta.exceptions.TableNotFoundError:
                raise ConfigError(f"there is no table {self}") from None
            try:
                if self.version is not None:
                    table.load_as_version(self.version)
            except delta.exceptions.DeltaError:
                raise ConfigError(f"{self}: the table has no such version (any more)") from None
            return table

    def _load_or_make(self, schema: pa.Schema, partition_by: Sequence[str]) -> Any:
        delta = _deltalake()
        with _reaching(f"load the table {self}"):
            try:
                return delta.DeltaTable(self.folder, storage_options=_options())
            except delta.exceptions.TableNotFoundError:
                pass
            try:
                return delta.DeltaTable.create(
                    self.folder,
                    _delta_schema(schema),
                    partition_by=[name for name in partition_by if name in schema.names],
                    storage_options=_options(),
                    commit_properties=delta.CommitProperties(max_commit_retries=0),
                )
            except delta.exceptions.DeltaError as error:  # another job has made it meanwhile
                raise overtaken(self, error) from None

    def _check_columns(self, table: Any, schema: pa.Schema) -> None:
        """ConfigError: parts of this schema are no files of the table."""
        wanted = {field.name: field.type for field in table.schema().fields}
        found = {field.name: field.type for field in _delta_schema(schema).fields}
        odd = [name for name, kind in found.items() if wanted.get(name) != kind]
        odd += [name for name in table.metadata().partition_columns if name not in found]
        rules = [
            name for name in table.metadata().configuration if name.startswith("delta.constraints.")
        ]
        if odd or rules or _mapped(table):
            why = f"column {odd[0]} differs" if odd else "it has column mapping or constraints"
            raise ConfigError(f"the published parts do not fit the table {self}: {why}")


def _added(path: str, part: str, partition_columns: Sequence[str], now: int) -> AddAction:
    """A part as a file of the table; ConfigError: of rows of several partitions."""
    import pyarrow.parquet as pq
    from deltalake.transaction import AddAction
    from pyarrow.fs import FileSystem

    filesystem, name = FileSystem.from_uri(part) if "://" in part else (None, part)
    footer = pq.read_metadata(name, filesystem=filesystem)
    size = filesystem.get_file_info(name).size if filesystem else Path(part).stat().st_size
    low, high, nulls = _statistics(footer)
    values: dict[str, str | None] = {}
    for column in partition_columns:
        if nulls.get(column) == footer.num_rows:
            values[column] = None
        elif column in low and low[column] == high[column] and not nulls.get(column, 1):
            values[column] = _text(low[column])
        else:
            raise ConfigError(
                f"the part {part} has rows of several partitions by {column}, or its footer does "
                "not tell: set partition_by to the table's partition columns"
            )
    stats = {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    return AddAction(path, size, values, now, True, json.dumps(stats))


def _statistics(footer: pq.FileMetaData) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """Lowest value, highest value and number of nulls of the columns of which the footer tells."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(footer.num_columns):
        groups = [footer.row_group(i).column(index) for i in range(footer.num_row_groups)]
        name, known = footer.schema.column(index).path, [group.statistics for group in groups]
        if "." in name or not known or any(each is None for each in known):
            continue
        if all(each.has_null_count for each in known):
            nulls[name] = sum(each.null_count for each in known)
        known = [each for each in known if each.has_min_max]
        values = [value for each in known for value in (each.min, each.max)]
        if values and all(_is_plain(value) for value in values):
            low[name], high[name] = min(values), max(values)
    return low, high, nulls


def _is_plain(value: object) -> bool:
    """Whether JSON holds a statistic as Delta wants it."""
    if isinstance(value, str):
        return len(value) < LONGEST_STATISTIC
    return isinstance(value, int | float) and not isinstance(value, bool)


def _files_of(table: Any) -> list[dict[str, Any]]:
    """The table's files: `path` below its folder, `size_bytes`, `partition` (values, or None)."""
    found: list[dict[str, Any]] = pa.table(table.get_add_actions()).to_pylist()
    for file in found:
        file["path"], file["partition"] = unquote(file["path"]), file.get("partition")
    return found


def _mapped(table: Any) -> bool:
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    return bool(mode != "none")


def _text(value: object) -> str | None:
    """A partition's value as Delta's log writes it."""
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _delta_schema(schema: pa.Schema) -> Any:
    """Delta's schema of these columns; ConfigError: it has no such type."""
    try:
        return _deltalake().Schema.from_arrow(schema)
    except Exception as error:  # deltalake has no kind of its own
        raise ConfigError(f"a Delta table cannot hold the columns: {one_line(error)}") from None


def _deltalake() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ImportError:
        raise ConfigError("Delta tables need deltalake: pip install 'dpiframe[delta]'") from None
    return deltalake


def _options() -> dict[str, str]:
    """What deltalake does not read from the environment itself."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    return {"allow_http": "true"} if endpoint.startswith("http://") else {}


def _reaching(what: str) -> AbstractContextManager[None]:
    from deltalake.exceptions import DeltaError

    return reaching(what, lambda error: isinstance(error, DeltaError))
