"""Arrow arrays as numpy views: the bytes of strings, numbers, and which values are missing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from dpiframe_core import _core
from dpiframe_core.features.schema import value_type

# Encodes the values of one plain array, [n] -> [n]; nulls included.
EncodeValues = Callable[[pa.Array], np.ndarray]


def as_table(rows: pa.Table | pa.RecordBatch) -> pa.Table:
    """The rows as a table; no copy."""
    return pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows


def string_bytes(strings: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Offsets [n + 1] into the utf-8 bytes, and the bytes; no copy. n may be 0."""
    wide = pa.types.is_large_string(strings.type)
    _, offsets, data = strings.buffers()
    if len(strings) == 0 or offsets is None:
        return np.zeros(len(strings) + 1, np.int32), np.empty(0, np.uint8)
    starts = np.frombuffer(offsets, dtype=np.int64 if wide else np.int32)
    has_bytes = data is not None and data.size > 0
    values = np.frombuffer(data, dtype=np.uint8) if has_bytes else np.empty(0, np.uint8)
    return starts[strings.offset : strings.offset + len(strings) + 1], values


def numbers(array: pa.Array) -> np.ndarray:
    """The numbers [n] of an integer or floating array, in its own type; no copy.

    What stands in the place of a null is undefined.
    """
    data = array.buffers()[1]
    if len(array) == 0 or data is None:
        return np.zeros(len(array), array.type.to_pandas_dtype())
    view = np.frombuffer(data, dtype=array.type.to_pandas_dtype())
    return view[array.offset : array.offset + len(array)]


def missing(array: pa.Array) -> np.ndarray | None:
    """Mask [n] of nulls, empty strings and NaNs, or None when there are none."""
    masks = []
    if array.null_count:
        masks.append(array.is_null().to_numpy(zero_copy_only=False))
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        offsets, _ = string_bytes(array)
        masks.append(offsets[1:] == offsets[:-1])
    elif pa.types.is_floating(array.type):
        masks.append(np.isnan(numbers(array)))
    if not masks:
        return None
    mask = masks[0] if len(masks) == 1 else masks[0] | masks[1]
    return mask if mask.any() else None


def hash_values(array: pa.Array, seed: int) -> np.ndarray:
    """XXH64 [n] uint64 of strings (utf-8 bytes) or integers (8 little-endian bytes).

    What a null hashes to is undefined.
    """
    if pa.types.is_integer(array.type):
        values = numbers(array)
        signed = values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64)
        return np.asarray(_core.xxh64_int64(np.ascontiguousarray(signed), seed))
    offsets, data = string_bytes(array)
    return np.asarray(_core.xxh64_strings(offsets, data, seed))


def encode_column(
    column: pa.ChunkedArray, dtype: type[np.generic], missing_value: float, encode: EncodeValues
) -> np.ndarray:
    """Encode a column chunk by chunk into one array [B] of `dtype`.

    Of a dictionary-encoded chunk only the dictionary is encoded, and once for all the chunks that
    share it. `encode` gives `missing_value` for nulls.
    """
    out = np.empty(len(column), dtype)
    start, known, codes = 0, None, np.empty(0, dtype)
    for chunk in column.chunks:
        part = out[start : start + len(chunk)]
        start += len(chunk)
        if pa.types.is_null(value_type(chunk.type)):
            part[:] = missing_value
        elif not pa.types.is_dictionary(chunk.type):
            part[:] = encode(chunk)
        else:
            if known is None or not _same(known, chunk.dictionary):
                known = chunk.dictionary
                codes = np.append(encode(known).astype(dtype), np.array(missing_value, dtype))
            # A null index points at the extra last code, which may not fit a small index type.
            indices = chunk.indices
            if chunk.null_count:
                narrow = indices.type.bit_width < 32
                indices = (indices.cast(pa.int32()) if narrow else indices).fill_null(len(known))
            np.take(codes, numbers(indices), out=part, mode="clip")
    return out


def _same(first: pa.Array, second: pa.Array) -> bool:
    """True for two views of the same memory; equal copies count as different."""

    def place(array: pa.Array) -> tuple[object, ...]:
        buffers = (None if b is None else b.address for b in array.buffers())
        return (array.offset, len(array), *buffers)

    return place(first) == place(second)
