"""The CPU backend of small jobs: numpy in place of torch, whose import takes seconds.

It computes the steps that lowering makes of the built-in modules, each as its `run` does in torch;
programs with other steps are not `fit` for it. Lookups go through the compiled multi-table lookup.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from dpiframe_core.engine.compiled_lookup import CompiledLookup, FastTables
from dpiframe_core.engine.host_inputs import Columns
from dpiframe_core.engine.precision import bound_in_words
from dpiframe_core.engine.tiled import TiledBackend
from dpiframe_core.program import steps as p
from dpiframe_core.program.program import Program
from dpiframe_core.program.views import DENSE, View

TILE = 4096  # samples, so that activations stay in the last-level cache


class LightCpuBackend(TiledBackend):
    """See `TiledBackend`; `fits` says which programs it runs."""

    def __init__(self, program: Program, max_batch: int, threads: int | None) -> None:
        super().__init__(program, max_batch, TILE)
        self.threads = threads or len(os.sched_getaffinity(0))
        self._weights = {n: np.asarray(w, np.float32) for n, w in program.weights.items()}
        self._doubles = {
            step.name: self._weights[step.weight].astype(np.float64)
            for step in program.steps
            if isinstance(step, p.Linear) and exact_columns(program, step.out)
        }
        tables = FastTables(self._weights)
        self._lookups = {
            step.name: CompiledLookup(step, program, tables, self.threads)
            for step in program.steps
            if isinstance(step, p.Lookup)
        }
        self._buffers: dict[str, np.ndarray] = {}

    def describe(self) -> str:
        """The plan, in words."""
        return (
            f"cpu, float32, numpy, {self.threads} threads, tiles of {self.tile} rows\n"
            f"{bound_in_words('fp32', self.program)}\n{self.program}"
        )

    def _run_tile(
        self, ids: Columns, dense: Columns, use_oov: bool, logits: np.ndarray
    ) -> np.ndarray:
        batch = len(logits)
        widths = self.program.buffers.items()
        self._buffers = {name: np.empty((batch, width), np.float32) for name, width in widths}
        numbers = np.stack(list(dense), axis=1) if len(dense) else np.empty((batch, 0), np.float32)
        self._buffers[DENSE] = numbers
        counts = np.zeros(len(self.program.field_names), np.int64)
        with np.errstate(all="ignore"):  # what overflows is found in the scores
            for step in self.program.steps:
                if isinstance(step, p.Lookup):
                    found = self._lookups[step.name].run(ids, self._array, use_oov)
                    counts = np.maximum(counts, found)
                else:
                    COMPUTATIONS[type(step)](self, step)
        logits[:] = self._array(self.program.output)[:, 0]
        return counts

    def _array(self, view: View) -> np.ndarray:
        return self._buffers[view.buffer][:, view.start : view.start + view.width]

    def _linear(self, step: p.Linear) -> None:
        x, out = self._array(step.x), self._array(step.out)
        np.matmul(x, self._weights[step.weight].T, out=out)
        if step.name in self._doubles:
            columns = exact_columns(self.program, step.out)
            out[:, columns] = x.astype(np.float64) @ self._doubles[step.name][columns].T
        if step.bias:
            out += self._weights[step.bias]
        for start, stop in step.relu:
            np.maximum(out[:, start:stop], 0, out=out[:, start:stop])

    def _head(self, step: p.Head) -> None:
        out = self._array(step.out)
        out[:] = self._weights[step.bias] if step.bias else 0.0
        for x, weight in step.dots:
            out[:, 0] += self._array(x) @ self._weights[weight]
        for scalar in step.scalars:
            out += self._array(scalar)
        for a, b in step.products:
            out += self._array(a) * self._array(b)

    def _batch_norm(self, step: p.BatchNorm) -> None:
        weight, bias, mean, var = (self._weights[part] for part in step.parts)
        scale = weight / np.sqrt(var + np.float32(step.eps))
        self._array(step.out)[:] = (self._array(step.x) - mean) * scale + bias

    def _copy(self, step: p.Copy | p.LoadDense) -> None:
        self._array(step.out)[:] = self._array(step.x)

    def _relu(self, step: p.Relu) -> None:
        np.maximum(self._array(step.x), 0, out=self._array(step.out))

    def _outer(self, step: p.Outer) -> None:
        out, weight = self._array(step.out), self._weights[step.weight]
        out[:] = (self._array(step.x)[:, :, None] * weight).reshape(out.shape)

    def _affine(self, step: p.Affine) -> None:
        scaled = self._array(step.x) * self._weights[step.scale]
        self._array(step.out)[:] = scaled + self._weights[step.shift]

    def _add(self, step: p.Add) -> None:
        out = self._array(step.out)
        out[:] = sum(self._array(x) for x in step.xs)
        if step.bias:
            out += self._weights[step.bias]

    def _fm(self, step: p.FM) -> None:
        found = [self._array(x).reshape(len(self._array(x)), -1, step.dim) for x in step.xs]
        v = np.concatenate(found, axis=1).astype(np.float64)
        total = np.square(v.sum(1)) - np.square(v).sum(1)
        self._array(step.out)[:, 0] = 0.5 * total.sum(1)

    def _cross_v1(self, step: p.CrossV1) -> None:
        x0, xl = self._array(step.x0), self._array(step.xl)
        scale = xl @ self._weights[step.weight].T
        self._array(step.out)[:] = xl + self._weights[step.bias] + x0 * scale

    def _cross_combine(self, step: p.CrossCombine) -> None:
        product = self._array(step.x0) * self._array(step.wx)
        self._array(step.out)[:] = self._array(step.xl) + product

    def _cross_scalar(self, step: p.CrossScalar) -> None:
        dots, shift = self._array(step.dots), self._weights[step.shift]
        alpha = np.ones_like(dots[:, :1])
        for layer in range(step.dots.width):
            alpha = alpha + alpha * dots[:, layer : layer + 1] + shift[layer]
        self._array(step.out)[:] = alpha

    def _scale_shift(self, step: p.ScaleShift) -> None:
        scaled = self._array(step.x) * self._array(step.alpha)
        self._array(step.out)[:] = scaled + self._weights[step.beta]


COMPUTATIONS: dict[type[p.Step], Callable[[LightCpuBackend, Any], None]] = {
    p.LoadDense: LightCpuBackend._copy,
    p.Linear: LightCpuBackend._linear,
    p.Head: LightCpuBackend._head,
    p.BatchNorm: LightCpuBackend._batch_norm,
    p.Copy: LightCpuBackend._copy,
    p.Relu: LightCpuBackend._relu,
    p.Outer: LightCpuBackend._outer,
    p.Affine: LightCpuBackend._affine,
    p.Add: LightCpuBackend._add,
    p.FM: LightCpuBackend._fm,
    p.CrossV1: LightCpuBackend._cross_v1,
    p.CrossCombine: LightCpuBackend._cross_combine,
    p.CrossScalar: LightCpuBackend._cross_scalar,
    p.ScaleShift: LightCpuBackend._scale_shift,
}


def fits(program: Program) -> bool:
    """Whether every step is one that `LightCpuBackend` computes."""
    return all(isinstance(s, p.Lookup) or type(s) in COMPUTATIONS for s in program.steps)


def exact_columns(program: Program, out: View) -> list[int]:
    """Columns of a product that later steps multiply with one another: a cross network's dots.

    Their rounding errors multiply too, so they are summed in double.
    """
    factors = [s.dots for s in program.steps if isinstance(s, p.CrossScalar)]
    factors += [x for s in program.steps if isinstance(s, p.Head) for _, x in s.products]
    inside = [view for view in factors if view.overlaps(out)]
    return [view.start + i - out.start for view in inside for i in range(view.width)]
