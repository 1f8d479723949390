"""Scores of samples whose ids are still parquet pages: the GPU decompresses and decodes them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpiframe_core import _core

# Units on the device at one time: one computed, one waiting for its turn, two being decoded.
SLOTS = 4


class PageScores(NamedTuple):
    """Scores [B], ids outside their tables a field [F], and what the GPU took, in seconds."""

    scores: np.ndarray
    bad_ids: np.ndarray
    batch_seconds: list[float]
    copy_in: float
    unpack: float
    compute: float
    copy_out: float


class PageScorer:
    """For units of any size, from several threads at one time; its memory grows with them.

    `counts`: ids outside their tables [F] of a report of the engine.
    """

    def __init__(
        self,
        native: _core.PageScorer,
        counts: Callable[[np.ndarray | None], np.ndarray],
        use_oov: bool,
    ) -> None:
        self._native: _core.PageScorer | None = native
        self._counts, self._use_oov = counts, use_oov
        self._calls = 0
        self._changed = threading.Condition()

    @property
    def device_bytes(self) -> int:
        """Bytes that its units take on the GPU."""
        return 0 if self._native is None else self._native.device_bytes

    def close(self) -> None:
        """Wait for the calls that are under way and free the units' memory; later calls give None.

        Until then they hold the engine's memory as well, even if that is closed.
        """
        with self._changed:
            self._native = None
            self._changed.wait_for(lambda: self._calls == 0)

    def score(
        self, ids: _core.ColumnPages, memory: np.ndarray, dense: np.ndarray
    ) -> PageScores | None:
        """Score ids [F, B], whose data pages are in `memory` (uint8), and dense [N, B] float32.

        Both should be page-locked. None after `close`. Ids outside their tables are counted;
        without the policy `oov` the scores of their samples mean nothing. RuntimeError tells which
        page is corrupt or holds nulls, DeviceMemoryError that the GPU has no room for the unit:
        the engine is as before.
        """
        with self._changed:
            native = self._native
            self._calls += native is not None
        if native is None:
            return None
        scores = np.empty(ids.rows, np.float32)
        try:
            found = native.score(ids, memory, dense, scores, self._use_oov)
        finally:
            del native
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()
        report, batch_seconds, seconds = found
        return PageScores(scores, self._counts(report), batch_seconds, *seconds)
