"""Engine: scores batches with a bundle on one device; the only face of the engine to its users."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpiframe_core import _core
from dpiframe_core.bundle.reading import Bundle
from dpiframe_core.engine.cuda.backend import BadIds, CudaBackend, DeviceSeconds, HostPart
from dpiframe_core.engine.cuda.page_scorer import PageScorer
from dpiframe_core.engine.host_inputs import Columns, Ids, checked_inputs, cut, on_device
from dpiframe_core.errors import BadIdError

if TYPE_CHECKING:  # both bring torch, which takes seconds to import
    from dpiframe_core.engine.cpu import CpuBackend
    from dpiframe_core.engine.cuda.device_inputs import Matrix

NO_SECONDS = DeviceSeconds()


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

    def __init__(
        self, bundle: Bundle, runner: CpuBackend | CudaBackend, precision: str, on_bad_id: str
    ) -> None:
        self.bundle, self.spec, self.precision = bundle, bundle.spec, precision
        self.device, self.max_batch = runner.device, runner.max_batch
        self._runner: CpuBackend | CudaBackend | None = runner
        self._use_oov = on_bad_id == "oov"
        self._bad_ids: np.ndarray | None = None  # None: there were none
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
        values must be finite, which is not checked: the score of such a row means nothing.
        Arrays on the engine's GPU (`__cuda_array_interface__` or DLPack) are read where they lie,
        and the result is an array there too; the call returns when it is complete.
        ValueError for wrong shapes or types, BadIdError for an id outside its table with the
        policy `fail`; with `oov` such an id scores as its field's `oov_row`.
        """
        if on_device(ids) or on_device(dense):
            return self._score_on_device(ids, dense)
        return self._run(ids, dense, scores=True)

    def logits(self, ids: Ids, dense: Any = None) -> np.ndarray:
        """Logits [B] float32 of host arrays: `score` before the sigmoid."""
        return self._run(ids, dense, scores=False)

    def stream(self, batches: Iterable[tuple[Ids, Any]]) -> Iterator[np.ndarray]:
        """Scores of each (ids, dense) in turn, arrays in host memory.

        On a GPU, copies in and out overlap with computing; up to three batches are taken from
        `batches` before the first scores come. Matrices in page-locked memory (`pin_memory` of
        torch) are not copied first but read by the GPU itself: a batch must stay as it is until its
        scores have come. `bad_ids` is of the batch that came last. The engine scores nothing else
        until the stream has ended.
        """
        runner = self._ready()
        if isinstance(runner, CudaBackend):
            yield from self._overlapped(runner, batches)
        else:
            for ids, dense in batches:
                yield self._run(ids, dense, scores=True)

    def page_scorer(self) -> PageScorer | None:
        """What scores ids as parquet files store them, from any threads; None on a CPU.

        It may work while one other thread scores arrays of the host, not of the device. It keeps
        the GPU's memory of a closed engine for as long as it lives.
        """
        runner = self._ready()
        return runner.page_scorer(self._use_oov) if isinstance(runner, CudaBackend) else None

    def _ready(self) -> CpuBackend | CudaBackend:
        if self._runner is None:
            raise RuntimeError("the engine is closed")
        return self._runner

    def _run(self, ids: Ids, dense: Any, scores: bool) -> np.ndarray:
        runner = self._ready()
        columns, values, batch = checked_inputs(self.spec, ids, dense)
        out = np.empty(batch, np.float32)
        total = self._bad_ids = np.zeros(len(self.spec.fields), np.int64)
        self.batch_seconds, self.device_seconds = [], DeviceSeconds()
        if isinstance(runner, CudaBackend):
            runner.take_seconds()  # those of streams
            total += runner.run(columns, values, self._use_oov, out, scores)
            self.batch_seconds, self.device_seconds = runner.batch_seconds, runner.take_seconds()
            if total.any() and not self._use_oov:
                self._fail(columns)
            return out
        for ids_part, dense_part, scores_part in self._parts(columns, values, out):
            began = time.perf_counter()
            counts = runner.run(ids_part, dense_part, self._use_oov, scores_part, scores)
            if counts.any() and not self._use_oov:
                self._fail(columns)
            total += counts
            self.batch_seconds.append(time.perf_counter() - began)
        return out

    def _parts(self, columns: Columns, values: Columns, out: np.ndarray) -> Iterator[HostPart]:
        """A batch cut to the size that the runner takes."""
        for start in range(0, len(out), self.max_batch):
            rows = slice(start, start + self.max_batch)
            yield cut(columns, rows), cut(values, rows), out[rows]

    def _overlapped(
        self, runner: CudaBackend, batches: Iterable[tuple[Ids, Any]]
    ) -> Iterator[np.ndarray]:
        waiting: deque[_Streamed] = deque()

        def parts() -> Iterator[HostPart]:
            for ids, dense in batches:
                columns, values, batch = checked_inputs(self.spec, ids, dense)
                scores = np.empty(batch, np.float32)
                waiting.append(_Streamed(columns, scores, np.zeros(len(columns), np.int64)))
                yield from self._parts(columns, values, scores)

        with closing(runner.stream(parts(), self._use_oov)) as found:
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

    def _score_on_device(self, ids: Any, dense: Any) -> Any:
        runner = self._ready()
        if not isinstance(runner, CudaBackend):
            raise ValueError(f"the arrays are on a CUDA device, the engine runs on {self.device}")
        began = time.perf_counter()
        found = runner.score_tensors(ids, dense, self._use_oov)
        if found is None:
            return self._score_arrays(runner, ids, dense)
        out, bad = found
        self.batch_seconds, self.device_seconds = [time.perf_counter() - began], NO_SECONDS
        self._bad_ids = None
        if bad is not None:
            self._count_on_device(bad, 0, ids)
        return out

    def _score_arrays(self, runner: CudaBackend, ids: Any, dense: Any) -> Any:
        """Arrays of any library on the device, in parts of `max_batch` rows."""
        began = time.perf_counter()
        inputs = runner.inputs
        ids, dense = inputs.array(ids), inputs.array(dense)
        i, d, batch = inputs.places(ids, dense)
        source = ids if self.spec.fields else dense
        stream = inputs.stream(source)
        again = isinstance(source, inputs.tensor) and batch <= self.max_batch
        out, address = inputs.scores(batch, stream if again else None)
        self._bad_ids = None
        self.batch_seconds, self.device_seconds = [], NO_SECONDS
        for start in range(0, batch, self.max_batch):
            rows = min(self.max_batch, batch - start)
            bad = runner.run_in_place(i, d, address + 4 * start, rows, self._use_oov, stream)
            ended = time.perf_counter()
            self.batch_seconds.append(ended - began)
            began = ended
            if bad is not None:
                self._count_on_device(bad, start, ids)
            if start + rows < batch:
                i, d = _moved(i, rows), _moved(d, rows)
        return out

    def _count_on_device(self, bad: BadIds, start: int, ids: Any) -> None:
        """Add the bad ids of the rows from `start` on; BadIdError where the policy is to fail."""
        counts, (row, f) = bad
        self._bad_ids = self.bad_ids + counts
        if not self._use_oov:
            field = self.spec.fields[f]
            if not hasattr(ids, "__getitem__"):
                import torch

                ids = torch.as_tensor(ids, device=self.device)
            value = int(ids[f, start + row])
            raise BadIdError(field.name, start + row, value, field.rows)

    def describe(self) -> str:
        """The model and the plan that runs it, in words."""
        if self._runner is None:
            return "closed"
        return f"{self.spec.name}, precision {self.precision}, {self._runner.describe()}"

    def close(self) -> None:
        """Free the engine's memory; it cannot score any more."""
        if isinstance(self._runner, CudaBackend):
            self._runner.close()
        self._runner = None

    def _fail(self, columns: Columns) -> None:
        """Raise for the first bad id, with the counts of the whole call."""
        rows = [field.rows for field in self.spec.fields]
        mask, self._bad_ids = _core.find_bad_ids(list(columns), rows)
        row = int(np.argmax(mask))
        for field, column in zip(self.spec.fields, columns, strict=True):
            value = int(column[row])
            if not 0 <= value < field.rows:
                raise BadIdError(field.name, row, value, field.rows)
        raise AssertionError("a bad id was counted but not found")


def _moved(matrix: Matrix, columns: int) -> Matrix:
    """The matrix from a later column on."""
    address, stride, number_bytes = matrix
    return address + columns * number_bytes, stride, number_bytes
