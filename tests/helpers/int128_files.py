"""Parquet files with an integer of 128 bits, as Polars writes them: bytes, and Arrow's own copy of
the schema in the footer, which says what they are.
"""

from __future__ import annotations

import base64
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

BITS, NARROW = b"\x80\0\0\0", b"\x10\0\0\0"  # 128 and 16 as int32


def write_int128(path: Path, table: pa.Table, column: str) -> None:
    """Write a file with one more column, of such integers; the table has no integer of 16 bits."""
    values = pa.array([b"\1" + bytes(15)] * len(table), pa.binary(16))
    copy = schema_of_int128(table.schema.append(pa.field(column, pa.int16())))
    table = table.append_column(column, values)
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table, row_group_size=19)
        writer.add_key_value_metadata({"ARROW:schema": base64.b64encode(copy)})


def schema_of_int128(schema: pa.Schema) -> bytes:
    """An Arrow schema as its writer would leave it, its integer of 16 bits now of 128."""
    stored = schema.serialize().to_pybytes()
    for at in range(0, len(stored), 4):
        if stored[at : at + 4] == NARROW:
            changed = stored[:at] + BITS + stored[at + 4 :]
            try:
                pa.ipc.read_schema(pa.py_buffer(changed))
            except pa.ArrowNotImplementedError:
                return changed
            except (pa.ArrowException, OSError):
                continue  # it was an offset
    raise AssertionError("the schema has no integer of 16 bits")
