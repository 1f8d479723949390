"""Engine: scores batches with a bundle on one device; the only face of the engine to its users."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dpiframe_core import _core
from dpiframe_core.bundle.reading import Bundle
from dpiframe_core.engine.batches import BadIds, DeviceSeconds, HostPart, TensorScorer
from dpiframe_core.engine.cuda.page_scorer import PageScorer
from dpiframe_core.engine.host_inputs import Columns, Ids, checked_inputs, cut, in_tables, on_device
from dpiframe_core.errors import BadIdError

NO_SECONDS = DeviceSeconds()


class Backend(Protocol):
    """What an Engine asks of the CPU's or a GPU's backend: to run one program for one caller at a
    time. RuntimeError in a second thread at the same time, and in a fork of the process that made
    it.
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

    def tensor_scorer(self, use_oov: bool) -> TensorScorer | None:
        """What scores tensors on a GPU in few calls; None where nothing does."""

    def page_scorer(self, use_oov: bool) -> PageScorer | None:
        """What scores ids that are still parquet pages; None where nothing does."""

    def take_seconds(self) -> DeviceSeconds:
        """What a GPU took for batches from host memory since the last call."""

    def describe(self) -> str:
        """The plan, in words."""

    def close(self) -> None:
        """Free what the backend holds."""


@dataclass
class _Streamed:
    """A batch of a stream on its way: parts of it are in flight."""

    ids: Columns
    scores: np.ndarray
    bad_ids: np.ndarray
    filled: int = 0


