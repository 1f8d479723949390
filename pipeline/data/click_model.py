"""The click model of synthetic rows: a logistic model with a few products of fields.

logit = intercept + scale * (sum_f w_f[h(v_f)] + sum_(a, b) u_a[h(v_a)] u_b[h(v_b)]), where v_f is
the number of the field's value and h hashes it to 4,096 buckets. The weights depend on the field's
name only, so all data sets of a shape share one model. Fields with few values weigh more: theirs
are the weights that can be learnt from few rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

_BUCKETS = 1 << 12
_MISSING = _BUCKETS  # an extra last bucket
_SPREAD = 1.3  # standard deviation of the logits
# Products between fields that exist in Criteo, then in Avazu.
_PAIRS = (
    ("C6", "C17"),
    ("C14", "C22"),
    ("C9", "C5"),
    ("I1", "C20"),
    ("C1", "banner_pos"),
    ("site_category", "app_category"),
    ("C18", "device_conn_type"),
    ("C15", "C21"),
)
_PAIR_WEIGHT = 0.6


class ClickModel:
    """Draws clicks; `calibrate` sets spread and click rate on a sample first."""

    def __init__(self, sizes: Mapping[str, int], click_rate: float) -> None:
        self._weights = {name: _weights(name, size) for name, size in sizes.items()}
        self._pairs = [(a, b) for a, b in _PAIRS if a in sizes and b in sizes]
        paired = {name for pair in self._pairs for name in pair}
        self._factors = {name: _normal(f"{name} factor") for name in paired}
        self._click_rate = click_rate
        self._scale, self._intercept = 1.0, 0.0

    def raw_scores(
        self, numbers: Mapping[str, np.ndarray], absent: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """The unscaled sums [n] float32 for the values' numbers [n] of each field."""
        total: np.ndarray | None = None
        buckets = {}
        for name, weights in self._weights.items():
            bucket = _bucket(numbers[name])
            if name in absent:
                bucket[absent[name]] = _MISSING
            if name in self._factors:
                buckets[name] = bucket
            part = weights.take(bucket)
            total = part if total is None else np.add(total, part, out=total)
        assert total is not None
        for a, b in self._pairs:
            total += self._factors[a].take(buckets[a]) * self._factors[b].take(buckets[b])
        return total

    def calibrate(self, raw_scores: np.ndarray) -> None:
        """Choose scale and intercept from the sums [n] of a sample."""
        self._scale = _SPREAD / max(float(raw_scores.std()), 1e-6)
        scaled = raw_scores.astype(np.float64) * self._scale
        low, high = -50.0 - scaled.max(), 50.0 - scaled.min()
        for _ in range(60):
            self._intercept = (low + high) / 2
            rate = float(np.mean(_sigmoid(scaled + self._intercept)))
            low, high = (
                (self._intercept, high) if rate < self._click_rate else (low, self._intercept)
            )

    def clicks(self, raw_scores: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Labels [n] int8: 1 where the uniform number [n] is below the click probability."""
        logits = raw_scores * np.float32(self._scale) + np.float32(self._intercept)
        return (uniform < _sigmoid(logits)).astype(np.int8)


def _bucket(numbers: np.ndarray) -> np.ndarray:
    words = numbers.astype(np.uint32) * np.uint32(0x9E3779B1)
    return (words >> np.uint32(20)).astype(np.int64)


def _weights(name: str, size: int) -> np.ndarray:
    learnable = 1.0 if size <= 3_000 else 0.6 if size <= 30_000 else 0.15
    return _normal(f"{name} weight") * np.float32(learnable)


def _normal(name: str) -> np.ndarray:
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    spread = _PAIR_WEIGHT**0.5 if name.endswith("factor") else 1.0
    return (generator.standard_normal(_BUCKETS + 1) * spread).astype(np.float32)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-logits)))
