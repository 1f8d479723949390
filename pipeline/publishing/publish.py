"""Publishing a unit: scores, then rejected rows, then the record, each atomically.

The appearance of the record is the commit. Before every write becomes visible the publisher checks
that the output still belongs to its attempt of the job, so that a worker that outlived its driver
changes nothing.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpiframe_core.features.lists import is_list
from dpiframe_core.features.schema import is_text
from pipeline.config.job import SCORE_COLUMN, embedding_column, score_column
from pipeline.publishing.atomic import write_atomic
from pipeline.publishing.records import IdentityFile, OutputLayout, UnitRecord, has_files, read_json

ROW_GROUP_ROWS = 1 << 20
SAMPLE_ROWS, SMALL_STEP = 1024, 1 << 16  # of `ascends`


class SupersededError(Exception):
    """The output now belongs to another attempt of the job."""


class Published(NamedTuple):
    """The published files of a unit; fields as in `UnitRecord`."""

    part: str
    bytes: int
    sha256: str
    rejected_part: str | None
    rejected_sha256: str | None


class Publisher(ABC):
    """Writes units of one attempt of a job into its output. Safe to use from many threads."""

    @abstractmethod
    def already(self, unit: str) -> UnitRecord | None:
        """The record of a unit that is published already: its scorer died right after that."""

    @abstractmethod
    def write_parts(self, unit: str, scores: pa.Table, rejected: pa.Table) -> Published:
        """Write the scores and the rejected rows; only the record will publish them.

        Raises OSError (disk full, ...) and SupersededError.
        """

    @abstractmethod
    def write_record(self, record: UnitRecord) -> UnitRecord:
        """Commit the unit; returns the record that holds, another one where two were written.

        Raises OSError and SupersededError.
        """


class FolderPublisher(Publisher):
    """Publishes by renames; what fails leaves no temporary file."""

    def __init__(self, root: str | Path, attempt: str) -> None:
        self.layout = OutputLayout(root)
        self.attempt = attempt

    def already(self, unit: str) -> UnitRecord | None:
        """The record, where its files are there as well."""
        record = read_json(self.layout.record(unit), UnitRecord)
        return record if record is not None and has_files(self.layout, record) else None

    def write_parts(self, unit: str, scores: pa.Table, rejected: pa.Table) -> Published:
        """Write both under the unit's own names: a later try replaces them by the same rows."""
        part, rejected_part = self.layout.part(unit), self.layout.rejected_part(unit)
        size, sha256 = self._put_table(part, scores)
        if not rejected.num_rows:
            return Published(part.name, size, sha256, None, None)
        _, rejected_sha256 = self._put_table(rejected_part, rejected)
        relative = str(rejected_part.relative_to(self.layout.root))
        return Published(part.name, size, sha256, relative, rejected_sha256)

    def write_record(self, record: UnitRecord) -> UnitRecord:
        """Rename the record to its name: a later try replaces it."""
        self._put(self.layout.record(record.unit), memoryview(record.model_dump_json().encode()))
        return record

    def _put_table(self, path: Path, table: pa.Table) -> tuple[int, str]:
        content = parquet_bytes(table)
        self._put(path, content)
        return len(content), hashlib.sha256(content).hexdigest()

    def _put(self, path: Path, content: memoryview) -> None:
        write_atomic(path, content, self._check_attempt)

    def _check_attempt(self) -> None:
        check_attempt(
            self.attempt, read_json(self.layout.identity, IdentityFile), str(self.layout.root)
        )


def check_attempt(attempt: str, owner: IdentityFile | None, address: str) -> None:
    """Raise SupersededError if the output belongs to another attempt."""
    if owner is None or owner.attempt != attempt:
        raise SupersededError(
            f"{address} belongs to attempt {owner.attempt if owner else 'none'} by now, this "
            f"worker is of attempt {attempt}; it writes nothing more"
        )


def parquet_bytes(table: pa.Table) -> memoryview:
    """The table as a parquet file in memory: row order kept, deterministic bytes."""
    sink = pa.BufferOutputStream()
    ascending = [name for name in table.column_names if ascends(table.column(name))]
    # Compression of what models made would take time and save nothing.
    uncompressed = {*ascending, *filter(_is_made, table.column_names)}
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression={
            leaf: "none" if field.name in uncompressed else "snappy"
            for field in table.schema
            for leaf in leaf_names(field.name, field.type)
        },
        use_dictionary=dictionary_columns(table) or False,
        column_encoding=dict.fromkeys(ascending, "DELTA_BINARY_PACKED") or None,
    ) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
    return memoryview(sink.getvalue()).cast("B")


def leaf_names(name: str, kind: pa.DataType) -> Iterator[str]:
    """What parquet calls a column, or the values that a nested one is made of."""
    if isinstance(kind, pa.BaseExtensionType):
        yield from leaf_names(name, kind.storage_type)
    elif pa.types.is_map(kind):
        yield from leaf_names(f"{name}.key_value.key", kind.key_type)
        yield from leaf_names(f"{name}.key_value.value", kind.item_type)
    elif is_list(kind):
        yield from leaf_names(f"{name}.list.element", kind.value_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from leaf_names(f"{name}.{field.name}", field.type)
    else:
        yield name


def _is_made(column: str) -> bool:
    """Whether a column has the name of one that a model made."""
    return column == SCORE_COLUMN or column.startswith((score_column(""), embedding_column("")))


def dictionary_columns(table: pa.Table) -> list[str]:
    """Columns worth a dictionary page: strings; keys and scores are mostly distinct."""
    return [field.name for field in table.schema if is_text(field.type)]


def ascends(column: pa.ChunkedArray) -> bool:
    """Whether a column looks like row numbers: integers with small differences between rows.

    DELTA_BINARY_PACKED shrinks such columns and would enlarge hashes.
    """
    if not pa.types.is_integer(column.type) or column.type.bit_width < 32:
        return False
    values = column.slice(0, SAMPLE_ROWS).drop_null().to_numpy().astype(np.float64)
    return bool(len(values) > 1 and np.abs(np.diff(values)).max() < SMALL_STEP)
