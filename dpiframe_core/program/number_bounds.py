"""How large a program's numbers can become, and so whether fp16 holds them all.

bf16 has float32's range and three bits of mantissa less than fp16, which takes the same bytes and
the same time. Where the weights show that nothing becomes too large for fp16, scores are some eight
times as near by it (docs/engine.md). Numbers below 6e-8, which bf16 would keep, become 0.

A bound is the largest magnitude of each column of a buffer, by sums of magnitudes from the tables
on, whatever the ids: wide of the truth, which does no harm, for a model's numbers are near 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from dpiframe_core.engine.cuda.device_layout import float_buffers
from dpiframe_core.engine.cuda.steps import FusedLinear, LoadDense
from dpiframe_core.features.schema import FeatureSchema
from dpiframe_core.model.modules import DENSE
from dpiframe_core.program import steps as p
from dpiframe_core.program.steps import Program, View

# fp16 holds up to 65,504: roundings on the way are within the factor of two.
MOST = 2.0**15
# Below 2^-14 fp16 loses bits. Where the largest number of a table, of a product's weight or of what
# a step may write is smaller than this, many that matter may be down there.
LEAST = 2.0**-8
THREADS = 8


class Bounds:
    """The largest magnitude of each column of each buffer, infinite where not known, and of each
    lookup's and product's weight.
    """

    def __init__(self, program: Program, dense: Sequence[float]) -> None:
        self._weights = program.weights
        self._columns = {name: np.full(width, np.inf) for name, width in program.buffers.items()}
        self._columns[DENSE] = np.asarray(dense, np.float64)
        names = sorted(_kept_in_halves(program) | _wide_weights(program))
        with ThreadPoolExecutor(THREADS) as pool:  # tables are large; numpy lets go of the GIL
            sizes = pool.map(lambda name: _largest(program.weights[name]), names)
            self.largest = dict(zip(names, sizes, strict=True))

    def __getitem__(self, view: View) -> np.ndarray:
        return self._columns[view.buffer][view.start : view.start + view.width]

    def __setitem__(self, view: View, bounds: np.ndarray | float) -> None:
        self[view][:] = bounds

    def size(self, weight: str | None) -> Any:
        """Magnitudes of a weight's numbers; 0 for none."""
        return np.abs(self._weights[weight].astype(np.float64)) if weight else 0.0


def holds_in_fp16(program: Program, dense: Sequence[float]) -> bool:
    """Whether fp16 can keep every number that a GPU keeps in 16 bits.

    `dense` [N]: the largest magnitude of each dense feature, infinite where it is not known. A step
    of a kind that is not known here is no proof.
    """
    bounds = Bounds(program, dense)
    if not all(_is_held(bounds.largest[name]) for name in _kept_in_halves(program)):
        return False
    floats = float_buffers(program)
    for step in program.steps:
        if type(step) not in STEPS:
            return False
        with np.errstate(invalid="ignore", over="ignore"):  # infinity times 0: no bound either
            STEPS[type(step)](step, bounds)
        halves = [view for view in step.writes() if view.buffer not in floats]
        if not all(_is_held(bounds[view].max()) for view in halves):
            return False
    return True


def _is_held(largest: float) -> bool:
    """False for NaN, which is no bound."""
    return largest == 0 or LEAST <= largest <= MOST


def arithmetic(precision: str, program: Program, schema: FeatureSchema | None) -> str:
    """What a GPU computes in: fp16 for bf16 where fp16 holds every number, else as asked for."""
    if precision != "bf16":
        return precision
    dense = dense_bounds(schema, program.num_dense)
    return "fp16" if holds_in_fp16(program, dense) else precision


def dense_bounds(schema: FeatureSchema | None, num_dense: int) -> list[float]:
    """The largest magnitude of each dense feature, as the schema makes it of any finite number."""
    if schema is None:
        return [np.inf] * num_dense
    largest = {"none": np.inf, "log1p": np.log1p(np.finfo(np.float64).max)}
    return [max((largest[d.transform] + abs(d.mean)) / d.std, abs(d.fill)) for d in schema.dense]


def _kept_in_halves(program: Program) -> set[str]:
    """Tables and weights of products."""
    slots = [slot for s in program.steps if isinstance(s, p.Lookup) for slot in s.slots]
    products = [s for s in program.steps if isinstance(s, (p.Linear, FusedLinear))]
    return {slot.table for slot in slots if slot.table} | {s.weight for s in products}


