"""Engine: scores batches with a bundle on one device; the only face of the engine to its users."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dpiframe_core import _core, engine_inputs
from dpiframe_core.bundle import Bundle, open_bundle
from dpiframe_core.cpu_engine import CpuEngine
from dpiframe_core.cuda_engine import CudaEngine, CudaOptions, HostPart
from dpiframe_core.engine_inputs import Ids, checked_inputs
from dpiframe_core.errors import BadIdError
from dpiframe_core.lowering import DEVICE_PASSES, lower

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
# What this build has an engine for; whether the machine has such a device is another matter.
DEVICES = ("cpu", "cuda") if _core.build_info()["cuda"] else ("cpu",)


@dataclass
class _Streamed:
    """A batch of a stream on its way: parts of it are in flight."""

    columns: list[np.ndarray]
    scores: np.ndarray
    bad_ids: np.ndarray
    filled: int = 0


class Engine:
    """A model ready to score. Use it from one thread at a time; several engines may coexist.

    Attributes: `device`, `precision` (what was asked for; the CPU always computes in float32),
    `bad_ids` [F] (ids outside their tables in the last call), `batch_seconds` (of the last call's
    batches).
    """

    def __init__(
        self, bundle: Bundle, runner: CpuEngine | CudaEngine, precision: str, on_bad_id: str
    ) -> None:
        self.bundle, self.spec, self.precision = bundle, bundle.spec, precision
        self.device, self.max_batch = runner.device, runner.max_batch
        self._runner: CpuEngine | CudaEngine | None = runner
        self._use_oov = on_bad_id == "oov"
        self.bad_ids = np.zeros(len(self.spec.fields), np.int64)
        self.batch_seconds: list[float] = []

    def score(self, ids: Ids, dense: Any = None) -> Any:
        """Click probabilities [B] float32.

        `ids`: [F, B] int32 or int64, field-major, or F columns [B] (no copy is made of either);
        `dense`: [N, B] float32 or N columns, None where the model has none. Any B >= 0.
        Arrays on the engine's GPU (`__cuda_array_interface__` or DLPack) are read where they lie,
        and the result is an array there too; the call returns when it is complete.
        ValueError for wrong shapes or types, BadIdError for an id outside its table with the
        policy `fail`; with `oov` such an id scores as its field's `oov_row`.
        """
        if engine_inputs.on_device(ids) or engine_inputs.on_device(dense):
            return self._score_on_device(ids, dense)
        return self._run(ids, dense, scores=True)

    def logits(self, ids: Ids, dense: Any = None) -> np.ndarray:
        """Logits [B] float32 of host arrays: `score` before the sigmoid."""
        return self._run(ids, dense, scores=False)

    def stream(self, batches: Iterable[tuple[Ids, Any]]) -> Iterator[np.ndarray]:
        """Scores of each (ids, dense) in turn, arrays in host memory.

        On a GPU, copies in and out overlap with computing; up to three batches are taken from
        `batches` before the first scores come. `bad_ids` is of the batch that came last.
        """
        runner = self._ready()
        if isinstance(runner, CudaEngine):
            yield from self._overlapped(runner, batches)
        else:
            for ids, dense in batches:
                yield self._run(ids, dense, scores=True)

    def _ready(self) -> CpuEngine | CudaEngine:
        if self._runner is None:
            raise RuntimeError("the engine is closed")
        return self._runner

    def _run(self, ids: Ids, dense: Any, scores: bool) -> np.ndarray:
        runner = self._ready()
        columns, values = checked_inputs(self.spec, ids, dense)
        batch = values.shape[1]
        out = np.empty(batch, np.float32)
        self.bad_ids = np.zeros(len(self.spec.fields), np.int64)
        self.batch_seconds = []
        began = time.perf_counter()
        # Closed at once where an id fails, so that nothing of this call stays in flight.
        with closing(self._counted(runner, self._parts(columns, values, out), scores)) as found:
            for counts in found:
                if counts.any() and not self._use_oov:
                    self._fail(columns)
                self.bad_ids += counts
                ended = time.perf_counter()
                self.batch_seconds.append(ended - began)
                began = ended
        return out

    def _counted(
        self, runner: CpuEngine | CudaEngine, parts: Iterator[HostPart], scores: bool
    ) -> Generator[np.ndarray, None, None]:
        """Run the parts, which a GPU overlaps; the counts of each."""
        if isinstance(runner, CudaEngine):
            return runner.stream(parts, self._use_oov, scores)
        return (runner.run(ids, dense, self._use_oov, out, scores) for ids, dense, out in parts)

    def _parts(
        self, columns: list[np.ndarray], values: np.ndarray, out: np.ndarray
    ) -> Iterator[HostPart]:
        """A batch cut to the size that the runner takes."""
        for start in range(0, len(out), self.max_batch):
            rows = slice(start, start + self.max_batch)
            yield [column[rows] for column in columns], values[:, rows], out[rows]

    def _overlapped(
        self, runner: CudaEngine, batches: Iterable[tuple[Ids, Any]]
    ) -> Iterator[np.ndarray]:
        waiting: deque[_Streamed] = deque()

        def parts() -> Iterator[HostPart]:
            for ids, dense in batches:
                columns, values = checked_inputs(self.spec, ids, dense)
                scores = np.empty(values.shape[1], np.float32)
                waiting.append(_Streamed(columns, scores, np.zeros(len(columns), np.int64)))
                yield from self._parts(columns, values, scores)

        with closing(runner.stream(parts(), self._use_oov)) as found:
            for counts in found:
                yield from self._complete(waiting)
                first = waiting[0]
                if counts.any() and not self._use_oov:
                    self._fail(first.columns)
                first.filled += min(self.max_batch, len(first.scores) - first.filled)
                first.bad_ids += counts
                yield from self._complete(waiting)
        yield from self._complete(waiting)

    def _complete(self, waiting: deque[_Streamed]) -> Iterator[np.ndarray]:
        while waiting and waiting[0].filled == len(waiting[0].scores):
            done = waiting.popleft()
            self.bad_ids = done.bad_ids
            yield done.scores

    def _score_on_device(self, ids: Any, dense: Any) -> Any:
        runner = self._ready()
        if not isinstance(runner, CudaEngine):
            raise ValueError(f"the arrays are on a CUDA device, the engine runs on {self.device}")
        device = runner.options.device
        ids, dense, batch = engine_inputs.checked_device_inputs(self.spec, ids, dense, device)
        out = engine_inputs.empty_on_device(batch, device)
        self.bad_ids = np.zeros(len(self.spec.fields), np.int64)
        self.batch_seconds = []
        stream = engine_inputs.current_stream(dense if ids is None else ids, device)
        for start in range(0, batch, self.max_batch):
            began = time.perf_counter()
            rows = slice(start, min(start + self.max_batch, batch))
            whole = rows == slice(0, batch)
            i, d = (x if whole or x is None else x[:, rows] for x in (ids, dense))
            place, size = engine_inputs.address_of(out) + 4 * start, rows.stop - start
            counts, first = runner.run_on_device(i, d, place, size, self._use_oov, stream)
            self.bad_ids += counts
            self.batch_seconds.append(time.perf_counter() - began)
            if first is not None and not self._use_oov:
                row, field = first[0] + start, self.spec.fields[first[1]]
                raise BadIdError(field.name, row, int(ids[first[1], row]), field.rows)
        return out

    def describe(self) -> str:
        """The model and the plan that runs it, in words."""
        if self._runner is None:
            return "closed"
        return f"{self.spec.name}, precision {self.precision}, {self._runner.describe()}"

    def close(self) -> None:
        """Free the engine's memory; it cannot score any more."""
        if isinstance(self._runner, CudaEngine):
            self._runner.close()
        self._runner = None

    def _fail(self, columns: Sequence[np.ndarray]) -> None:
        """Raise for the first bad id, with the counts of the whole call."""
        rows = [field.rows for field in self.spec.fields]
        mask, self.bad_ids = _core.find_bad_ids(list(columns), rows)
        row = int(np.argmax(mask))
        for field, column in zip(self.spec.fields, columns, strict=True):
            value = int(column[row])
            if not 0 <= value < field.rows:
                raise BadIdError(field.name, row, value, field.rows)
        raise AssertionError("a bad id was counted but not found")


