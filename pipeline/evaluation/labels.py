"""Labels that come later, in files of their own: joined to the scores by key.

Where both have the same rows in the same order, they are read side by side; elsewhere they are
joined through temporary files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from pipeline.errors import ConfigError
from pipeline.evaluation.keyed_join import Side, joined, with_key_types


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

    def tables(self) -> Iterator[pa.Table]:
        """All rows, in order."""
        for batch in self._files.to_batches(columns=[*self.keys, self.label]):
            if batch.num_rows:
                yield pa.Table.from_batches([batch])

    def joined(self, scores: Iterator[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
        """The score tables with the label of each row (null: it has none), in another order.

        ContractError when a key has two labels.
        """
        columns = [self._files.schema.field(name) for name in [*self.keys, self.label]]
        labels = Side(f"labels {self.source}", pa.schema(columns), self.tables())
        rows = int(self._files.count_rows())
        return joined(Side("the output", schema, scores), labels, self.keys, "left outer", rows)


class LabelsInOrder:
    """Gives out labels row after row, as long as the keys agree."""

    def __init__(self, files: LabelFiles) -> None:
        self._files = files
        self._tables = files.tables()
        self._left: list[pa.Table] = []

    def take(self, keys: pa.Table) -> pa.ChunkedArray | None:
        """The labels of the next rows; None if their keys are not `keys`."""
        wanted = keys.num_rows
        while (held := sum(table.num_rows for table in self._left)) < wanted:
            table = next(self._tables, None)
            if table is None:
                return None
            self._left.append(table)
        if not self._left:
            return pa.chunked_array([], pa.bool_())
        rows = pa.concat_tables(self._left)
        self._left = [rows.slice(wanted)] if held > wanted else []
        rows = with_key_types(
            rows.slice(0, wanted), self._files.keys, keys.schema, f"labels {self._files.source}"
        )
        for name in self._files.keys:
            equal = pc.equal(rows.column(name), keys.column(name))
            if equal.null_count or not pc.all(equal).as_py():
                return None
        return rows.column(self._files.label)

    def at_end(self) -> bool:
        """Whether no label is left."""
        return not self._left and next(self._tables, None) is None
