"""Writing synthetic data sets: Criteo- or Avazu-shaped parquet of any size, in bounded memory.

The rows depend on the options but for `workers` and `compression`: each row group is drawn from a
generator of its own, seeded by the seed and the number of the group.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from dpiframe_core.features.schema import MISSING_ROW, UNSEEN_ROW
from pipeline.data.parquet_layouts import (
    KEY_COLUMNS,
    LABEL_COLUMNS,
    Dataset,
    Form,
    encoded_schema,
    raw_schema,
    with_layout,
)
from pipeline.data.shards import Compression, ShardFolder, open_shard, sync_file
from pipeline.data.synth_rows import Drawn, RowSource, SynthField, encoded_ids
from pipeline.data.synth_values import avazu_keys, hex_strings

# Columns with more distinct values are written plain: their dictionaries would be no smaller.
_MAX_DICTIONARY = 1 << 14
# What a file's metadata says of how it was made.
_LAYOUT_OPTIONS = {"dataset", "form", "rows", "seed", "zipf_exponent", "cardinality_scale"}


class SynthOptions(BaseModel):
    """What to write. `cardinality_scale` scales the distinct values of the string columns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: Dataset
    form: Form = "raw"
    output: Path
    rows: int = Field(ge=1)
    rows_per_shard: int = Field(default=1_000_000, ge=1)
    row_group_rows: int = Field(default=100_000, ge=1)
    seed: int = Field(default=0, ge=0)
    zipf_exponent: FiniteFloat = Field(default=1.05, gt=0, le=4)
    cardinality_scale: FiniteFloat = Field(default=1.0, gt=0, le=10)
    compression: Compression = "zstd"
    workers: int | None = Field(default=None, ge=1)
    overwrite: bool = False


class SynthResult(NamedTuple):
    """What was written."""

    rows: int
    shards: int
    bytes: int
    seconds: float


class _Group(NamedTuple):
    """One row group: its number in the whole data set, and its rows."""

    number: int
    first_row: int
    rows: int


def synth(options: SynthOptions, on_shard: Callable[[int], None] | None = None) -> SynthResult:
    """Write the data set; `on_shard(rows)` is called after each shard.

    The shards appear in the output folder when all are written. Raises ConfigError when the
    folder is not empty.
    """
    started = time.perf_counter()
    num_shards = -(-options.rows // options.rows_per_shard)
    workers = min(options.workers or os.cpu_count() or 1, num_shards)
    with ShardFolder(options.output, options.overwrite) as folder:
        writer = _Writer(options, folder)
        pool = ThreadPoolExecutor(workers)
        try:
            for rows in pool.map(writer.write_shard, range(num_shards)):
                if on_shard is not None:
                    on_shard(rows)
        finally:
            writer.stopped = True
            pool.shutdown(cancel_futures=True)
        size = sum(folder.path(i).stat().st_size for i in range(num_shards))
    return SynthResult(options.rows, num_shards, size, time.perf_counter() - started)


def field_rows(options: SynthOptions) -> dict[str, int]:
    """Rows of each field's table in the encoded form, by field name, in column order."""
    source = RowSource(options.dataset, options.zipf_exponent, options.cardinality_scale)
    return {field.name: field.rows for field in source.fields}


class _Writer:
    """Draws and writes shards; one for all threads."""

    def __init__(self, options: SynthOptions, folder: ShardFolder) -> None:
        self.stopped = False
        self._options, self._folder = options, folder
        self._source = RowSource(options.dataset, options.zipf_exponent, options.cardinality_scale)
        self._texts = {
            f.name: hex_strings(f.name, np.arange(f.size))
            for f in self._source.fields
            if self._is_small(f)
        }
        self._schema = self._with_layout()

    def write_shard(self, shard: int) -> int:
        """Draw and write one shard row group by row group; gives its rows."""
        path = self._folder.path(shard)
        columns = [f.name for f in self._source.fields if f.is_count or f.size <= _MAX_DICTIONARY]
        rows = 0
        with open_shard(path, self._schema, self._options.compression, columns) as writer:
            for group in _groups(self._options, shard):
                if self.stopped:
                    break
                writer.write_table(self._table(group), row_group_size=group.rows)
                rows += group.rows
        sync_file(path)
        return rows

    def _table(self, group: _Group) -> pa.Table:
        options = self._options
        rows = np.arange(group.first_row, group.first_row + group.rows)
        drawn = self._source.draw(options.seed, group.number, rows / options.rows)
        keys = rows if options.dataset == "criteo" else avazu_keys(rows)
        features = [
            pa.array(encoded_ids(f, drawn)) if options.form == "encoded" else self._raw(f, drawn)
            for f in self._source.fields
        ]
        columns = [pa.array(keys), pa.array(drawn.clicks), *features]
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _raw(self, field: SynthField, drawn: Drawn) -> pa.Array:
        values, absent = drawn.values[field.name], drawn.absent.get(field.name)
        if field.name in self._texts:
            numbers = pa.array(values, mask=absent)
            return pa.DictionaryArray.from_arrays(numbers, self._texts[field.name])
        if field.is_text:
            return hex_strings(field.name, values, absent)
        if field.published is not None:
            values = field.published.take(values)
        return pa.array(values, mask=absent)

    def _is_small(self, field: SynthField) -> bool:
        """True for a string column whose row groups are written from a ready dictionary."""
        group_rows = min(self._options.row_group_rows, self._options.rows)
        return field.is_text and field.size <= min(_MAX_DICTIONARY, group_rows // 4)

    def _with_layout(self) -> pa.Schema:
        options = self._options
        plain = (encoded_schema if options.form == "encoded" else raw_schema)(options.dataset)
        for name, texts in self._texts.items() if options.form == "raw" else ():
            kind = pa.dictionary(pa.int32(), texts.type)
            plain = plain.set(plain.get_field_index(name), pa.field(name, kind))
        facts = options.model_dump(include=_LAYOUT_OPTIONS) | {
            "key": KEY_COLUMNS[options.dataset].name,
            "label": LABEL_COLUMNS[options.dataset].name,
        }
        if options.form == "encoded":
            facts["missing_row"], facts["unseen_row"] = MISSING_ROW, UNSEEN_ROW
            facts["field_rows"] = {field.name: field.rows for field in self._source.fields}
        return with_layout(plain, **facts)


def _groups(options: SynthOptions, shard: int) -> Iterator[_Group]:
    """The row groups of one shard."""
    start = shard * options.rows_per_shard
    stop = min(start + options.rows_per_shard, options.rows)
    per_shard = -(-options.rows_per_shard // options.row_group_rows)
    for index, first in enumerate(range(start, stop, options.row_group_rows)):
        rows = min(options.row_group_rows, stop - first)
        yield _Group(shard * per_shard + index, first, rows)
