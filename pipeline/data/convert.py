"""Converting the published text files to parquet shards: streaming, in bounded memory.

Rows keep their order. Criteo rows, which have no key, get `row_id`: the running line index over
all input files, from 0.
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


class ConvertResult(NamedTuple):
    """What was written."""

    rows: int
    shards: int
    seconds: float


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
    with ShardFolder(options.output, options.overwrite) as folder:
        writer = ShardWriter(
            folder, schema, options.rows_per_shard, options.row_group_rows, options.compression
        )
        try:
            _write_files(files, schema, writer, options.block_bytes, on_rows)
            writer.close()
        finally:
            writer.abandon()
    return ConvertResult(writer.num_rows, writer.num_shards, time.perf_counter() - started)


def _write_files(
    files: list[TextFile],
    schema: pa.Schema,
    writer: ShardWriter,
    block_bytes: int,
    on_rows: Callable[[int], None] | None,
) -> None:
    """Write each block while the next one is read; at most one waits."""
    num_rows = 0
    with ThreadPoolExecutor(1) as pool:
        written: Future[None] | None = None
        for file in files:
            for block in read_blocks(file, block_bytes):
                if file.dataset == "criteo":
                    row_ids = pa.array(np.arange(num_rows, num_rows + len(block)))
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