def _wide_weights(program: Program) -> set[str]:
    slots = [slot for s in program.steps if isinstance(s, p.Lookup) for slot in s.slots]
    return {slot.wide for slot in slots if slot.wide}


def _largest(weight: np.ndarray) -> float:
    """The largest magnitude, NaN if there is one; without a copy of what may be a large table."""
    return float(np.maximum(weight.max(), -weight.min())) if weight.size else 0.0


def _lookup(step: p.Lookup, bounds: Bounds) -> None:
    fm: dict[int, float] = {}
    for slot in step.slots:
        if slot.table is None or step.out is None:
            continue
        bounds[step.out.columns(slot.column, slot.dim)] = bounds.largest[slot.table]
        if slot.in_fm:
            fm[slot.dim] = fm.get(slot.dim, 0.0) + bounds.largest[slot.table]
    if step.fm_out:
        bounds[step.fm_out] = sum(0.5 * dim * total**2 for dim, total in fm.items())
    if step.wide_out:
        bounds[step.wide_out] = sum(bounds.largest[slot.wide] for slot in step.slots if slot.wide)


def _linear(step: p.Linear | FusedLinear, bounds: Bounds) -> None:
    out = bounds.size(step.weight) @ bounds[step.x] + bounds.size(step.bias)
    if isinstance(step, FusedLinear):
        if step.x0 and step.xl:
            part = out[step.cross_start :][: step.x0.width]
            part[:] = bounds[step.x0] * part + bounds[step.xl]
        if step.head and step.head_out:
            head = bounds.size(step.head)
            bounds[step.head_out] = out[step.head_start :][: len(head)] @ head
    if step.out:
        bounds[step.out] = out


def _batch_norm(step: p.BatchNorm, bounds: Bounds) -> None:
    weight, bias, mean, variance = (bounds.size(part) for part in step.parts)
    scale = weight / np.sqrt(variance + step.eps)
    bounds[step.out] = (bounds[step.x] + mean) * scale + bias


def _fm(step: p.FM, bounds: Bounds) -> None:
    total = sum(bounds[x].reshape(-1, step.dim).sum(0) for x in step.xs)
    bounds[step.out] = 0.5 * np.square(total).sum()


def _cross_v1(step: p.CrossV1, bounds: Bounds) -> None:
    dot = bounds.size(step.weight) @ bounds[step.xl]
    bounds[step.out] = bounds[step.x0] * dot + bounds.size(step.bias) + bounds[step.xl]


def _cross_scalar(step: p.CrossScalar, bounds: Bounds) -> None:
    alpha = 1.0
    for dot, shift in zip(bounds[step.dots], bounds.size(step.shift), strict=True):
        alpha = alpha * (1 + dot) + shift
    bounds[step.out] = alpha


def _head(step: p.Head, bounds: Bounds) -> None:
    total = float(np.sum(bounds.size(step.bias)))
    total += sum(bounds[x] @ bounds.size(weight) for x, weight in step.dots)
    total += sum(bounds[x].item() for x in step.scalars)
    bounds[step.out] = total + sum(bounds[a] @ bounds[b] for a, b in step.products)


def _set(bounds: Bounds, out: View, value: np.ndarray) -> None:
    bounds[out] = value


STEPS: Mapping[type[p.Step], Callable[[Any, Bounds], None]] = {
    p.Lookup: _lookup,
    p.Linear: _linear,
    FusedLinear: _linear,
    p.BatchNorm: _batch_norm,
    p.FM: _fm,
    p.CrossV1: _cross_v1,
    p.CrossScalar: _cross_scalar,
    p.Head: _head,
    LoadDense: lambda s, b: _set(b, s.out, b[s.x]),
    p.Copy: lambda s, b: _set(b, s.out, b[s.x]),
    p.Relu: lambda s, b: _set(b, s.out, b[s.x]),
    p.Outer: lambda s, b: _set(b, s.out, (b.size(s.weight) * b[s.x][:, None]).ravel()),
    p.CrossCombine: lambda s, b: _set(b, s.out, b[s.x0] * b[s.wx] + b[s.xl]),
    p.ScaleShift: lambda s, b: _set(b, s.out, b[s.alpha] * b[s.x] + b.size(s.beta)),
    p.Add: lambda s, b: _set(b, s.out, sum(b[x] for x in s.xs) + b.size(s.bias)),
}
