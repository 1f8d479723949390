"""The schema of a parquet file as Arrow knows it, also where Arrow's own copy of it, which its
writer left in the footer, has a type that pyarrow does not know, such as Polars' Int128.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

_KEY, _OTHER_KEY = b"\x18\x0cARROW:schema", b"\x18\x0cARROW:unread"  # Thrift strings of one length


class ArrowSchema(NamedTuple):
    """A schema, and the columns whose type it may not tell, as pyarrow does not know them."""

    schema: pa.Schema
    unknown: tuple[str, ...]


def arrow_schema(empty: bytes) -> ArrowSchema:
    """Of a file by its schema alone, as a file of no rows. pa.ArrowException, OSError.

    Without Arrow's copy, types of which parquet knows less are those of parquet: a duration is an
    integer, and a time zone UTC.
    """
    try:
        return ArrowSchema(_schema_of(empty), ())
    except pa.ArrowNotImplementedError:
        schema = _schema_of(empty.replace(_KEY, _OTHER_KEY))
    # Parquet has no such type either: its values are mere bytes, perhaps inside of lists.
    unknown = tuple(field.name for field in schema if "fixed_size_binary" in str(field.type))
    return ArrowSchema(schema, unknown)


def without_arrow_schema(footer: bytes) -> pq.FileMetaData:
    """The footer of a file, Arrow's copy of the schema left out."""
    renamed = footer.replace(_KEY, _OTHER_KEY)
    file = b"PAR1" + renamed + len(renamed).to_bytes(4, "little") + b"PAR1"
    return pq.read_metadata(pa.BufferReader(file))


def _schema_of(empty: bytes) -> pa.Schema:
    return pq.read_metadata(pa.BufferReader(empty)).schema.to_arrow_schema()
