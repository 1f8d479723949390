"""The CPU backend: a program run tile by tile, so that activations stay in the last-level cache.

Lookups go through the compiled multi-table lookup, linear layers through oneDNN with weights packed
once where torch has it, everything between them through compiled groups of steps
(`cpu_group`), whose own activations stay in a core's cache. What is left is the interpreter's.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpiframe_core.engine.compiled_lookup import CompiledLookup, FastTables
from dpiframe_core.engine.cpu_group import CpuGroup, compiled, find_groups, own_buffers
from dpiframe_core.engine.host_inputs import Columns
from dpiframe_core.engine.light_cpu import exact_columns
from dpiframe_core.engine.precision import bound_in_words
from dpiframe_core.engine.tiled import TiledBackend
from dpiframe_core.program import steps as p
from dpiframe_core.program.interpreter import as_tensor
from dpiframe_core.program.program import Program
from dpiframe_core.program.schedule import Schedule, schedule
from dpiframe_core.program.views import DENSE, State, View

TILE = 4096  # samples; larger ones gain nothing, smaller ones pay more per step
LEAST_TILE = 1024
ARENA_BYTES = 2**25  # beyond it, activations leave the last-level cache between steps


class CpuBackend(TiledBackend):
    """See `TiledBackend`.

    `threads` becomes torch's number of threads, which is one for the whole process.
    """

    def __init__(self, program: Program, max_batch: int, threads: int | None) -> None:
        super().__init__(program, max_batch, min(max_batch, TILE))
        if threads is not None:
            torch.set_num_threads(threads)
        self.threads = torch.get_num_threads()
        weights = {n: as_tensor(w, np.float32) for n, w in program.weights.items()}
        arrays = {name: weight.numpy() for name, weight in weights.items()}
        packed = _packed_products(program)
        groups = find_groups(program, program.steps)
        outside = packed | own_buffers(program, groups)
        self.schedule = _schedule(program, self.tile, outside, groups)
        while self.schedule.arena_bytes > ARENA_BYTES and self.tile > LEAST_TILE:
            self.tile = max(self.tile // 2, LEAST_TILE)
            self.schedule = _schedule(program, self.tile, outside, groups)
        planned = [groups[planned.step] for planned in self.schedule.plan.steps]
        self._arena = torch.empty(self.schedule.arena_bytes, dtype=torch.uint8)
        self._state = State({}, weights, torch.empty(0))
        self._lookups: dict[str, CompiledLookup] = {}
        tables = FastTables(arrays)
        self._parts: list[_Part] = []
        own = own_buffers(program, groups)
        for group in planned:
            step = group[0]
            if isinstance(step, p.Lookup):
                self._lookups[step.name] = CompiledLookup(step, program, tables, self.threads)
                self._parts.append(step)
            elif isinstance(step, p.Linear) and step.out.buffer in packed:
                exact = exact_columns(program, step.out)
                self._parts.append(_PackedProduct(step, weights, self.tile, exact))
            else:
                self._parts.append(compiled(program, group, own, self.threads) or step)

    def _run_tile(
        self, ids: Columns, dense: Columns, use_oov: bool, logits: np.ndarray
    ) -> np.ndarray:
        batch = len(logits)
        self._state.buffers = self._buffers(batch)
        numbers = np.stack(list(dense), axis=1) if len(dense) else np.empty((batch, 0), np.float32)
        self._state.buffers[DENSE] = torch.from_numpy(numbers)
        counts = np.zeros(len(self.program.field_names), np.int64)
        for part in self._parts:
            if isinstance(part, p.Lookup):
                found = self._lookups[part.name].run(ids, self._array, use_oov)
                counts = np.maximum(counts, found)
            elif isinstance(part, CpuGroup):
                part.run(self._state, batch)
            else:
                part.run(self._state)
        logits[:] = self._state[self.program.output].numpy().reshape(logits.shape)
        return counts

    def _array(self, view: View) -> np.ndarray:
        return self._state[view].numpy()

    def _buffers(self, batch: int) -> dict[str, Tensor]:
        """The arena cut into buffers of `batch` samples."""
        views = {}
        for name, offset in self.schedule.offsets.items():
            width = self.program.buffers[name]
            flat = self._arena[offset : offset + 4 * width * batch].view(torch.float32)
            views[name] = flat.view(batch, width)
        return views

    def describe(self) -> str:
        """The plan, in words."""
        return (
            f"cpu, float32, {self.threads} threads, tiles of {self.tile} rows, "
            f"arena {self.schedule.arena_bytes} bytes\n{bound_in_words('fp32', self.program)}\n"
            f"{self.program}\n{self.schedule.plan}"
        )


def _schedule(
    program: Program, batch: int, outside: frozenset[str], groups: list[list[p.Step]]
) -> Schedule:
    return schedule(program, batch, 1, "serial", outside, groups=groups)


def _packed_products(program: Program) -> frozenset[str]:
    """Buffers that one packed product alone writes: they are its own memory, not the arena's."""
    if not torch.backends.mkldnn.is_available():
        return frozenset()
    return frozenset(
        s.out.buffer
        for s in program.steps
        if isinstance(s, p.Linear) and s.out.width == program.buffers[s.out.buffer]
    )


class _PackedProduct:
    """One Linear through oneDNN: weights in its blocked layout, bias and ReLU in its epilogue."""

    def __init__(
        self, step: p.Linear, weights: dict[str, Tensor], batch: int, exact: list[int]
    ) -> None:
        self.step, self.exact = step, exact
        self.exact_weight = weights[step.weight][exact].double().T.contiguous()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weights[step.weight], batch)
        self.bias = weights[step.bias] if step.bias else None
        self.fused = step.relu == ((0, step.out.width),)

    def run(self, state: State) -> None:
        """Compute the product; its result becomes the buffer."""
        x = state[self.step.x]
        activation = "relu" if self.fused else "none"
        out = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, activation, [], "")
        for start, stop in () if self.fused else self.step.relu:
            out[:, start:stop].relu_()
        if self.exact:  # these have neither a ReLU nor a bias
            out[:, self.exact] = (x.double() @ self.exact_weight).float()
        state.buffers[self.step.out.buffer] = out


_Part = p.Step | _PackedProduct | CpuGroup
