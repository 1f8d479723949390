"""Numbers as features: logarithmic buckets, and transforms of dense features."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from dpiframe_core import _core
from dpiframe_core.features.schema import FIRST_VALUE_ROW, NUM_SMALL_BUCKETS

LOWEST = -3
# Ids of integers up to here are looked up (most counts are small), others found by bisection.
_TABLE_END = 1 << 14
_LAST = 2**62


class Buckets(NamedTuple):
    """Ids [S] int32 of the integers from LOWEST on, and the first integers [T] of further ids."""

    small: np.ndarray
    steps: np.ndarray


def log_bucket_rows(
    values: np.ndarray,
    max_bucket: int,
    valid: tuple[np.ndarray, int] | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Ids [n] int32 of integers or floats [n]; see `LogBucketEncoding` for the formula.

    A float counts as the next integer below; NaN has no bucket and gives an arbitrary valid id.
    `valid` is the bitmap of nulls, which get the missing id, and the first value's bit.
    """
    rows = np.empty(len(values), np.int32) if out is None else out
    _core.bucket_rows(_as_integers(values), valid, LOWEST, *_buckets(max_bucket), rows)
    return rows


@functools.lru_cache(maxsize=16)
def bucket_encoder(max_bucket: int) -> _core.ValueEncoder:
    """The same for one value after another, NaN missing."""
    return _core.bucket_encoder(LOWEST, *_buckets(max_bucket))


def _as_integers(values: np.ndarray) -> np.ndarray:
    """The numbers as int32 or int64, floats rounded down, none beyond +-2^62: all in one bucket."""
    if values.dtype.kind == "f":
        wide = np.nan_to_num(values.astype(np.float64))
        values = np.floor(np.clip(wide, -float(_LAST), float(_LAST)))
    elif values.dtype == np.uint64:
        values = np.minimum(values, np.uint64(_LAST))
    return values if values.dtype == np.int32 else values.astype(np.int64)


@functools.lru_cache(maxsize=16)
def _buckets(max_bucket: int) -> Buckets:
    small = np.arange(LOWEST, 3) - LOWEST + FIRST_VALUE_ROW
    large = _large_bucket(np.arange(3, _TABLE_END), max_bucket)
    beyond = np.arange(large[-1], _large_bucket(np.array([_LAST]), max_bucket)[0]) + 1
    # The first integer of each further id, by bisection: after 62 halvings low + 1 is high.
    low, high = np.full(len(beyond), _TABLE_END - 1), np.full(len(beyond), _LAST)
    while np.any(high - low > 1):
        middle = low + (high - low) // 2
        reached = _large_bucket(middle, max_bucket) >= beyond
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return Buckets(np.concatenate([small, large]).astype(np.int32), high)


def _large_bucket(values: np.ndarray, max_bucket: int) -> np.ndarray:
    squared = np.floor(np.square(np.log(values.astype(np.float64))))
    bucket = NUM_SMALL_BUCKETS - 1 + np.minimum(squared, max_bucket)
    return (FIRST_VALUE_ROW + bucket).astype(np.int32)


def transform(values: np.ndarray, kind: str) -> np.ndarray:
    """t(x) [n] float64: x itself ("none"), or sign(x) ln(1 + |x|) ("log1p")."""
    wide = values.astype(np.float64)
    return wide if kind == "none" else np.copysign(np.log1p(np.abs(wide)), wide)
