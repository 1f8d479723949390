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

MOST_PROCESSES = 16


class Writing(BaseModel):
    """How pyarrow writes: all columns in dictionaries as far as these go, one page size."""

    model_config = ConfigDict(frozen=True)

    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"]
    row_group_rows: int
    id_type: Literal["int32", "int64"]
    data_page_version: Literal["1.0", "2.0"]


def rewrite(paths: Sequence[Path], writing: Writing) -> None:
    """Replace the files by others of the same rows in the same order."""
    processes = min(len(paths), os.cpu_count() or 1, MOST_PROCESSES)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(_rewrite, writing), paths))


def _rewrite(writing: Writing, path: Path) -> None:
    table = pq.read_table(path)
    fields = [
        field.with_type(pa.int64()) if writing.id_type == "int64" and _is_id(field) else field
        for field in table.schema
    ]
    scratch = path.with_suffix(".rewritten")
    pq.write_table(
        table.cast(pa.schema(fields)),
        scratch,
        compression=writing.compression,
        row_group_size=writing.row_group_rows,
        data_page_version=writing.data_page_version,
    )
    scratch.rename(path)


def _is_id(field: pa.Field) -> bool:
    return bool(pa.types.is_int32(field.type))
