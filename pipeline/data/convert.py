"""Converting the published text files to parquet shards: streaming, in bounded memory.

Rows keep their order. Criteo rows, which have no key, get `row_id`: the running line index over
all input files, from 0, or from behind the highest one of shards that other commands wrote, so that
no two files share a key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from dpiframe_core.features.columns import string_bytes
from pipeline.data.parquet_layouts import (
    KEY_COLUMNS,
    LABEL_COLUMNS,
    Dataset,
    raw_schema,
    with_layout,
)
from pipeline.data.shards import Compression, ShardFolder, ShardWriter
from pipeline.data.text_files import (
    CheckedBytes,
    TextFile,
    damaged_gzip,
    find_broken_line,
    inspect_file,
    is_gzip,
    never_null,
)
from pipeline.errors import ConfigError, ContractError

_HEX_DIGITS = 8
_IS_HEX = np.zeros(256, bool)
_IS_HEX[np.frombuffer(b"0123456789abcdefABCDEF", np.uint8)] = True


class ConvertOptions(BaseModel):
    """What to convert. The files are read one after another, in the order given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: Dataset
    inputs: tuple[Path, ...] = Field(min_length=1)
    output: Path
    rows_per_shard: int = Field(default=1_000_000, ge=1)
    row_group_rows: int = Field(default=100_000, ge=1)
    compression: Compression = "zstd"
    block_bytes: int = Field(default=8 << 20, ge=1 << 10, le=1 << 30)
    overwrite: bool = False
    row_ids_from: int = Field(default=0, ge=0, le=2**62)
    row_ids_after: tuple[Path, ...] = ()


class ConvertResult(NamedTuple):
    """What was written; `next_row_id`: where the keys of the next command may begin."""

    rows: int
    shards: int
    seconds: float
    next_row_id: int | None = None


def convert(options: ConvertOptions, on_rows: Callable[[int], None] | None = None) -> ConvertResult:
    """Convert the files; `on_rows(rows)` is called after each block.

    The shards appear in the output folder when all are written. Raises ContractError naming file,
    line and field of the first broken line, ConfigError for inputs or an output that cannot be
    used.
    """
    started = time.perf_counter()
    files = [inspect_file(path, options.dataset) for path in options.inputs]
    for file in files:
        if file.has_label != files[0].has_label:
            named = sorted((file, files[0]), key=lambda f: f.has_label)
            raise ConfigError(
                f"{named[0].path} has no label and {named[1].path} has one: "
                "convert them into folders of their own"
            )
    schema = with_layout(
        raw_schema(options.dataset, files[0].has_label),
        dataset=options.dataset,
        form="raw",
        key=KEY_COLUMNS[options.dataset].name,
        label=LABEL_COLUMNS[options.dataset].name if files[0].has_label else None,
    )
    first_row_id = find_first_row_id(options)
    with ShardFolder(options.output, options.overwrite) as folder:
        writer = ShardWriter(
            folder, schema, options.rows_per_shard, options.row_group_rows, options.compression
        )
        try:
            _write_files(files, schema, writer, options.block_bytes, first_row_id, on_rows)
            writer.close()
        finally:
            writer.abandon()
    seconds = time.perf_counter() - started
    next_row_id = first_row_id + writer.num_rows if options.dataset == "criteo" else None
    return ConvertResult(writer.num_rows, writer.num_shards, seconds, next_row_id)


def find_first_row_id(options: ConvertOptions) -> int:
    """The first `row_id`: `row_ids_from`, or more, if shards below `row_ids_after` reach further.

    ConfigError: such a folder has no shards, or shards whose footers do not tell; or the rows have
    a key of their own.
    """
    if options.dataset != "criteo" and (options.row_ids_from or options.row_ids_after):
        raise ConfigError(
            f"{options.dataset} rows have a key of their own, which no option changes"
        )
    first = options.row_ids_from
    for folder in options.row_ids_after:
        shards = sorted(folder.rglob("*.parquet"))
        if not shards:
            raise ConfigError(f"{folder} (row_ids_after) holds no *.parquet file, at any depth")
        for shard in shards:
            first = max(first, _last_row_id(shard) + 1)
    return first


