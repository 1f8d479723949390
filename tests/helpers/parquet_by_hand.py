"""Parquet files byte by byte: what other writers make, and what no writer should.

A file holds one column, named "x", in one row group. Thrift structs are dicts from field number to
value (parquet.thrift of apache/parquet-format has the numbers); None leaves a field out, so that
any field can be changed or dropped.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

PLAIN, PLAIN_DICTIONARY, RLE, BIT_PACKED, RLE_DICTIONARY = 0, 2, 3, 4, 8
DATA, INDEX, DICTIONARY, DATA_V2 = 0, 1, 2, 3
CODECS = {"none": 0, "snappy": 1, "gzip": 2, "zstd": 6, "lz4_raw": 7}
TYPES = {"<i4": 1, "<i8": 2, "<f4": 4, "<f8": 5}
Fields = Mapping[int, Any]
AS_IS: Fields = MappingProxyType({})


class I64(int):
    """An integer that goes into the file as i64; a plain int is i32."""


class Raw(NamedTuple):
    """A value given as its bytes, with its type in Thrift's compact protocol."""

    kind: int
    data: bytes


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def zigzag(value: int) -> bytes:
    return varint((value << 1 ^ value >> 63) & (1 << 64) - 1)


def thrift(fields: Fields) -> bytes:
    """A struct in Thrift's compact protocol."""
    out, last = b"", 0
    for number, value in sorted(fields.items()):
        if value is None:
            continue
        kind, data = _value(value)
        step = number - last
        out += bytes([step << 4 | kind]) if step < 16 else bytes([kind]) + zigzag(number)
        out, last = out + data, number
    return out + b"\0"


def _value(value: Any) -> tuple[int, bytes]:
    if isinstance(value, Raw):
        return value
    if isinstance(value, bool):
        return (1 if value else 2), b""
    if isinstance(value, int):
        return (6 if isinstance(value, I64) else 5), zigzag(value)
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return 8, varint(len(value)) + value
    if isinstance(value, list):
        return 9, _list(value)
    return 12, thrift(value)


def _list(values: list[Any]) -> bytes:
    parts = [_value(value) for value in values]
    kind, size = parts[0][0] if parts else 5, len(parts)
    head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + varint(size)
    return head + b"".join(data for _, data in parts)


def plain(kind: str, values: Sequence[float] | np.ndarray) -> bytes:
    return np.asarray(values, np.dtype(kind)).tobytes()


def hybrid(width: int, *runs: tuple[int, int] | list[int]) -> bytes:
    """Runs of RLE (value, count) and of bit packing [values], padded to 8 with zeros."""
    out = b""
    for run in runs:
        if isinstance(run, tuple):
            value, count = run
            out += varint(count << 1) + value.to_bytes((width + 7) // 8, "little")
        else:
            groups = (len(run) + 7) // 8
            bits = np.zeros((groups * 8, width), np.uint8)
            bits[: len(run)] = np.array(run, np.int64)[:, None] >> np.arange(width) & 1
            out += varint(groups << 1 | 1) + np.packbits(bits, bitorder="little").tobytes()
    return out


def indexed(width: int, *runs: tuple[int, int] | list[int]) -> bytes:
    """Body of a page of indices into a dictionary."""
    return bytes([width]) + hybrid(width, *runs)


def sized(levels: bytes) -> bytes:
    """Levels as a data page of version 1 holds them."""
    return struct.pack("<I", len(levels)) + levels


def compressed(codec: str, body: bytes) -> bytes:
    return body if codec == "none" else pa.Codec(codec).compress(body, asbytes=True)


def page(own: Fields, stored: bytes, raw_size: int, header: Fields) -> bytes:
    return thrift({2: raw_size, 3: len(stored), **own, **header}) + stored


def v1(
    body: bytes,
    rows: int,
    encoding: int = PLAIN,
    *,
    codec: str = "none",
    header: Fields = AS_IS,
    own: Fields = AS_IS,
) -> bytes:
    """A data page of version 1; `header` and `own` replace fields of its two headers."""
    head = {1: DATA, 5: {1: rows, 2: encoding, 3: RLE, 4: RLE, **own}}
    return page(head, compressed(codec, body), len(body), header)


def v2(
    body: bytes,
    rows: int,
    encoding: int = PLAIN,
    *,
    levels: bytes = b"",
    codec: str = "none",
    header: Fields = AS_IS,
    own: Fields = AS_IS,
) -> bytes:
    """A data page of version 2."""
    sizes = {1: rows, 2: 0, 3: rows, 4: encoding, 5: len(levels), 6: 0}
    head = {1: DATA_V2, 8: {**sizes, **own}}
    return page(head, levels + compressed(codec, body), len(levels) + len(body), header)


def dictionary(
    body: bytes,
    values: int,
    encoding: int = PLAIN,
    *,
    codec: str = "none",
    header: Fields = AS_IS,
    own: Fields = AS_IS,
) -> bytes:
    """A dictionary page."""
    head = {1: DICTIONARY, 7: {1: values, 2: encoding, **own}}
    return page(head, compressed(codec, body), len(body), header)


def write(
    path: Path,
    pages: Sequence[bytes],
    rows: int,
    *,
    kind: str = "<i4",
    codec: str = "none",
    optional: bool = False,
    gap: int = 0,
    **changes: Fields,
) -> Path:
    """Write a file of these pages behind a hole of `gap` bytes.

    `changes` replaces fields: footer (FileMetaData), root and element (SchemaElement), group,
    column (ColumnChunk), chunk (ColumnMetaData).
    """
    body, start = b"".join(pages), 4 + gap
    with path.open("wb") as file:
        file.write(b"PAR1")
        file.seek(start)
        file.write(body)
        footer = thrift(_footer(len(body), start, rows, (kind, codec, optional), changes))
        file.write(footer + struct.pack("<I", len(footer)) + b"PAR1")
    return path


def _footer(
    size: int, start: int, rows: int, column: tuple[str, str, bool], changes: Mapping[str, Fields]
) -> Fields:
    kind, codec, optional = column
    unknown = set(changes) - {"footer", "root", "element", "group", "column", "chunk"}
    assert not unknown, unknown

    def change(name: str, fields: Fields) -> Fields:
        return {**fields, **changes.get(name, {})}

    chunk = {1: TYPES[kind], 2: [PLAIN, RLE, RLE_DICTIONARY], 3: ["x"], 4: CODECS[codec]}
    sizes = {5: I64(rows), 6: I64(size), 7: I64(size), 9: I64(start)}
    columns = [change("column", {2: I64(start), 3: change("chunk", chunk | sizes)})]
    group = change("group", {1: columns, 2: I64(size), 3: I64(rows)})
    root = change("root", {4: "schema", 5: 1})
    element = change("element", {1: TYPES[kind], 3: int(optional), 4: "x"})
    return change("footer", {1: 2, 2: [root, element], 3: I64(rows), 4: [group], 6: "by hand"})
