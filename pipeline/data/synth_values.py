"""Synthetic values in the published formats: 8-digit hex strings, integers, keys.

A field's values are numbered 0 .. size-1. A number gives the same text for every seed, so that a
model trained on one synthetic data set fits another.
"""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa

# Values that published integer columns take, the most frequent first where that is known.
_LISTED = {
    "C1": (1005, 1002, 1010, 1012, 1007, 1001, 1008),
    "banner_pos": (0, 1, 7, 2, 4, 5, 3),
    "device_type": (1, 0, 4, 5, 2),
    "device_conn_type": (0, 2, 3, 5),
    "C15": (320, 300, 216, 728, 120, 1024, 480, 768),
    "C16": (50, 250, 36, 480, 90, 20, 768, 320, 1024),
    "C18": (0, 3, 2, 1),
    "C20": (-1,),
}
# Where the values of the other integer columns start, and their steps.
_STEPS = {
    "C14": (375, 9),
    "C17": (112, 6),
    "C19": (35, 29),
    "C20": (100000, 1),
    "C21": (1, 4),
}
_FIRST_DAY = 14102100
_HOURS_A_DAY = 24
# Below this many values the numbers stay in order of popularity.
_SCATTER_FROM = 64


def permute_ranks(ranks: np.ndarray, size: int) -> np.ndarray:
    """Numbers [n] int32 of the values with these popularity ranks: a bijection of 0 .. size-1.

    It spreads popular values over the range, so that hot embedding rows are not neighbours.
    """
    if size <= _SCATTER_FROM:
        return ranks
    step = int(size * 0.6180339887) | 1
    while np.gcd(step, size) != 1:
        step += 2
    wide = ranks.astype(np.uint64) * np.uint64(step) + np.uint64(size // 3)
    return (wide - (wide // np.uint64(size)) * np.uint64(size)).astype(np.int32)


def integer_values(column: str, size: int) -> np.ndarray:
    """The published integers [size] int32 of an Avazu column, by number."""
    if column == "hour":
        days, hours = np.divmod(np.arange(size), _HOURS_A_DAY)
        return (_FIRST_DAY + days * 100 + hours).astype(np.int32)
    listed = np.array(_LISTED.get(column, ())[:size], np.int32)
    start, step = _STEPS.get(column, (1, 1))
    more = start + step * np.arange(size - len(listed), dtype=np.int32)
    return np.concatenate([listed, more.astype(np.int32)])


def hex_strings(column: str, numbers: np.ndarray, absent: np.ndarray | None = None) -> pa.Array:
    """The strings [n] of 8 hex digits of the values with these numbers, null where absent."""
    words = _mix32(numbers.astype(np.uint32) ^ np.uint32(zlib.crc32(column.encode())))
    digits = np.empty((len(words), 2), np.uint32)
    digits[:, 0] = _HEX_DIGITS.take(words >> np.uint32(16))
    digits[:, 1] = _HEX_DIGITS.take(words & np.uint32(0xFFFF))
    offsets = np.arange(0, 8 * len(words) + 1, 8, dtype=np.int32)
    validity = None if absent is None else pa.py_buffer(np.packbits(~absent, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(digits)]
    return pa.Array.from_buffers(pa.string(), len(words), buffers)


def avazu_keys(rows: np.ndarray) -> np.ndarray:
    """Distinct keys [n] uint64 over the whole range for row numbers [n] (splitmix64's mixer)."""
    mixed = rows.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def _mix32(words: np.ndarray) -> np.ndarray:
    """A bijection of 32-bit words (murmur3's finaliser)."""
    words = (words ^ (words >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return np.asarray(words ^ (words >> np.uint32(16)))


def _hex_digits() -> np.ndarray:
    """The 4 digits of each 16-bit word as 4 bytes in memory order, [65536] uint32."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    words = np.arange(1 << 16)
    text = np.stack([digits[(words >> shift) & 15] for shift in (12, 8, 4, 0)], axis=1)
    return np.ascontiguousarray(text).view(np.uint32).reshape(-1)


_HEX_DIGITS = _hex_digits()
