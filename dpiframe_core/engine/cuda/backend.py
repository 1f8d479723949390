"""The CUDA backend: a program on one GPU, its batches from host memory or from device memory."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpiframe_core import _core
from dpiframe_core.engine.batches import BadIds, DeviceSeconds, HostPart, TensorScorer
from dpiframe_core.engine.cuda.chain.grouping import chain_products, compiled_chains
from dpiframe_core.engine.cuda.choices import (
    chains_in_words,
    products_in_words,
    streams_in_words,
    whole_model_in_words,
)
from dpiframe_core.engine.cuda.device_layout import lay_out
from dpiframe_core.engine.cuda.device_program import Compiled, DeviceProgram
from dpiframe_core.engine.cuda.fold_norm import fold_norms
from dpiframe_core.engine.cuda.kernel_compiler import CompileError, KernelSource, find_compiler
from dpiframe_core.engine.cuda.mapped_linear import device_passes
from dpiframe_core.engine.cuda.page_scorer import SLOTS as UNIT_SLOTS
from dpiframe_core.engine.cuda.page_scorer import PageScorer
from dpiframe_core.engine.cuda.places import join_places
from dpiframe_core.engine.cuda.tile.grouping import TileGroup, group_steps, without_own
from dpiframe_core.engine.host_inputs import Columns
from dpiframe_core.engine.precision import bound_in_words
from dpiframe_core.lowering import COMPILED_PASSES
from dpiframe_core.lowering.device.fuse_dot import fuse_mapped_dot
from dpiframe_core.program.program import Program
from dpiframe_core.program.schedule import Policy

if TYPE_CHECKING:  # it brings torch, which batches from host memory do without
    from dpiframe_core.engine.cuda.device_arrays import DeviceArrays, Matrix

SLOTS = 3  # batches in flight: one copied in, one computed, one copied out

# Counts [F] of ids outside their tables, and the smallest (sample, field) with one.
Found = tuple[np.ndarray, tuple[int, int]]


@dataclass(frozen=True)
class CudaOptions:
    """How a program runs on a GPU. `threads`: host threads that pack batches (None: up to 16);
    `fused`: batches in a fused forward kernel, where the program, their size and the GPU allow it;
    `compiled`: groups of steps in kernels compiled for them, where there is NVRTC;
    `compiled_products`: there, and on Hopper, also products: sums of rows in their epilogues
    (`fold_norms`, `fuse_mapped_dot`), chains of them in one kernel, where that is faster.
    """

    precision: str = "fp32"
    max_batch: int = 65536
    streams: int = 4
    graphs: bool = True
    policy: Policy = "breadth_first"
    device: int = 0
    threads: int | None = None
    fused: bool = True
    compiled: bool = True
    compiled_products: bool = True


@dataclass(frozen=True)
class Faults:
    """For tests: a random delay before each step where the seed is not 0; a step that fails; how
    branches of the plan run, in place of the faster way.
    """

    delay_seed: int = 0
    refused_step: int = -1
    branches: Literal["measured", "side_by_side", "in_turn"] = "measured"


def _grouped(program: Program, options: CudaOptions) -> tuple[Program, Compiled, str]:
    """The program with groups of steps, the kernels of these, and what was done in words."""
    grouped = without_own(group_steps(program, options.precision)) if options.compiled else program
    groups = [step for step in grouped.steps if isinstance(step, TileGroup)]
    if not groups:
        return program, {}, "no steps to compile together"
    compiler = find_compiler()
    if compiler is None:
        return program, {}, "steps one by one: there is no NVRTC to compile groups of them"
    floats = grouped.float_buffers()
    kernels = [group.generate(program, floats, options.precision) for group in groups]
    sources = [KernelSource(g.name, k.source) for g, k in zip(groups, kernels, strict=True)]
    try:
        arch = _core.gpu_arch(options.device)
        cubins = compiler.compile_all(sources, arch, options.precision)
    except CompileError as error:  # the kernels compiled ahead give the same numbers
        warnings.warn(f"steps run one by one, more slowly: {error}", stacklevel=2)
        return program, {}, "steps one by one: compiling groups of them failed"
    compiled = {
        group.name: (kernel, cubin)
        for group, kernel, cubin in zip(groups, kernels, cubins, strict=True)
    }
    steps = sum(len(group.parts) for group in groups)
    return grouped, compiled, f"{steps} steps in {len(groups)} kernels compiled for them"


def _compiles_products(options: CudaOptions) -> bool:
    asked = options.compiled_products and options.compiled
    return asked and device_passes(options.device) is COMPILED_PASSES


def _chained(program: Program, options: CudaOptions) -> tuple[Program, dict[str, bytes]]:
    """The program with chains of products, and the cubins of their kernels."""
    if not _compiles_products(options):
        return program, {}
    chained = chain_products(program, options.precision, options.max_batch)
    try:
        return chained, compiled_chains(chained, options.precision)
    except CompileError as error:  # one by one they give the same numbers
        warnings.warn(f"products run one by one, more slowly: {error}", stacklevel=2)
        return program, {}


class CudaBackend:
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
        self._turn = _core.OneCaller()
        self.batch_seconds: list[float] = []
        self._scorers: list[_core.TensorScorer] = []
        faults = faults or Faults()
        if _compiles_products(options):
            program = fold_norms(fuse_mapped_dot(program), options.precision)
            program = join_places(program, options.precision)
        program, compiled, self._why = _grouped(program, options)
        program, chains = _chained(program, options)
        self.program = program
        self._layout = lay_out(
            program, options.precision, options.max_batch, options.streams, options.policy
        )
        made = DeviceProgram(self._layout, options.device, options.fused, compiled, chains)
        made.native.build(
            self._layout.schedule.plan,
            options.graphs,
            faults.delay_seed,
            faults.refused_step,
            faults.branches,
        )
        self._reports = made.reports
        self._native: Any = made.native
        self.fused_up_to: int = made.native.fused_up_to
        self.fused_above: int = made.native.fused_above
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
    def inputs(self) -> DeviceArrays:
        """Checks batches on the device and allocates their scores."""
        from dpiframe_core.engine.cuda.device_arrays import DeviceArrays

        program = self.program
        return DeviceArrays(len(program.field_rows), program.num_dense, self.options.device)

    def run(
        self, ids: Columns, dense: Columns, use_oov: bool, out: np.ndarray, scores: bool = False
    ) -> np.ndarray:
        """Write logits [B], or scores, of ids [F, B] and dense [N, B]; any B.

        Batches overlap as in `stream`, without Python between them. Returns the counts [F] of ids
        outside their tables.
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
        """Fill the scores (or logits) of each part of 1 to max_batch samples; yields its counts.

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
        counts [F] and the first (sample, field) with an id outside its table. B is 1 to max_batch;
        the shapes must fit. ValueError where the stream is being captured into a graph.
        """
        i, d, _ = self.inputs.matrices(ids, dense)
        found = self.run_in_place(i, d, out, batch, use_oov, stream)
        return (self._counts(None), None) if found is None else found

    def run_in_place(
        self, ids: Matrix, dense: Matrix, out: int, batch: int, use_oov: bool, stream: int
    ) -> Found | None:
        """`run_on_device` of matrices that `inputs` found; None where all ids are inside."""
        with self._turn:
            report = self._ring.run_in_place(
                ids[0],
                ids[1],
                ids[2] == 8,
                dense[0],
                dense[1],
                out,
                batch,
                use_oov,
                stream,
            )
        return None if report is None else (self._counts(report), self._first(report))

    def tensor_scorer(self, use_oov: bool) -> TensorScorer:
        """What scores tensors of torch in few calls."""
        import torch

        native = _core.TensorScorer(
            self._ring,
            self.inputs.tensors,
            self._turn,
            use_oov,
            self.inputs.scores,
            torch.is_inference_mode_enabled,
        )
        self._scorers.append(native)

        def bad_ids(ids: Any, report: np.ndarray) -> BadIds:
            return self._bad_ids(ids, (self._counts(report), self._first(report)), use_oov)

        return TensorScorer(native.score, bad_ids)

    def score_on_device(self, ids: Any, dense: Any, use_oov: bool) -> tuple[Any, BadIds | None]:
        """Scores [B] of arrays of any library on the GPU, and which ids were bad.

        Where bad ids are not to be scored, it stops at the first batch of `max_batch` that has one.
        """
        began = perf_counter()
        inputs = self.inputs
        ids, dense = inputs.array(ids), inputs.array(dense)
        i, d, batch = inputs.matrices(ids, dense)
        source = ids if self.program.field_rows else dense
        stream = inputs.stream(source)
        out, address = inputs.scores(batch)
        self.batch_seconds = []
        counts, first = np.zeros(len(self.program.field_rows), np.int64), None
        for start in range(0, batch, self.max_batch):
            size = min(self.max_batch, batch - start)
            found = self.run_in_place(i, d, address + 4 * start, size, use_oov, stream)
            ended = perf_counter()
            self.batch_seconds.append(ended - began)
            began = ended
            if found is not None:
                counts = counts + found[0]
                first = first or (start + found[1][0], found[1][1])
                if not use_oov:
                    break
            if start + size < batch:
                i, d = _moved(i, size), _moved(d, size)
        return out, None if first is None else self._bad_ids(ids, (counts, first), use_oov)

    def start_on_device(
        self, ids: Any, dense: Any, out: int, batch: int, use_oov: bool, stream: int = 0
    ) -> None:
        """`run_on_device` without the wait: batches started one behind the other keep the GPU busy.

        All memory must stay as it is until `finish_on_device`.
        """
        i, d, _ = self.inputs.matrices(ids, dense)
        with self._turn:
            self._ring.start_in_place(
                i[0], i[1], i[2] == 8, d[0], d[1], out, batch, use_oov, stream
            )

    def finish_on_device(self) -> np.ndarray:
        """Wait for all that was started; the counts [F] of all ids outside their tables."""
        with self._turn:
            return self._counts(self._ring.finish_in_place())

    def page_scorer(self, use_oov: bool) -> PageScorer:
        """What scores ids that are still parquet pages; threads may use it beside the engine's
        caller, but not while batches on the device are scored.
        """
        program = self.program
        native = _core.PageScorer(
            self._native, self._ring, len(program.field_rows), program.num_dense, UNIT_SLOTS
        )
        return PageScorer(native, self._counts, use_oov)

    def poison(self) -> None:
        """For tests: fill the arena with NaN, so that what nothing wrote shows."""
        self._native.poison()

    def describe(self) -> str:
        """The plan, in words."""
        o = self.options
        how = "CUDA graphs" if o.graphs else "launches"
        least = f"more than {self.fused_above} and " if self.fused_above else ""
        fused = f"those of {least}up to {self.fused_up_to} in one kernel, "
        whole = whole_model_in_words(
            self.program, o.precision, o.fused, self.fused_up_to, o.max_batch
        )
        return (
            f"{self.device}, {o.precision}, batches of up to {o.max_batch} rows as {how}, "
            f"{fused if self.fused_up_to else ''}"
            f"{self.device_bytes} bytes on the device, {self.arena_bytes} of them the arena\n"
            f"{bound_in_words(o.precision, self.program)}\n"
            f"{whole}\n"
            f"{self._why}\n"
            f"{chains_in_words(self.program, o.precision)}\n"
            f"{products_in_words(self.program, o.precision, o.max_batch)}\n"
            f"{self.program}\n{self._layout.schedule.plan}"
            f"{streams_in_words(self._native.buckets_in_turn)}"
        )

    def close(self) -> None:
        """Free all memory of the device."""
        for scorer in self._scorers:  # a traceback may hold them
            scorer.close()
        self._scorers.clear()
        self._ring = self._native = None

    def _counts(self, report: np.ndarray | None) -> np.ndarray:
        """Ids outside their tables by field; counters start at -1."""
        counts = np.zeros(len(self.program.field_names), np.int64)
        if report is None:
            return counts
        for lookup in self._reports:
            found = report[lookup.offset :][: len(lookup.fields)] + 1
            np.maximum.at(counts, list(lookup.fields), found)
        return counts

    def _first(self, report: np.ndarray) -> tuple[int, int]:
        """The smallest (sample, field) with an id outside its table."""
        found = []
        for lookup in self._reports:
            first = int(report[lookup.offset + len(lookup.fields)])
            if first >= 0:
                sample, slot = divmod(first, len(lookup.fields))
                found.append((sample, lookup.fields[slot]))
        return min(found)

    def _bad_ids(self, ids: Any, found: Found, use_oov: bool) -> BadIds:
        counts, (sample, field) = found
        if use_oov:
            return BadIds(counts, None)
        if not hasattr(ids, "__getitem__"):
            import torch

            ids = torch.as_tensor(ids, device=self.device)
        return BadIds(counts, (sample, field, int(ids[field, sample])))


def _moved(matrix: Matrix, columns: int) -> Matrix:
    """The matrix from a later column on."""
    address, stride, number_bytes = matrix
    return address + columns * number_bytes, stride, number_bytes
