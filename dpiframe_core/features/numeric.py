"""Numbers as features: logarithmic buckets, and transforms of dense features."""

from __future__ import annotations

import functools

import numpy as np

from dpiframe_core.features.schema import FIRST_VALUE_ROW, NUM_SMALL_BUCKETS

_LOWEST = -3
# Below this the buckets are looked up (most counts are small), above it computed.
_TABLE_END = 1 << 14


def log_bucket_rows(values: np.ndarray, max_bucket: int) -> np.ndarray:
    """Rows [n] int32 of integers or floats [n]; see `LogBucketEncoding` for the formula.

    A float counts as the next integer below; NaN has no bucket and gives an arbitrary valid row.
    """
    integers = _as_int64(values)
    table = _bucket_table(max_bucket)
    rows: np.ndarray = table[np.clip(integers, _LOWEST, _TABLE_END - 1) - _LOWEST]
    large = np.flatnonzero(integers >= _TABLE_END)
    if len(large):
        rows[large] = _large_bucket(integers[large], max_bucket)
    return rows


def _as_int64(values: np.ndarray) -> np.ndarray:
    """The numbers, floats rounded down, none beyond +-2^62: its bucket is the last anyway."""
    if values.dtype.kind == "f":
        wide = np.nan_to_num(values.astype(np.float64))
        values = np.floor(np.clip(wide, -float(2**62), float(2**62)))
    elif values.dtype == np.uint64:
        values = np.minimum(values, np.uint64(2**62))
    return values.astype(np.int64)


@functools.lru_cache(maxsize=16)
def _bucket_table(max_bucket: int) -> np.ndarray:
    small = np.arange(_LOWEST, 3) - _LOWEST + FIRST_VALUE_ROW
    large = _large_bucket(np.arange(3, _TABLE_END), max_bucket)
    return np.concatenate([small, large]).astype(np.int32)


def _large_bucket(values: np.ndarray, max_bucket: int) -> np.ndarray:
    squared = np.floor(np.square(np.log(values.astype(np.float64))))
    bucket = NUM_SMALL_BUCKETS - 1 + np.minimum(squared, max_bucket)
    return (FIRST_VALUE_ROW + bucket).astype(np.int32)


def transform(values: np.ndarray, kind: str) -> np.ndarray:
    """t(x) [n] float64: x itself ("none"), or sign(x) ln(1 + |x|) ("log1p")."""
    wide = values.astype(np.float64)
    return wide if kind == "none" else np.copysign(np.log1p(np.abs(wide)), wide)
