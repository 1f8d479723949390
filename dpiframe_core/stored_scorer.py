"""Scores of rows whose ids come as a parquet file stores them: the GPU unpacks and decodes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpiframe_core import _core

# Units on the device at one time: one computed, one that waits for its turn, two unpacked.
SLOTS = 4


class StoredScores(NamedTuple):
    """Scores [B], ids outside their tables a field [F], and what the GPU took, in seconds."""

    scores: np.ndarray
    bad_ids: np.ndarray
    batch_seconds: list[float]
    copy_in: float
    unpack: float
    compute: float
    copy_out: float


class StoredScorer:
    """For units of any size, from several threads at one time; its memory grows with them.

    `counts`: ids outside their tables [F] of a report of the engine.
    """

    def __init__(
        self,
        native: _core.PageScorer,
        counts: Callable[[np.ndarray | None], np.ndarray],
        use_oov: bool,
    ) -> None:
        self._native, self._counts, self._use_oov = native, counts, use_oov

    @property
    def device_bytes(self) -> int:
        """Bytes that its units take on the GPU."""
        return self._native.device_bytes

    def score(
        self, ids: _core.StoredColumns, memory: np.ndarray, dense: np.ndarray
    ) -> StoredScores | None:
        """Score ids [F, B], whose pages lie in `memory` (uint8), and dense [N, B] float32.

        Both should be page-locked. None where a page is corrupt or holds nulls. Ids outside their
        tables are counted; but for the policy `oov` the scores of their rows mean nothing.
        DeviceMemoryError where the GPU has no room for the unit: the engine is as before.
        """
        scores = np.empty(ids.rows, np.float32)
        found = self._native.score(ids, memory, dense, scores, self._use_oov)
        if found is None:
            return None
        report, batch_seconds, seconds = found
        return StoredScores(scores, self._counts(report), batch_seconds, *seconds)
