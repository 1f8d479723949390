"""What an Engine asks of the backend that computes: the CPU's or a GPU's."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

from dpiframe_core.engine.cuda.page_scorer import PageScorer
from dpiframe_core.engine.host_inputs import Columns

# Ids [F, B], dense [N, B], and where the scores [B] go.
HostPart = tuple[Columns, Columns, np.ndarray]


class DeviceSeconds(NamedTuple):
    """Time on a GPU by what it did; the three overlap between neighbouring batches."""

    copy_in: float = 0.0
    compute: float = 0.0
    copy_out: float = 0.0


class BadIds(NamedTuple):
    """Ids outside their tables: how many a field [F], and sample, field and value of the first,
    which is not looked up where it scores as the field's `oov_row`.
    """

    counts: np.ndarray
    first: tuple[int, int, int] | None


class Backend(Protocol):
    """Runs one program; one caller at a time. RuntimeError in a second thread at the same time, and
    in a fork of the process that made it.
    """

    device: str
    max_batch: int
    batch_seconds: list[float]  # of the last `run` or `score_on_device`

    def run(
        self, ids: Columns, dense: Columns, use_oov: bool, out: np.ndarray, scores: bool = False
    ) -> np.ndarray:
        """Write logits [B], or scores, of ids [F, B] and dense [N, B]; any B.

        Returns the counts [F] of ids outside their tables.
        """

    def stream(
        self, parts: Iterable[HostPart], use_oov: bool, scores: bool = True
    ) -> Generator[np.ndarray, None, None]:
        """Fill the scores (or logits) of each part of 1 to max_batch samples, in order; yields its
        counts [F].
        """

    def score_on_device(self, ids: Any, dense: Any, use_oov: bool) -> tuple[Any, BadIds | None]:
        """Scores [B] of arrays on a GPU, an array there too; None where all ids are inside."""

    def page_scorer(self, use_oov: bool) -> PageScorer | None:
        """What scores ids that are still parquet pages; None where nothing does."""

    def take_seconds(self) -> DeviceSeconds:
        """What a GPU took for batches from host memory since the last call."""

    def describe(self) -> str:
        """The plan, in words."""

    def close(self) -> None:
        """Free what the backend holds."""