def _last_row_id(shard: Path) -> int:
    """The highest `row_id` of a shard, by the statistics of its footer; -1 without rows."""
    name = KEY_COLUMNS["criteo"].name
    try:
        footer = pq.read_metadata(shard)
        column = footer.schema.to_arrow_schema().get_field_index(name)
        groups = [footer.row_group(i).column(column) for i in range(footer.num_row_groups)]
        found = [group.statistics.max for group in groups if group.num_values]
        return max(map(int, found), default=-1)
    except (OSError, pa.ArrowException, AttributeError, IndexError, TypeError) as error:
        raise ConfigError(f"{shard} does not tell its highest {name}: {error}") from None


def _write_files(
    files: list[TextFile],
    schema: pa.Schema,
    writer: ShardWriter,
    block_bytes: int,
    first_row_id: int,
    on_rows: Callable[[int], None] | None,
) -> None:
    """Write each block while the next one is read; at most one waits."""
    num_rows = 0
    with ThreadPoolExecutor(1) as pool:
        written: Future[None] | None = None
        for file in files:
            for block in read_blocks(file, block_bytes):
                if file.dataset == "criteo":
                    first = first_row_id + num_rows
                    row_ids = pa.array(np.arange(first, first + len(block)))
                    block = block.append_column(KEY_COLUMNS["criteo"], row_ids)
                if written is not None:
                    written.result()
                written = pool.submit(writer.write, block.select(schema.names).cast(schema))
                num_rows += len(block)
                if on_rows is not None:
                    on_rows(len(block))
        if written is not None:
            written.result()


def read_blocks(file: TextFile, block_bytes: int) -> Iterator[pa.Table]:
    """The file's rows, typed and checked, in tables of about `block_bytes` of text.

    Raises ContractError naming the broken line; the tables before it are complete and right.
    """
    rows = 0
    try:
        with _open_csv(file, block_bytes) as reader:
            for batch in reader:
                if not is_valid(batch, file):
                    raise pa.ArrowInvalid("a value breaks the rules of its field")
                yield pa.Table.from_batches([batch])
                rows += batch.num_rows
    except pa.ArrowInvalid as error:
        found = find_broken_line(file, rows)
        first = file.header_lines + rows + 1
        raise ContractError(found or f"{file.path}: at or after line {first}: {error}") from error
    except OSError as error:
        if is_gzip(file.path):
            raise damaged_gzip(file.path, error) from error
        raise


def is_valid(batch: pa.RecordBatch, file: TextFile) -> bool:
    """True when labels are 0 or 1, strings are 8 hex digits, and required fields are filled."""
    required = never_null(file.dataset)
    if any(batch.column(n).null_count for n in file.columns if n in required):
        return False
    if file.has_label:
        labels = batch.column(LABEL_COLUMNS[file.dataset].name)
        if batch.num_rows and not pc.all(pc.is_in(labels, pa.array(["0", "1"]))).as_py():
            return False
    strings = [name for name, kind in file.types.items() if pa.types.is_string(kind)]
    return all(_is_hex(batch.column(name)) for name in strings)


def _is_hex(strings: pa.Array) -> bool:
    offsets, data = string_bytes(strings)
    lengths = np.diff(offsets)
    if not np.all((lengths == _HEX_DIGITS) | (lengths == 0)):
        return False
    return bool(_IS_HEX[data[offsets[0] : offsets[-1]]].all())


def _open_csv(file: TextFile, block_bytes: int) -> pa_csv.CSVStreamingReader:
    # A label is read as a text, as pyarrow would take 01 for 1.
    label = {LABEL_COLUMNS[file.dataset].name: pa.string()} if file.has_label else {}
    return pa_csv.open_csv(
        CheckedBytes(file),
        read_options=pa_csv.ReadOptions(
            column_names=file.columns, skip_rows=file.header_lines, block_size=block_bytes
        ),
        parse_options=pa_csv.ParseOptions(
            delimiter=file.delimiter, quote_char=False, ignore_empty_lines=False
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types=file.types | label, null_values=[""], strings_can_be_null=True
        ),
    )
