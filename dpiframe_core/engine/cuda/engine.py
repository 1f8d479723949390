"""The CUDA engine: a program on one GPU, its batches from host memory or from device memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpiframe_core import _core
from dpiframe_core.engine.cuda.layout import lay_out
from dpiframe_core.engine.cuda.program import DeviceProgram
from dpiframe_core.engine.cuda.stored_scorer import SLOTS as SLOTS_OF_UNITS
from dpiframe_core.engine.cuda.stored_scorer import StoredScorer
from dpiframe_core.engine.host_inputs import Columns
from dpiframe_core.engine.one_caller import OneCaller
from dpiframe_core.program.schedule import Policy
from dpiframe_core.program.steps import Program

if TYPE_CHECKING:
    from dpiframe_core.engine.cuda.inputs import DeviceInputs, Matrix

SLOTS = 3  # batches in flight: one copied in, one computed, one copied out

# Ids [F, B], dense [N, B], and where the scores [B] go.
HostPart = tuple[Columns, Columns, np.ndarray]
# Ids outside their tables: how many a field [F], and the smallest (row, field).
BadIds = tuple[np.ndarray, tuple[int, int]]


class DeviceSeconds(NamedTuple):
    """Time on a GPU by what it did; the three overlap between neighbouring batches."""

    copy_in: float = 0.0
    compute: float = 0.0
    copy_out: float = 0.0


@dataclass(frozen=True)
class CudaOptions:
    """How a program runs on a GPU. `threads`: host threads that pack batches (None: up to 16);
    `one_kernel`: batches in one kernel, where the program, their size and the GPU allow it.
    """

    precision: str = "fp32"
    max_batch: int = 65536
    streams: int = 4
    graphs: bool = True
    policy: Policy = "breadth_first"
    device: int = 0
    threads: int | None = None
    one_kernel: bool = True


@dataclass(frozen=True)
class Faults:
    """For tests: a random delay before each step where the seed is not 0; a step that fails."""

    delay_seed: int = 0
    refused_step: int = -1


class CudaEngine:
    """Runs one program; one caller at a time.

    DeviceMemoryError where the GPU has too little memory; RuntimeError where CUDA fails, in a
    second thread at the same time, and in a fork of the loading process. After a failed run the
    engine refuses further ones, and `close` still frees what it holds.
    """

    def __init__(
        self, program: Program, options: CudaOptions, faults: Faults | None = None
    ) -> None:
        self.program, self.options = program, options
        self.device, self.max_batch = f"cuda:{options.device}", options.max_batch
        self._turn = OneCaller()
        self.batch_seconds: list[float] = []
        faults = faults or Faults()
        self._layout = lay_out(
            program, options.precision, options.max_batch, options.streams, options.policy
        )
        made = DeviceProgram(self._layout, options.device, options.one_kernel)
        made.native.build(
            self._layout.schedule.plan, options.graphs, faults.delay_seed, faults.refused_step
        )
        self._reports = made.reports
        self._native: Any = made.native
        self.one_kernel_rows: int = made.native.fused_up_to
        self.one_kernel_beyond: int = made.native.fused_above
        self._ring: Any = _core.BatchRing(
            made.native,
            SLOTS,
            list(program.field_rows),
            program.num_dense,
            options.threads or 0,
        )
        self.device_bytes: int = self._native.device_bytes + self._ring.device_bytes
        self.arena_bytes: int = self._layout.schedule.arena_bytes

    @cached_property
    def inputs(self) -> DeviceInputs:
        """What finds batches on the device; it brings torch, which the others do without."""
        from dpiframe_core.engine.cuda.inputs import DeviceInputs

        program = self.program
        return DeviceInputs(len(program.field_rows), program.num_dense, self.options.device)

    def run(
        self,
        ids: Columns,
        dense: Columns,
        use_oov: bool,
        out: np.ndarray,
        scores: bool = False,
    ) -> np.ndarray:
        """Write logits [B], or scores, of ids [F, B] and dense [N, B]; B may be beyond max_batch.

        Batches overlap as in `stream`, without Python between them. Returns the counts [F] of ids
        outside their tables; `batch_seconds` is then of this call.
        """
        with self._turn:
            self.batch_seconds, reports = self._ring.run(
                ids, dense, out, self.max_batch, use_oov, not scores
            )
        counts = np.zeros(len(self.program.field_names), np.int64)
        for report in reports:
            counts += self._counts(report)
        return counts

    def stream(
        self, parts: Iterable[HostPart], use_oov: bool, scores: bool = True
    ) -> Generator[np.ndarray, None, None]:
        """Fill the scores (or logits) of each part of 1 to max_batch rows; yields its counts [F].

        Copy in, compute and copy out of neighbouring parts overlap; the order is kept. The GPU
        reads page-locked arrays itself: a part must stay as it is until its counts come. The engine
        serves nobody else until the stream has ended.
        """
        with self._turn:
            yield from self._stream(parts, use_oov, scores)

    def _stream(
        self, parts: Iterable[HostPart], use_oov: bool, scores: bool
    ) -> Generator[np.ndarray, None, None]:
        waiting: deque[tuple[int, HostPart]] = deque()  # keeps the memory that the GPU reads

        def collect() -> np.ndarray:
            slot, part = waiting.popleft()
            return self._counts(self._ring.collect(slot, part[2]))

        try:
            for part in parts:
                if len(waiting) == SLOTS:
                    yield collect()
                ids, dense, out = part
                slot = self._ring.submit(ids, dense, len(out), use_oov, not scores)
                waiting.append((slot, part))
            while waiting:
                yield collect()
        finally:  # whoever stops early leaves the ring empty too
            while waiting and self._ring is not None:
                collect()

    def take_seconds(self) -> DeviceSeconds:
        """Of the batches from host memory since the last call, by the GPU's clock.

        Compute includes what its launch took where the GPU waited for that.
        """
        return DeviceSeconds(*self._ring.take_seconds())

    def run_on_device(
        self, ids: Any, dense: Any, out: int, batch: int, use_oov: bool, stream: int = 0
    ) -> tuple[np.ndarray, tuple[int, int] | None]:
        """Write scores [B], at the address `out`, of ids [F, B] and dense [N, B] on the device.

        Runs on `stream` after what that holds so far and returns when all is done. Returns the
        counts [F] and the first (row, field) with an id outside its table. B is 1 to max_batch; the
        shapes must fit. ValueError where the stream is being captured into a graph.
        """
        i, d, _ = self.inputs.places(ids, dense)
        found = self.run_in_place(i, d, out, batch, use_oov, stream)
        return (self._counts(None), None) if found is None else found

    def run_in_place(
        self, ids: Matrix, dense: Matrix, out: int, batch: int, use_oov: bool, stream: int
    ) -> BadIds | None:
        """`run_on_device` of matrices that `inputs` found; None where all ids are inside."""
        with self._turn:
            ahead = self.inputs.make_scores_ahead
            report = self._ring.run_in_place(
                ids[0], ids[1], ids[2] == 8, dense[0], dense[1], out, batch, use_oov, stream, ahead
            )
        return None if report is None else (self._counts(report), self._first(report))

    def score_tensors(
        self, ids: Any, dense: Any, use_oov: bool
    ) -> tuple[Any, BadIds | None] | None:
        """Scores [B] of ids [F, B] and dense [N, B], and what `run_in_place` returns.

        None where that has to be found out step by step: the arrays are no tensors of torch on this
        device, or do not fit, or B is not in 1 .. max_batch.
        """
        inputs = self.inputs
        with self._turn:
            found = self._ring.score_tensors(
                inputs.tensors, ids, dense, use_oov, inputs.scores, inputs.make_scores_ahead
            )
        if found is None:
            return None
        out, report = found
        return out, None if report is None else (self._counts(report), self._first(report))

    def start_on_device(
        self, ids: Any, dense: Any, out: int, batch: int, use_oov: bool, stream: int = 0
    ) -> None:
        """`run_on_device` without the wait: batches started one behind the other keep the GPU busy.

        All memory must stay as it is until `finish_on_device`.
        """
        i, d, _ = self.inputs.places(ids, dense)
        with self._turn:
            self._ring.start_in_place(
                i[0], i[1], i[2] == 8, d[0], d[1], out, batch, use_oov, stream
            )

    def finish_on_device(self) -> np.ndarray:
        """Wait for all that was started; the counts [F] of all ids outside their tables."""
        with self._turn:
            return self._counts(self._ring.finish_in_place())

    def stored_scorer(self, use_oov: bool) -> StoredScorer:
        """What scores ids as parquet stores them; threads may use it beside the engine's caller.

        Not while batches on the device are scored.
        """
        program = self.program
        native = _core.PageScorer(
            self._native, self._ring, len(program.field_rows), program.num_dense, SLOTS_OF_UNITS
        )
        return StoredScorer(native, self._counts, use_oov)

    def poison(self) -> None:
        """For tests: fill the arena with NaN, so that what nothing wrote shows."""
        self._native.poison()

    def describe(self) -> str:
        """The plan, in words."""
        o = self.options
        how = "CUDA graphs" if o.graphs else "launches"
        rows, beyond = self.one_kernel_rows, self.one_kernel_beyond
        least = f"more than {beyond} and " if beyond else ""
        small = f"those of {least}up to {rows} in one kernel, " if rows else ""
        return (
            f"{self.device}, {o.precision}, batches of up to {o.max_batch} rows as {how}, {small}"
            f"{self.device_bytes} bytes on the device, {self.arena_bytes} of them the arena\n"
            f"{self.program}\n{self._layout.schedule.plan}"
        )

    def close(self) -> None:
        """Free all memory of the device."""
        self._ring = self._native = None
        vars(self).pop("inputs", None)  # it may hold scores made ahead

    def _counts(self, report: np.ndarray | None) -> np.ndarray:
        """Ids outside their tables by field; counters start at -1."""
        counts = np.zeros(len(self.program.field_names), np.int64)
        if report is None:
            return counts
        for lookup in self._reports:
            found = report[lookup.place :][: len(lookup.fields)] + 1
            np.maximum.at(counts, list(lookup.fields), found)
        return counts

    def _first(self, report: np.ndarray) -> tuple[int, int]:
        """The smallest (row, field) with an id outside its table."""
        places = []
        for lookup in self._reports:
            first = int(report[lookup.place + len(lookup.fields)])
            if first >= 0:
                row, slot = divmod(first, len(lookup.fields))
                places.append((row, lookup.fields[slot]))
        return min(places)
