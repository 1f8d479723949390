"""The engine of a scorer: where the GPU's memory is short, batches become smaller, not the job.

An engine that does not fit is loaded again with half the rows in a call, down to `MIN_BATCH`; so
is one whose memory another process took meanwhile. Scores do not depend on the size of batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dpiframe_core.errors import DeviceMemoryError

if TYPE_CHECKING:
    from dpiframe_core.engine.cuda.page_scorer import PageScorer

MIN_BATCH = 1024


class ScoringEngine(Protocol):
    """What a scorer needs of `dpiframe_core.Engine`."""

    device: str
    batch_seconds: list[float]
    device_seconds: Any  # copy_in, compute, copy_out of the last call

    @property
    def bad_ids(self) -> np.ndarray:
        """Ids outside their tables in the last call, a field [F]."""

    def score(self, ids: Any, dense: Any = None) -> Any:
        """Probabilities [B]."""

    def page_scorer(self) -> PageScorer | None:
        """What scores ids as parquet stores them, where the engine can."""

    def close(self) -> None:
        """Give the device's memory back."""


class MemoryShortError(Exception):
    """The device has no memory even for the smallest batches."""


class LoadedEngine:
    """An engine that `load` makes for a number of rows a call, made anew when memory is short.

    For one thread, but for `device`, `reduced_batch`, `stored` and `not_stored`.
    """

    def __init__(self, load: Callable[[int], ScoringEngine], max_batch: int) -> None:
        """Load at once, with `max_batch` rows or fewer. MemoryShortError if nothing helps."""
        self._load, self._wanted = load, max_batch
        self.max_batch = max_batch
        self._engine: ScoringEngine | None = None
        self.device = ""  # where the engine runs
        self.stored: PageScorer | None = None  # of this engine
        self.not_stored = ""  # why a GPU has none
        self._ready()

    @property
    def reduced_batch(self) -> int | None:
        """Rows in a call if they had to be fewer than wanted, else None."""
        return self.max_batch if self.max_batch < self._wanted else None

    @property
    def bad_ids(self) -> np.ndarray:
        """Ids outside their tables in the last call, a field [F]."""
        return self._ready().bad_ids

    @property
    def batch_seconds(self) -> list[float]:
        """Seconds of each batch of the last call."""
        return self._ready().batch_seconds

    @property
    def device_seconds(self) -> Any:
        """What the device took for copies in, compute and copies out of the last call."""
        return self._ready().device_seconds

    def score(self, ids: Any, dense: Any = None) -> Any:
        """Probabilities [B]; as `Engine.score`, and MemoryShortError."""
        while True:
            engine = self._ready()
            try:
                return engine.score(ids, dense)
            except DeviceMemoryError as error:
                self._shrink(error)
            if self.stored is not None:
                self.stored.close()  # which holds the engine's memory while it works
            engine.close()
            self._engine = self.stored = None

    def _ready(self) -> ScoringEngine:
        while self._engine is None:
            try:
                self._engine = self._load(self.max_batch)
            except DeviceMemoryError as error:
                self._shrink(error)
                continue
            self.device = self._engine.device
            try:
                self.stored, self.not_stored = self._engine.page_scorer(), ""
            except RuntimeError as error:  # no memory, of the GPU or page-locked
                self.stored, self.not_stored = None, str(error)
        return self._engine

    def _shrink(self, error: DeviceMemoryError) -> None:
        """Halve the batch; MemoryShortError at the floor."""
        if self.max_batch <= MIN_BATCH:
            raise MemoryShortError(
                f"the GPU's memory is too short for batches of {self.max_batch} rows: {error}; "
                "end what else runs on that GPU, choose precision fp16, or take a larger GPU"
            ) from error
        self.max_batch = max(MIN_BATCH, self.max_batch // 2)