class Engine:
    """A model ready to score. Use it from one thread at a time; several engines may coexist.

    Attributes: `device`, `precision` (what was asked for; the CPU always computes in float32),
    `bad_ids`, `batch_seconds` (of the last call's batches; on a GPU from one's scores to the
    next's), `device_seconds` (what a GPU took for the last `score` or `logits` of host arrays).
    """

    def __init__(self, bundle: Bundle, backend: Backend, precision: str, on_bad_id: str) -> None:
        self.bundle, self.spec, self.precision = bundle, bundle.spec, precision
        self.width = bundle.spec.width  # numbers a sample: more than one are an embedding
        self.device, self.max_batch = backend.device, backend.max_batch
        self._backend: Backend | None = backend
        self._use_oov = on_bad_id == "oov"
        self._bad_ids: np.ndarray | None = None  # None: there were none
        self._tensor_scorer: TensorScorer | None = None  # from the first batch on a GPU on
        self.batch_seconds: list[float] = []
        self.device_seconds = DeviceSeconds()

    @property
    def bad_ids(self) -> np.ndarray:
        """Ids outside their tables in the last call, a field [F]."""
        if self._bad_ids is None:
            self._bad_ids = np.zeros(len(self.spec.fields), np.int64)
        return self._bad_ids

    def score(self, ids: Ids, dense: Any = None) -> Any:
        """Click probabilities [B] float32.

        `ids`: [F, B] int32 or int64, field-major, or F columns [B] (no copy is made of either);
        `dense`: [N, B] float32 or N columns, None where the model has none. Any B >= 0. Dense
        values must be finite, which is not checked: the score of any other means nothing.
        Arrays on the engine's GPU (`__cuda_array_interface__` or DLPack) are read in place,
        and the result is an array there too; the call returns when it is complete.
        ValueError for wrong shapes or types, BadIdError for an id outside its table with the
        policy `fail`; with `oov` such an id scores as its field's `oov_row`.
        """
        scorer = self._tensor_scorer
        if scorer is not None:
            scored = scorer.score(ids, dense)
            if scored is not None:
                out, seconds, report = scored
                self._bad_ids, self.batch_seconds, self.device_seconds = None, [seconds], NO_SECONDS
                if report is not None:
                    self._take(scorer.bad_ids(ids, report))
                return out
        self._check_ends_in_logit()
        if on_device(ids) or on_device(dense):
            return self._score_on_device(ids, dense)
        return self._run(ids, dense, scores=True)

    def embed(self, ids: Ids, dense: Any = None) -> np.ndarray:
        """The output [B, D] float32 of the module that the engine ends in (`output` of
        `load_engine`); inputs and errors as for `score`.
        """
        if self.width == 1:
            raise ValueError("the engine ends in a logit, not in an embedding: use score")
        return self._run(ids, dense, scores=False)

    def _check_ends_in_logit(self) -> None:
        if self.width != 1:
            raise ValueError(f"the engine ends in an embedding of {self.width} numbers: use embed")

    def logits(self, ids: Ids, dense: Any = None) -> np.ndarray:
        """Logits [B] float32 of host arrays: `score` before the sigmoid."""
        self._check_ends_in_logit()
        return self._run(ids, dense, scores=False)

    def stream(self, batches: Iterable[tuple[Ids, Any]]) -> Iterator[np.ndarray]:
        """Scores of each (ids, dense) in turn, arrays in host memory.

        On a GPU, copies in and out overlap with computing; up to three batches are taken from
        `batches` before the first scores come. Matrices in page-locked memory (`pin_memory` of
        torch) are not copied first but read by the GPU itself: a batch must stay as it is until its
        scores have come. `bad_ids` is of the batch that came last. The engine scores nothing else
        until the stream has ended.
        """
        self._check_ends_in_logit()
        waiting: deque[_Streamed] = deque()

        def parts() -> Iterator[HostPart]:
            for ids, dense in batches:
                columns, values, batch = checked_inputs(self.spec, ids, dense)
                scores = np.empty(batch, np.float32)
                waiting.append(_Streamed(columns, scores, np.zeros(len(columns), np.int64)))
                for start in range(0, batch, self.max_batch):
                    part = slice(start, start + self.max_batch)
                    yield cut(columns, part), cut(values, part), scores[part]

        with closing(self._ready().stream(parts(), self._use_oov)) as found:
            for counts in found:
                yield from self._complete(waiting)
                first = waiting[0]
                if counts.any() and not self._use_oov:
                    self._fail(first.ids)
                first.filled += min(self.max_batch, len(first.scores) - first.filled)
                first.bad_ids += counts
                yield from self._complete(waiting)
        yield from self._complete(waiting)

    def _complete(self, waiting: deque[_Streamed]) -> Iterator[np.ndarray]:
        while waiting and waiting[0].filled == len(waiting[0].scores):
            done = waiting.popleft()
            self._bad_ids = done.bad_ids
            yield done.scores

    def page_scorer(self) -> PageScorer | None:
        """What scores ids that are still the pages of a parquet file, from any threads; None on a
        CPU.

        It may work while one other thread scores arrays of the host, not of the device. It keeps
        the GPU's memory of a closed engine for as long as it lives.
        """
        return self._ready().page_scorer(self._use_oov)

    def _ready(self) -> Backend:
        if self._backend is None:
            raise RuntimeError("the engine is closed")
        return self._backend

    def _run(self, ids: Ids, dense: Any, scores: bool) -> np.ndarray:
        backend = self._ready()
        columns, values, batch = checked_inputs(self.spec, ids, dense)
        out = np.empty(batch if self.width == 1 else (batch, self.width), np.float32)
        self._bad_ids, self.batch_seconds, self.device_seconds = None, [], NO_SECONDS
        backend.take_seconds()  # those of streams
        self._bad_ids = backend.run(columns, values, self._use_oov, out, scores)
        self.batch_seconds, self.device_seconds = backend.batch_seconds, backend.take_seconds()
        if self._bad_ids.any() and not self._use_oov:
            self._fail(columns)
        return out

    def _score_on_device(self, ids: Any, dense: Any) -> Any:
        backend = self._ready()
        out, bad = backend.score_on_device(ids, dense, self._use_oov)
        self.batch_seconds, self.device_seconds = backend.batch_seconds, NO_SECONDS
        self._bad_ids = None
        if self._tensor_scorer is None:
            self._tensor_scorer = backend.tensor_scorer(self._use_oov)
        if bad is not None:
            self._take(bad)
        return out

    def _take(self, bad: BadIds) -> None:
        """Keep the counts of a call; BadIdError where such ids are not to be scored."""
        self._bad_ids = bad.counts
        if bad.first is not None:
            sample, f, value = bad.first
            raise self._bad_id(f, sample, value)

    def describe(self) -> str:
        """The model and the plan that runs it, in words."""
        if self._backend is None:
            return "closed"
        return f"{self.spec.name}, precision {self.precision}, {self._backend.describe()}"

    def close(self) -> None:
        """Free the engine's memory; it cannot score any more."""
        if self._backend is not None:
            self._backend.close()
        self._backend = self._tensor_scorer = None

    def _fail(self, columns: Columns) -> None:
        """Raise for the first bad id, with the counts of the whole call."""
        rows = [field.rows for field in self.spec.fields]
        inside = in_tables(columns, self.spec.field_ids)
        mask, self._bad_ids = _core.find_bad_ids(inside, rows)
        row = int(np.argmax(mask))
        for f, column in enumerate(inside):
            if not 0 <= column[row] < rows[f]:
                raise self._bad_id(f, row, int(columns[f][row]))
        raise AssertionError("a bad id was counted but not found")

    def _bad_id(self, f: int, row: int, value: int) -> BadIdError:
        field = self.spec.fields[f]
        oov = not self.spec.without_oov_row
        return BadIdError(field.name, row, value, field.rows, oov, field.end)
