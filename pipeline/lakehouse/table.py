"""What a job asks of a table, whatever keeps it: the files of a version, and parts committed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from pipeline.errors import ConfigError, ResumableError
from pipeline.redaction import redacted

# How long commits that others overtake, or whose catalog is out of reach, are tried again.
COMMIT_SECONDS = 120.0
REQUESTS = 16  # at one time
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0


class DataFile(NamedTuple):
    """A parquet file of a table: its path or address, and the values of columns that the table
    keeps in place of the file.
    """

    path: str
    partition: Mapping[str, Any] = {}


class Commit(NamedTuple):
    """What became of a commit: the table's version with the parts, and whether it is a new one."""

    version: int
    new: bool


class Table(Protocol):
    """A table, or one of its versions; str() is its address."""

    @property
    def version(self) -> int | None:
        """The version that the address names; None: the one that the table has when it is read."""

    def check(self, schema: pa.Schema, output: str) -> None:
        """ConfigError: parts with these columns below this place can never be files of the table,
        or the package that reaches it is missing. Nothing is asked of the table itself.
        """

    def pinned(self) -> Table:
        """The version that the table has now, or the named one.

        ConfigError: there is no table, or none; ResumableError: it is out of reach.
        """

    def files(self) -> list[DataFile]:
        """The data files of the version, sorted by path.

        ConfigError: there is no such version. ContractError: files that hold rows which the table
        does not have, or are not parquet.
        """

    def commit(
        self,
        parts: Sequence[str],
        replaces: Sequence[str],
        properties: Mapping[str, str],
        partition_by: Sequence[str],
    ) -> Commit:
        """Try `commit_parts` once. ResumableError: another writer was faster, too."""


def commit_parts(
    table: Table,
    parts: Sequence[str],
    replaces: Sequence[str],
    properties: Mapping[str, str],
    partition_by: Sequence[str] = (),
) -> Commit:
    """Make `parts` (paths or addresses) files of the table in one version with these properties.

    Files of the table below one of `replaces`, which are not among the parts, leave it in the same
    version. Committing what the table has already changes nothing. The table is made, partitioned
    by those of the columns `partition_by` that parts have, where there is none. ConfigError: the
    table's columns differ, or its catalog or namespace is not there; ResumableError: a store or
    catalog is out of reach, or others commit all the time, for `COMMIT_SECONDS`.
    """
    end, longest = time.monotonic() + COMMIT_SECONDS, PAUSE_SECONDS
    while True:
        try:
            return table.commit(parts, replaces, properties, partition_by)
        except ResumableError:
            pause = random.uniform(0, longest)
            if time.monotonic() + pause > end:
                raise
            time.sleep(pause)
            longest = min(2 * longest, LONGEST_PAUSE_SECONDS)


def overtaken(table: Table, error: Exception) -> ResumableError:
    """The error of a commit that found the table changed."""
    return ResumableError(
        f"the table {table} was changed by others meanwhile; run the same command to commit the "
        f"published parts: {one_line(error)}"
    )


@contextmanager
def reaching(what: str, away: Callable[[Exception], bool]) -> Iterator[None]:
    """Turns errors of the way to a catalog or a store, OSError and those that are `away`, into
    ResumableError.

    `what`: what cannot be done then, such as "load the table x".
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and not away(error):
            raise
        raise ResumableError(
            f"cannot {what}: {one_line(error)}; run the same command when it is within reach"
        ) from None


def check_columns(schema: pa.Schema) -> None:
    """ConfigError: tables have no such type (unsigned numbers)."""
    for field in schema:
        if pa.types.is_unsigned_integer(field.type):
            raise ConfigError(
                f"column {field.name} is {field.type}, and tables have no unsigned numbers: write "
                "it to the input as a signed number or as text"
            )


def columns_of(part: str) -> pa.Schema:
    """The columns of a part, without what parquet files of other writers need not have."""
    import pyarrow.dataset as pads
    from pyarrow.fs import FileSystem

    if "://" in part:
        filesystem, path = FileSystem.from_uri(part)
        schema = pads.dataset(path, filesystem=filesystem, format="parquet").schema
    else:
        schema = pads.dataset(part, format="parquet").schema
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def side_by_side(ask: Callable[[str], Any], paths: Sequence[str]) -> list[Any]:
    """What `ask`, which waits for a store, says of each path."""
    with ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(ask, paths))


def one_line(error: Exception) -> str:
    """An error's text for a message of one line, without secrets."""
    return redacted(" ".join(str(error).split()))[:300]
