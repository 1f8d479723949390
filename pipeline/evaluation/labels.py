"""Labels that come later, in files of their own: joined to the scores by key.

Where both have the same rows in the same order, they are read side by side; elsewhere they are
joined through temporary files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

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

    def row_groups(self) -> list[pads.Fragment]:
        """Each row group, in order."""
        return [one for file in self._files.get_fragments() for one in file.split_by_row_group()]

    def _tables(self) -> Iterator[pa.Table]:
        for batch in self._files.to_batches(columns=[*self.keys, self.label]):
            if batch.num_rows:
                yield pa.Table.from_batches([batch])

    def joined(self, scores: Iterator[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
        """The score tables with the label of each row (null: it has none), in another order.

        ContractError when a key has two labels.
        """
        columns = [self._files.schema.field(name) for name in [*self.keys, self.label]]
        labels = Side(f"labels {self.source}", pa.schema(columns), self._tables())
        rows = int(self._files.count_rows())
        return joined(Side("the output", schema, scores), labels, self.keys, "left outer", rows)


class OtherOrderError(Exception):
    """Labels that are not of the rows in the order of the scores."""


class LabelsInOrder:
    """The labels of any run of rows, if their keys are those of the scores there.

    It holds the row group that it read last. A worker gets one by pickling.
    """

    def __init__(self, files: LabelFiles) -> None:
        self.keys, self.label, self.source = files.keys, files.label, files.source
        self._groups = files.row_groups()
        self._ends = list(accumulate(one.row_groups[0].num_rows for one in self._groups))
        self._held: tuple[int, pa.Table] | None = None

    @property
    def rows(self) -> int:
        """All labels, nulls too."""
        return self._ends[-1] if self._ends else 0

    def take(self, first: int, keys: pa.Table) -> pa.ChunkedArray:
        """The labels of rows from `first` on. OtherOrderError: their keys are not `keys`."""
        end, found = first + keys.num_rows, []
        group = bisect_right(self._ends, first)
        while first < end and group < len(self._groups):
            begin = self._ends[group - 1] if group else 0
            found.append(self._group(group).slice(first - begin, end - first))
            first, group = self._ends[group], group + 1
        if not found:
            return pa.chunked_array([], pa.bool_())
        rows = pa.concat_tables(found)
        rows = with_key_types(rows, self.keys, keys.schema, f"labels {self.source}")
        for name in self.keys:
            equal = pc.equal(rows.column(name), keys.column(name))
            if equal.null_count or not pc.all(equal).as_py():
                raise OtherOrderError
        return rows.column(self.label)

    def _group(self, number: int) -> pa.Table:
        if self._held is None or self._held[0] != number:
            columns = [*self.keys, self.label]
            self._held = number, self._groups[number].to_table(columns=columns, use_threads=False)
        return self._held[1]
