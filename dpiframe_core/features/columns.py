"""Arrow arrays as numpy views: the bytes of strings, numbers, and which values are missing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpiframe_core import _core
from dpiframe_core.features.lists import Lists, is_list, split_lists
from dpiframe_core.features.schema import value_type

# Writes the codes of the values of one plain array, nulls included, into the array given: [n].
EncodeValues = Callable[[pa.Array, np.ndarray], None]
# Values per pass of numpy, few enough to stay in the cache from one pass to the next.
RUN = 1 << 15


def as_table(rows: pa.Table | pa.RecordBatch) -> pa.Table:
    """The rows as a table; no copy."""
    return pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows


def new_column(size: int, dtype: type[np.generic]) -> np.ndarray:
    """An uninitialised array [size] from Arrow's memory pool.

    The pool reuses the memory pages of freed arrays; numpy's are new, and zeroed by the system.
    """
    return np.frombuffer(pa.allocate_buffer(size * np.dtype(dtype).itemsize), dtype)


def plain(array: pa.Array) -> pa.Array:
    """The values themselves: not by a dictionary, and of an extension type (uuid) as stored."""
    if pa.types.is_dictionary(array.type):
        return plain(array.dictionary_decode())
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def as_text(array: pa.Array) -> pa.Array:
    """Bytes and views of texts as strings of the same bytes, utf-8 or not; others as they are."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(array.indices, as_text(array.dictionary))
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        array = array.cast(pa.large_binary())
    elif not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return array
    text = pa.string() if pa.types.is_binary(array.type) else pa.large_string()
    return pa.Array.from_buffers(text, len(array), array.buffers(), offset=array.offset)


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

    The number at a null is undefined.
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


def validity(array: pa.Array) -> tuple[np.ndarray, int] | None:
    """The bitmap that tells nulls and the position of the first value in it; None without nulls."""
    if not array.null_count:
        return None
    return np.frombuffer(array.buffers()[0], np.uint8), array.offset


def as_int64(array: pa.Array) -> np.ndarray:
    """The integers [n] as int64; a uint64 keeps its bits."""
    values = numbers(array)
    return values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64)


def encode_column(
    column: pa.ChunkedArray, out: np.ndarray, missing_value: float, encode: EncodeValues
) -> None:
    """Encode a column chunk by chunk into `out` [B].

    Of a dictionary-encoded chunk only the dictionary is encoded, and once for all the chunks that
    share it. `encode` gives `missing_value` for nulls.
    """
    start, known, codes = 0, None, out[:0]
    for chunk in column.chunks:
        part = out[start : start + len(chunk)]
        start += len(chunk)
        if pa.types.is_null(value_type(chunk.type)):
            part[:] = missing_value
        elif not pa.types.is_dictionary(chunk.type):
            encode(chunk, part)
        else:
            if known is None or not _same(known, chunk.dictionary):
                known = chunk.dictionary
                codes = np.full(len(known) + 1, missing_value, out.dtype)  # the last for nulls
                encode(known, codes[:-1])
            indices = chunk.indices.cast(pa.int32())
            _core.gather_codes(codes, numbers(indices), validity(indices), part)


def list_chunk(chunk: pa.Array, split_at: str | None) -> Lists:
    """The lists of a chunk, whose texts are split; a chunk of nulls has empty ones."""
    if pa.types.is_null(chunk.type):
        chunk = chunk.cast(pa.list_(pa.null()))
    elif not is_list(chunk.type):
        chunk = pc.split_pattern(as_text(plain(chunk)), split_at)
    return split_lists(chunk)


def in_runs(array: pa.Array, out: np.ndarray, encode: EncodeValues) -> None:
    """Encode a plain array into `out` [n], run by run."""
    for start in range(0, len(array), RUN):
        encode(array.slice(start, RUN), out[start : start + RUN])


def _same(first: pa.Array, second: pa.Array) -> bool:
    """True for two views of the same memory; equal copies count as different."""

    def place(array: pa.Array) -> tuple[object, ...]:
        buffers = (None if b is None else b.address for b in array.buffers())
        return (array.offset, len(array), *buffers)

    return place(first) == place(second)
