"""The benchmark's rows written again by pyarrow, as files of others are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from pipeline.bench.job.histories import HISTORY, history_column

MOST_PROCESSES = 16


class Writing(BaseModel):
    """How pyarrow writes: all columns in dictionaries as far as these go, one page size."""

    model_config = ConfigDict(frozen=True)

    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"]
    row_group_rows: int
    id_type: Literal["int32", "int64"]
    data_page_version: Literal["1.0", "2.0"]
    list_length: int = 0  # of a column of lists that is added, if any
    list_table_rows: int = 0  # its ids are below
    seed: int = 0  # of the lists


def rewrite(paths: Sequence[Path], writing: Writing) -> None:
    """Replace the files by others of the same rows in the same order, `list_length` with lists."""
    processes = min(len(paths), os.cpu_count() or 1, MOST_PROCESSES)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(_rewrite, writing), range(len(paths)), paths))


def _rewrite(writing: Writing, number: int, path: Path) -> None:
    table = pq.read_table(path)
    fields = [
        field.with_type(pa.int64()) if writing.id_type == "int64" and _is_id(field) else field
        for field in table.schema
    ]
    table = table.cast(pa.schema(fields))
    if writing.list_length:
        lists = history_column(
            len(table), writing.list_length, writing.list_table_rows, [writing.seed, number]
        )
        kind = pa.large_list(pa.int64() if writing.id_type == "int64" else pa.int32())
        table = table.append_column(HISTORY, lists.cast(kind))
    scratch = path.with_suffix(".rewritten")
    pq.write_table(
        table,
        scratch,
        compression=writing.compression,
        row_group_size=writing.row_group_rows,
        data_page_version=writing.data_page_version,
    )
    scratch.rename(path)


def _is_id(field: pa.Field) -> bool:
    return bool(pa.types.is_int32(field.type))
