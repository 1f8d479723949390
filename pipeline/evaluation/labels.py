"""Labels that come later, in files of their own: joined to the scores by key.

Where both have the same rows in the same order, they are read side by side. Elsewhere both are
parted by a hash of the key into temporary files, and joined part by part.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from pipeline.errors import ConfigError, ContractError
from pipeline.evaluation.rows import group_numbers

PART_ROWS = 1 << 22
MOST_PARTS = 256


class LabelFiles:
    """Parquet files with the key columns and the label of each impression."""

    def __init__(self, source: str, keys: Sequence[str], label: str) -> None:
        """ConfigError: there is no such file, or it lacks a column."""
        self.source, self.keys, self.label = source, list(keys), label
        try:
            self._files = pads.dataset(source, format="parquet")
        except (OSError, pa.ArrowInvalid) as error:
            raise ConfigError(f"labels {source} cannot be read: {error}") from None
        if not self.keys:
            raise ConfigError("labels are joined by key, but the output has no key column")
        missing = [name for name in [*self.keys, label] if name not in self._files.schema.names]
        if missing:
            raise ConfigError(f"labels {source} have no column {missing[0]!r}")

    def in_order(self) -> LabelsInOrder:
        """The labels from the first row on."""
        return LabelsInOrder(self)

    def tables(self) -> Iterator[pa.Table]:
        """All rows, in order."""
        for batch in self._files.to_batches(columns=[*self.keys, self.label]):
            if batch.num_rows:
                yield pa.Table.from_batches([batch])

    def count(self) -> int:
        """Number of rows."""
        return int(self._files.count_rows())


class LabelsInOrder:
    """Gives out labels row after row, as long as the keys agree."""

    def __init__(self, files: LabelFiles) -> None:
        self._files = files
        self._tables = files.tables()
        self._left: list[pa.Table] = []

    def take(self, keys: pa.Table) -> pa.ChunkedArray | None:
        """The labels of the next rows; None if their keys are not `keys`."""
        wanted, taken = keys.num_rows, 0
        while (taken := sum(table.num_rows for table in self._left)) < wanted:
            table = next(self._tables, None)
            if table is None:
                return None
            self._left.append(table)
        rows = pa.concat_tables(self._left)
        self._left = [rows.slice(wanted)] if taken > wanted else []
        rows = rows.slice(0, wanted)
        for name in self._files.keys:
            theirs = _as_key(rows.column(name), keys.schema.field(name).type, self._files.source)
            equal = pc.equal(theirs, keys.column(name))
            if equal.null_count or not pc.all(equal).as_py():
                return None
        return rows.column(self._files.label)

    def at_end(self) -> bool:
        """Whether no label is left."""
        return not self._left and next(self._tables, None) is None


def joined_by_hash(scores: Iterator[pa.Table], labels: LabelFiles) -> Iterator[pa.Table]:
    """The score tables with the label of each row (null: it has none), in another order.

    ContractError when a key has two labels.
    """
    parts = min(MOST_PARTS, max(1, -(-labels.count() // PART_ROWS)))
    with contextlib.ExitStack() as closing:
        folder = Path(tempfile.mkdtemp(prefix="dpiframe-labels-"))
        closing.callback(shutil.rmtree, folder, ignore_errors=True)
        schema: pa.Schema | None = None
        for table in scores:
            schema = table.schema
            _append_parts(table, labels.keys, folder, "scores", parts)
        if schema is None:
            return
        for table in labels.tables():
            typed = _typed(table, labels, schema)
            _append_parts(typed, labels.keys, folder, "labels", parts)
        for number in range(parts):
            left = _read_part(folder, "scores", number)
            if left is not None:
                yield _join(left, _read_part(folder, "labels", number), labels)


def _join(scores: pa.Table, labels: pa.Table | None, files: LabelFiles) -> pa.Table:
    if labels is None:
        return scores.append_column(files.label, pa.nulls(len(scores), pa.bool_()))
    counted = labels.group_by(files.keys).aggregate([([], "count_all")])
    if len(counted) < len(labels):
        twice = (
            counted.filter(pc.greater(counted.column("count_all"), 1)).slice(0, 1).to_pylist()[0]
        )
        key = ", ".join(f"{name}={twice[name]!r}" for name in files.keys)
        raise ContractError(f"labels {files.source} have {twice['count_all']} rows of {key}")
    return scores.join(labels, files.keys, join_type="left outer")


def _typed(table: pa.Table, files: LabelFiles, schema: pa.Schema) -> pa.Table:
    for name in files.keys:
        typed = _as_key(table.column(name), schema.field(name).type, files.source)
        table = table.set_column(table.schema.get_field_index(name), name, typed)
    return table


def _as_key(column: pa.ChunkedArray, kind: pa.DataType, source: str) -> pa.ChunkedArray:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(f"keys of the labels {source} are not {kind}: {error}") from None


def _append_parts(
    table: pa.Table, keys: Sequence[str], folder: Path, side: str, parts: int
) -> None:
    numbers = sum(
        (group_numbers(table.column(name)) * np.uint64(2 * i + 1) for i, name in enumerate(keys)),
        np.zeros(len(table), np.uint64),
    )
    part = (numbers * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)) % np.uint64(parts)
    order = np.argsort(part, kind="stable")
    ends = np.searchsorted(part[order], np.arange(parts + 1, dtype=np.uint64))
    for number in np.flatnonzero(np.diff(ends)).tolist():
        rows = table.take(order[ends[number] : ends[number + 1]]).combine_chunks()
        with (
            (folder / f"{side}-{number}").open("ab") as file,
            pa.ipc.new_stream(file, rows.schema) as stream,
        ):
            stream.write_table(rows)


def _read_part(folder: Path, side: str, number: int) -> pa.Table | None:
    """All streams that were appended to the file of a part."""
    path, tables = folder / f"{side}-{number}", []
    if not path.exists():
        return None
    with pa.memory_map(str(path)) as file:
        while file.tell() < file.size():
            tables.append(pa.ipc.open_stream(file).read_all())
    return pa.concat_tables(tables)
