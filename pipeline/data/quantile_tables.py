"""Quantile tables: draw from a fixed distribution with one table lookup per value.

A `QuantileTable` cuts a distribution into 65,536 cells of equal probability. The leading 16 bits of
a random 64-bit word choose the cell, the next 32 the position inside it, and the last 16 are free
for the caller (here: is the value missing).
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

_CELLS = 1 << 16
# Zipf's sums are added up to here, and integrated beyond: the error is below 1e-9 of the total.
_EXACT_RANKS = 1 << 16


class QuantileTable(NamedTuple):
    """Cell i holds the integers first[i] .. first[i] + width[i] - 1 (int32, uint32; [65536])."""

    first: np.ndarray
    width: np.ndarray
    is_wide: bool  # some cell holds more than one integer

    def draw(self, words: np.ndarray) -> np.ndarray:
        """Values [n] int32 for random words [n] uint64."""
        cells = (words >> np.uint64(48)).astype(np.int64)
        values: np.ndarray = self.first.take(cells)
        if self.is_wide:
            offset = (words >> np.uint64(16)) & np.uint64(0xFFFFFFFF)
            offset *= self.width.take(cells)
            values += (offset >> np.uint64(32)).astype(np.int32)
        return values


def missing_mask(words: np.ndarray, share: float) -> np.ndarray:
    """Mask [n] true for about this share of the random words [n], from their last 16 bits."""
    return words.astype(np.uint16) < np.uint16(round(share * _CELLS))


@functools.lru_cache(maxsize=64)
def zipf_table(size: int, exponent: float) -> QuantileTable:
    """Ranks 0 .. size-1 where rank r has probability proportional to (r + 1)^-exponent."""
    exact = np.cumsum(np.arange(1, min(size, _EXACT_RANKS) + 1, dtype=np.float64) ** -exponent)
    total = exact[-1] + _power_integral(len(exact), np.array([size]), exponent)[0]
    mass = np.arange(_CELLS + 1) / _CELLS * total
    ranks = np.searchsorted(exact, mass, side="right").astype(np.float64)
    beyond = mass > exact[-1]
    ranks[beyond] = _inverse_integral(len(exact), mass[beyond] - exact[-1], exponent)
    bounds = np.clip(ranks.astype(np.int64), 0, size)
    first = np.minimum(bounds[:-1], size - 1)
    return _table(first, np.append(first[1:], size))


@functools.lru_cache(maxsize=64)
def counts_table(median: float, ninth_decile: float, negative: float) -> QuantileTable:
    """Integers floor(e^(mu + sigma z)) - 1 of a normal z, with a share of -1 and a few -2, -3."""
    mu = math.log(median + 1)
    sigma = (math.log(ninth_decile + 1) - mu) / NormalDist().inv_cdf(0.9)
    num_negative = round(negative * _CELLS)
    z = _normal_quantiles(_CELLS + 1 - num_negative)
    counts = np.minimum(np.exp(mu + sigma * z) - 1, 2**30).astype(np.int64)
    first = np.concatenate([np.full(num_negative, -1), counts])
    first[: num_negative // 64] = -2
    first[: num_negative // 512] = -3
    return _table(first[:-1], first[1:])


@functools.lru_cache(maxsize=4)
def _normal_quantiles(num: int) -> np.ndarray:
    """The normal quantiles [num] at the middles of as many equal shares."""
    return np.array([NormalDist().inv_cdf((i + 0.5) / num) for i in range(num)])


def _table(first: np.ndarray, stop: np.ndarray) -> QuantileTable:
    width = np.maximum(stop - first, 1)
    is_wide = bool(np.any(width > 1))
    return QuantileTable(first.astype(np.int32), width.astype(np.uint32), is_wide)


def _power_integral(start: int, stop: np.ndarray, exponent: float) -> np.ndarray:
    """Sum of r^-exponent for r in start+1 .. stop, by the midpoint rule."""
    low, high = start + 0.5, stop + 0.5
    if exponent == 1:
        return np.log(high / low)
    return np.asarray((high ** (1 - exponent) - low ** (1 - exponent)) / (1 - exponent))


def _inverse_integral(start: int, mass: np.ndarray, exponent: float) -> np.ndarray:
    """The stop for which `_power_integral` gives this mass."""
    low = start + 0.5
    if exponent == 1:
        return np.asarray(low * np.exp(mass) - 0.5)
    power = low ** (1 - exponent) + mass * (1 - exponent)
    return np.asarray(np.maximum(power, 1e-300) ** (1 / (1 - exponent)) - 0.5)
