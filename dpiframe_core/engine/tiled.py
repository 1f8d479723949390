"""TiledBackend: what backends on the CPU share, all but how a tile of samples is computed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from typing import Any

import numpy as np

from dpiframe_core import _core
from dpiframe_core.engine.batches import BadIds, DeviceSeconds, HostPart
from dpiframe_core.engine.host_inputs import Columns, cut, in_tables
from dpiframe_core.program.program import Program


class TiledBackend(ABC):
    """Runs one program, `tile` samples at a time; float32, one caller at a time."""

    device = "cpu"

    def __init__(self, program: Program, max_batch: int, tile: int) -> None:
        self.program, self.max_batch, self.tile = program, max_batch, tile
        self.batch_seconds: list[float] = []
        self._turn = _core.OneCaller()

    @abstractmethod
    def describe(self) -> str:
        """The plan, in words."""

    @abstractmethod
    def _run_tile(
        self, ids: Columns, dense: Columns, use_oov: bool, logits: np.ndarray
    ) -> np.ndarray:
        """Write the logits [b], or the embeddings [b, D], of at most `tile` samples whose ids are
        rows; returns the counts [F] of `run`.
        """

    def run(
        self, ids: Columns, dense: Columns, use_oov: bool, out: np.ndarray, scores: bool = False
    ) -> np.ndarray:
        """Write logits [B], or scores, of ids [F, B] and dense [N, B]; any B.

        Returns the counts [F] of ids outside their tables.
        """
        counts = np.zeros(len(self.program.field_names), np.int64)
        with self._turn:
            self.batch_seconds = []
            for first in range(0, len(out), self.max_batch):
                began, end = time.perf_counter(), min(first + self.max_batch, len(out))
                for start in range(first, end, self.tile):
                    tile = slice(start, min(start + self.tile, end))
                    rows = in_tables(cut(ids, tile), self.program.field_ids)
                    counts += self._run_tile(rows, cut(dense, tile), use_oov, out[tile])
                if scores:
                    part = out[first:end]
                    with np.errstate(over="ignore"):
                        np.divide(np.float32(1), np.float32(1) + np.exp(-part), out=part)
                self.batch_seconds.append(time.perf_counter() - began)
        return counts

    def stream(
        self, parts: Iterable[HostPart], use_oov: bool, scores: bool = True
    ) -> Generator[np.ndarray, None, None]:
        """Fill the scores (or logits) of each part in turn; yields its counts [F]."""
        for ids, dense, out in parts:
            yield self.run(ids, dense, use_oov, out, scores)

    def score_on_device(self, ids: Any, dense: Any, use_oov: bool) -> tuple[Any, BadIds | None]:
        """ValueError: a CPU does not score arrays on a GPU."""
        raise ValueError(f"the arrays are on a CUDA device, the engine runs on {self.device}")

    def tensor_scorer(self, use_oov: bool) -> None:
        """None: nor does it score tensors there."""
        return

    def page_scorer(self, use_oov: bool) -> None:
        """None: parquet pages are decoded by a GPU alone."""
        return

    def take_seconds(self) -> DeviceSeconds:
        """None of a GPU's."""
        return DeviceSeconds()

    def close(self) -> None:
        """Nothing is held beyond the object's life."""
        return
