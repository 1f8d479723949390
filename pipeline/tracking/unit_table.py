"""The unit table: one row a unit, written beside the events and logged as an artifact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.publishing.atomic import write_atomic
from pipeline.tracking.metrics import STAGES

if TYPE_CHECKING:
    from pipeline.publishing.records import UnitRecord

ARTIFACT_NAME = "units.parquet"

SCHEMA = pa.schema(
    [
        ("unit", pa.string()),
        ("path", pa.string()),
        ("first_row_group", pa.int64()),
        ("stop_row_group", pa.int64()),
        ("rows", pa.int64()),
        ("scored", pa.int64()),
        ("rejected", pa.int64()),
        ("part", pa.string()),
        ("bytes", pa.int64()),
        ("scorer", pa.string()),
        ("device", pa.string()),
        ("started", pa.float64()),  # epoch seconds
        *((f"{stage}_s", pa.float64()) for stage in STAGES),
        ("batch_s", pa.list_(pa.float64())),
        ("score_min", pa.float64()),
        ("score_max", pa.float64()),
        ("score_sum", pa.float64()),
    ]
)


def unit_table(records: Sequence[UnitRecord], done: dict[str, float]) -> pa.Table:
    """The table, with `done_s`: seconds from the attempt's start, null for earlier attempts."""
    columns = {
        name: pa.array([getattr(record, name) for record in records], SCHEMA.field(name).type)
        for name in SCHEMA.names
    }
    columns["done_s"] = pa.array([done.get(record.unit) for record in records], pa.float64())
    return pa.table(columns)


def write_unit_table(table: pa.Table, path: Path) -> None:
    """Write the table in one step. Raises OSError."""
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd")
    write_atomic(path, memoryview(buffer.getvalue()))
