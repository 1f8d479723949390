"""An engine whose batches become smaller, instead of the job failing, when GPU memory is short.

An engine that does not fit is loaded again with half the rows in a batch, down to `MIN_BATCH`; so
is one whose memory another process took meanwhile. Scores do not depend on the size of batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dpiframe_core.errors import DeviceMemoryError
from pipeline.errors import UnitFailedError
from pipeline.sizing.sizes import MIN_BATCH

if TYPE_CHECKING:
    from dpiframe_core import Engine
    from dpiframe_core.engine.cuda.page_scorer import PageScorer


class ResizingEngine:
    """Holds the engine that `load` makes for a number of rows a batch.

    For one thread; others may read `device`, `reduced_batch`, `page_scorer` and `no_page_scorer`.
    """

    def __init__(self, load: Callable[[int], Engine], max_batch: int) -> None:
        """Load at once, with `max_batch` rows or fewer.

        UnitFailedError of kind "memory" if not even the smallest batches fit.
        """
        self._load, self._wanted = load, max_batch
        self.max_batch = max_batch
        self._engine: Engine | None = None
        self.device = ""  # where the engine runs
        self.page_scorer: PageScorer | None = None  # of this engine
        self.no_page_scorer = ""  # why a GPU has none
        self._load_fitting()

    @property
    def reduced_batch(self) -> int | None:
        """Rows in a batch if they had to be fewer than wanted, else None."""
        return self.max_batch if self.max_batch < self._wanted else None

    @property
    def engine(self) -> Engine:
        """The engine of now: after `score` the one that scored."""
        return self._engine or self._load_fitting()

    def score(self, ids: Any, dense: Any = None) -> Any:
        """Probabilities [B], or embeddings [B, D] of an engine that ends in one; as `Engine.score`,
        and UnitFailedError as `__init__`.
        """
        while True:
            engine = self.engine
            try:
                return engine.score(ids, dense) if engine.width == 1 else engine.embed(ids, dense)
            except DeviceMemoryError as error:
                self._shrink(error)
            self.close()

    def close(self) -> None:
        """Give the engine's memory back; the next `score` loads it anew."""
        if self.page_scorer is not None:
            self.page_scorer.close()  # as its calls hold the engine's memory
        if self._engine is not None:
            self._engine.close()
        self._engine = self.page_scorer = None

    def _load_fitting(self) -> Engine:
        while True:
            try:
                engine = self._load(self.max_batch)
                break
            except DeviceMemoryError as error:
                self._shrink(error)
        self.device = engine.device
        try:
            self.page_scorer, self.no_page_scorer = engine.page_scorer(), ""
        except RuntimeError as error:  # no memory, of the GPU or page-locked
            self.page_scorer, self.no_page_scorer = None, str(error)
        self._engine = engine
        return engine

    def _shrink(self, error: DeviceMemoryError) -> None:
        """Halve the batch; UnitFailedError at the smallest."""
        if self.max_batch <= MIN_BATCH:
            raise UnitFailedError(
                "memory",
                f"the GPU's memory is too short for batches of {self.max_batch} rows: {error}; "
                "end what else runs on that GPU, choose precision fp16, or take a larger GPU",
            ) from error
        self.max_batch = max(MIN_BATCH, self.max_batch // 2)
