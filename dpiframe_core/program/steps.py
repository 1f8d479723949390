"""Program: kernel-level steps over named buffers, what lowering makes of a spec.

A buffer is a matrix [B, width] of activations; a view is a range of its columns. Each column is
written once, so that a pass may move or merge steps by looking at views alone. `dense` [B, N] is
the one external buffer; the ids [F, B] are an input of every Lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeVar

import numpy as np

T = TypeVar("T")


@dataclass(frozen=True)
class View:
    """Columns start .. start+width-1 of a buffer."""

    buffer: str
    start: int
    width: int

    def columns(self, start: int, width: int) -> View:
        """A range of this view's columns."""
        return View(self.buffer, self.start + start, width)

    def overlaps(self, other: View) -> bool:
        """Whether the two share a column."""
        return (
            self.buffer == other.buffer
            and self.start < other.start + other.width
            and other.start < self.start + self.width
        )


@dataclass(frozen=True)
class Step:
    """One kernel-level operation. Views it writes are its fields `out`, `fm_out`, `wide_out`."""

    name: str

    def writes(self) -> list[View]:
        """Views written, in the order of the fields."""
        return [
            view
            for f in fields(self)
            if f.name.endswith("out")
            for view in _found(getattr(self, f.name), View)
        ]

    def reads(self) -> list[View]:
        """Views read, in the order of the fields."""
        return [
            view
            for f in fields(self)
            if not f.name.endswith("out")
            for view in _found(getattr(self, f.name), View)
        ]

    def map_views(self, change: Callable[[View], View]) -> Self:
        """The same step over changed views."""
        parts = {f.name: _map(getattr(self, f.name), change) for f in fields(self)}
        return replace(self, **parts)

    def weight_names(self) -> list[str]:
        """Names of the weights read."""
        return [w for f in fields(self) for w in _found(getattr(self, f.name), Weight)]


class Weight(str):
    """A name of a program's weight (told from other strings by its type)."""


@dataclass(frozen=True)
class Slot:
    """One field's part in a lookup: which ids, which table, where its row goes."""

    field: int
    table: Weight | None
    dim: int
    column: int
    in_fm: bool = False
    wide: Weight | None = None


@dataclass(frozen=True)
class Lookup(Step):
    """out[:, column..] = table[ids[field]] for each slot; fm_out [B, 1] the second-order FM of the
    slots in it; wide_out [B, 1] the sum of the slots' wide weights. All in one pass.
    """

    slots: tuple[Slot, ...]
    out: View | None
    fm_out: View | None = None
    wide_out: View | None = None


@dataclass(frozen=True)
class Outer(Step):
    """out[:, n*D:(n+1)*D] = x[:, n] * weight[n] (weight [N, D])."""

    x: View
    weight: Weight
    out: View


@dataclass(frozen=True)
class Copy(Step):
    """out = x."""

    x: View
    out: View


@dataclass(frozen=True)
class Linear(Step):
    """out = x weight^T + bias (weight [H, W]), then ReLU on the column ranges `relu` of out."""

    x: View
    weight: Weight
    bias: Weight | None
    out: View
    relu: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class BatchNorm(Step):
    """out = (x - mean) / sqrt(var + eps) * weight + bias; parts = (weight, bias, mean, var)."""

    x: View
    parts: tuple[Weight, ...]
    eps: float
    out: View


@dataclass(frozen=True)
class Relu(Step):
    """out = max(x, 0)."""

    x: View
    out: View


@dataclass(frozen=True)
class FM(Step):
    """out [B, 1] = 1/2 sum_d ((sum_f v)^2 - sum_f v^2) over all fields, `dim` wide, of xs."""

    xs: tuple[View, ...]
    dim: int
    out: View


@dataclass(frozen=True)
class CrossV1(Step):
    """out = x0 (xl . weight) + bias + xl."""

    x0: View
    xl: View
    weight: Weight
    bias: Weight
    out: View


@dataclass(frozen=True)
class CrossCombine(Step):
    """out = x0 * wx + xl."""

    x0: View
    wx: View
    xl: View
    out: View


@dataclass(frozen=True)
class CrossScalar(Step):
    """out [B, 1] = alpha_L, with alpha_0 = 1, alpha_{l+1} = alpha_l (1 + dots_l) + shift_l."""

    dots: View
    shift: Weight
    out: View


@dataclass(frozen=True)
class ScaleShift(Step):
    """out = alpha * x + beta (alpha [B, 1], beta [W])."""

    x: View
    alpha: View
    beta: Weight
    out: View


@dataclass(frozen=True)
class Add(Step):
    """out = sum of xs + bias."""

    xs: tuple[View, ...]
    bias: Weight | None
    out: View


@dataclass(frozen=True)
class Head(Step):
    """out [B, 1] = sum x . w over dots + sum of scalars + sum a * b over products + bias."""

    dots: tuple[tuple[View, Weight], ...]
    scalars: tuple[View, ...]
    products: tuple[tuple[View, View], ...]
    bias: Weight | None
    out: View


@dataclass(frozen=True)
class Program:
    """Steps in an order that runs; buffers' widths; weights by name; the logit's place [B, 1].

    `field_rows` and `oov_rows` [F] are what a lookup needs to check ids (-1: no such row).
    """

    field_names: tuple[str, ...]
    field_rows: tuple[int, ...]
    oov_rows: tuple[int, ...]
    num_dense: int
    buffers: Mapping[str, int]
    steps: tuple[Step, ...]
    weights: Mapping[str, np.ndarray]
    output: View

    def __str__(self) -> str:
        lines = [f"{len(self.steps)} steps, {len(self.buffers)} buffers"]
        for step in self.steps:
            reads = ", ".join(show(v) for v in step.reads())
            writes = ", ".join(show(v) for v in step.writes())
            lines.append(f"  {type(step).__name__:<12} {step.name}: {reads or 'ids'} -> {writes}")
        return "\n".join(lines)


def show(view: View) -> str:
    """A view in words: buffer[start:stop]."""
    return f"{view.buffer}[{view.start}:{view.start + view.width}]"


def changed(program: Program, **parts: Any) -> Program:
    """A program with some parts replaced, less the steps, buffers and weights nothing needs."""
    program = replace(program, **parts)
    needed, steps = [program.output], []
    for step in reversed(program.steps):
        if any(w.overlaps(n) for w in step.writes() for n in needed):
            steps.append(step)
            needed.extend(step.reads())
    steps.reverse()
    used = {v.buffer for s in steps for v in (*s.reads(), *s.writes())} | {program.output.buffer}
    weights = {w for s in steps for w in s.weight_names()}
    return replace(
        program,
        steps=tuple(steps),
        buffers={name: width for name, width in program.buffers.items() if name in used},
        weights={name: w for name, w in program.weights.items() if name in weights},
    )


def _found(value: Any, kind: type[T]) -> list[T]:
    """Every instance of `kind` inside nested tuples and slots, in order."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, tuple):
        return [x for v in value for x in _found(v, kind)]
    if isinstance(value, Slot):
        return [x for f in fields(value) for x in _found(getattr(value, f.name), kind)]
    return []


def _map(value: Any, change: Callable[[View], View]) -> Any:
    """`value` with every view inside nested tuples changed."""
    if isinstance(value, View):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_map(v, change) for v in value)
    return value