def load_engine(
    bundle: str | Path | Bundle,
    *,
    device: str = "auto",
    precision: Precision = "fp32",
    max_batch: int = 65536,
    streams: int = 4,
    graphs: bool = True,
    on_bad_id: Literal["fail", "oov"] = "fail",
    threads: int | None = None,
) -> Engine:
    """Open a bundle and make it ready to score.

    `device`: "cpu", "cuda", "cuda:1" for one of several GPUs, or "auto": a GPU where this build and
    the machine have one. `max_batch`: rows a device batch (larger inputs are cut); `streams` and
    `graphs`: how a GPU runs the plan, without effect on the CPU; `threads`: CPU threads, on the CPU
    set for the whole process (default: torch's setting), for a GPU those that pack batches.
    With `on_bad_id="oov"` every field needs an `oov_row`. The CPU computes in float32 whatever
    the precision, which is within the bound of each. RuntimeError where the GPU has too little
    memory.
    """
    gpu = _chosen_gpu(device)
    _check_choice("precision", precision, PRECISIONS)
    _check_choice("on_bad_id", on_bad_id, ("fail", "oov"))
    for name, value in (("max_batch", max_batch), ("streams", streams), ("threads", threads)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    if on_bad_id == "oov":
        without = [field.name for field in opened.spec.fields if field.oov_row is None]
        if without:
            raise ValueError(f"on_bad_id='oov' needs an oov_row in every field; none in {without}")
    if gpu is None:
        cpu = CpuEngine(lower(opened.spec, opened.weights()), max_batch, threads)
        return Engine(opened, cpu, precision, on_bad_id)
    options = CudaOptions(
        precision, max_batch, streams, graphs, "breadth_first", device=gpu, threads=threads
    )
    program = lower(opened.spec, opened.weights(), DEVICE_PASSES)
    return Engine(opened, CudaEngine(program, options), precision, on_bad_id)


def _chosen_gpu(device: str) -> int | None:
    """The number of the GPU, or None for the CPU."""
    count = _core.cuda_device_count() if "cuda" in DEVICES else 0
    if device == "cpu":
        return None
    if device == "auto":
        return 0 if count else None
    kind, _, number = device.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()) or device.endswith(":"):
        raise ValueError(f"device must be one of auto, cpu, cuda, cuda:<number>, got {device!r}")
    if "cuda" not in DEVICES:
        raise ValueError(f"device {device}: this build has no CUDA part; install one built by nvcc")
    if int(number or 0) >= count:
        raise ValueError(f"device {device}: this machine has {count} CUDA devices that can be used")
    return int(number or 0)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
