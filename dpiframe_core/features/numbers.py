"""Numbers of any type as features: decimals and booleans as real numbers, and whole numbers, which
some writers store as decimals (Spark, Oracle) or as floats (pandas, where a column has nulls).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_PRECISION = 76  # of the widest decimal
_INT64_BITS = 63


def is_number(kind: pa.DataType) -> bool:
    """True for integers, floats, decimals and booleans."""
    of_numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(is_of(kind) for is_of in of_numbers) or bool(pa.types.is_boolean(kind))


def as_reals(array: pa.Array) -> pa.Array:
    """Decimals as float64, booleans as 0 and 1; other types as they are."""
    if pa.types.is_decimal(array.type):
        return array.cast(pa.float64())
    return array.cast(pa.uint8()) if pa.types.is_boolean(array.type) else array


def rounded_down(array: pa.Array) -> pa.Array:
    """Decimals as the next whole number below, a float64; other types as they are."""
    if not pa.types.is_decimal(array.type):
        return array
    wide = pc.floor(array.cast(pa.decimal256(_PRECISION, array.type.scale)))
    return wide.cast(pa.decimal256(_PRECISION, 0)).cast(pa.float64())


class WholeNumbers(NamedTuple):
    """Integers [n], and the positions [R] of values that were none, which are 0 here."""

    integers: pa.Array
    others: np.ndarray


def whole_numbers(array: pa.Array) -> WholeNumbers:
    """The whole numbers of an array, of integers in their own type, else int64; nulls stay.

    A float beyond the whole numbers that its type holds all of (2^53, float32 2^24) counts as none:
    it may have been another one before it was stored.
    """
    kind = array.type
    if pa.types.is_integer(kind):
        return WholeNumbers(array, np.empty(0, np.int64))
    if pa.types.is_boolean(kind):
        return WholeNumbers(array.cast(pa.int64()), np.empty(0, np.int64))
    nulls = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    whole, values = _of_decimals(array) if pa.types.is_decimal(kind) else _of_floats(array)
    if nulls is not None:
        whole |= nulls
    values[~whole] = 0
    return WholeNumbers(pa.array(values, mask=nulls), np.flatnonzero(~whole).astype(np.int64))


def _of_decimals(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Which are whole numbers of int64, and these [n]."""
    wide = array.cast(pa.decimal256(_PRECISION, array.type.scale)).fill_null(0)
    truncated = wide.cast(pa.decimal256(_PRECISION, 0), safe=False)
    whole = pc.equal(truncated.cast(wide.type), wide).to_numpy(zero_copy_only=False)
    words = np.frombuffer(truncated.buffers()[1], np.int64).reshape(-1, 4)  # the lowest first
    words = words[truncated.offset : truncated.offset + len(truncated)]
    sign = words[:, :1] >> _INT64_BITS
    return whole & (words[:, 1:] == sign).all(axis=1), words[:, 0].copy()


def _of_floats(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    values = array.fill_null(0).to_numpy(zero_copy_only=False)
    most = 2.0 ** (np.finfo(values.dtype).nmant + 1)
    wide = values.astype(np.float64)
    whole = (np.abs(wide) <= most) & (np.trunc(wide) == wide)
    return whole, np.where(whole, wide, 0).astype(np.int64)
