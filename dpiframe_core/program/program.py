"""Program: steps over named buffers, what lowering makes of a spec.

Each column of a buffer is written once, so that a pass may move or merge steps by looking at views
alone. The ids [F, B] are an input of every Lookup.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpiframe_core.program.steps import (
    FusedLinear,
    Linear,
    LinearRows,
    LoadDense,
    Lookup,
    MappedLinear,
    Step,
    TensorStep,
)
from dpiframe_core.program.tensor_ops import LayerNorm
from dpiframe_core.program.views import View


@dataclass(frozen=True, eq=False)
class Layer:
    """A product's weight [H, W] and bias [H]."""

    weight: np.ndarray
    bias: np.ndarray | None


@dataclass(frozen=True, eq=False)
class CollapsedCross:
    """DCN's cross network (collapse_cross_v1) with its part of the head: alpha (x0 . head)."""

    dots: np.ndarray  # [L, W]
    shift: np.ndarray  # [L]
    head: np.ndarray  # [1, W]


@dataclass(frozen=True, eq=False)
class MlpForm:
    """A program that is: logit = relu layers(x0) . head + bias + wide + FM + cross, x0 = lookup.

    The lookup says whether there are a wide sum and an FM term.
    """

    lookup: Lookup
    layers: tuple[Layer, ...]
    head: np.ndarray
    bias: float
    cross: CollapsedCross | None


@dataclass(frozen=True, eq=False)
class CrossForm:
    """A program that is: logit = cross layers(x0) . cross_head + relu layers(x0) . head + bias +
    wide, x0 = lookup; a cross layer is x_{l+1} = x0 * (W x_l + b) + x_l.
    """

    lookup: Lookup
    cross: tuple[Layer, ...]
    cross_head: np.ndarray
    layers: tuple[Layer, ...]
    head: np.ndarray
    bias: float


@dataclass(frozen=True)
class Program:
    """Steps in an order that runs; buffers' widths; weights by name; where the logit [B, 1] is.

    `field_rows` and `oov_rows` [F] are what a lookup needs to check ids (-1: no such row).
    `field_ids` [F], where ids of some field repeat: rows, period, least and last id of each.
    `form`: what find_form recognised the whole program to be, for the fused forward kernels of a
    GPU.
    """

    field_names: tuple[str, ...]
    field_rows: tuple[int, ...]
    oov_rows: tuple[int, ...]
    num_dense: int
    buffers: Mapping[str, int]
    steps: tuple[Step, ...]
    weights: Mapping[str, np.ndarray]
    output: View
    field_ids: tuple[tuple[int, int, int, int], ...] = ()
    form: MlpForm | CrossForm | None = field(default=None, repr=False)

    def __str__(self) -> str:
        lines = [f"{len(self.steps)} steps, {len(self.buffers)} buffers"]
        for step in self.steps:
            reads = ", ".join(map(str, step.reads()))
            writes = ", ".join(map(str, step.writes()))
            lines.append(f"  {type(step).__name__:<12} {step.name}: {reads or 'ids'} -> {writes}")
        return "\n".join(lines)

    def changed(self, **parts: Any) -> Program:
        """The program with some parts replaced, less the steps, buffers and weights that nothing
        needs.
        """
        program = replace(self, **parts)
        needed, steps = {program.output.buffer: {program.output}}, list[Step]()
        for step in reversed(program.steps):
            if any(w.overlaps(n) for w in step.writes() for n in needed.get(w.buffer, ())):
                steps.append(step)
                for view in step.reads():
                    needed.setdefault(view.buffer, set()).add(view)
        steps.reverse()
        used = {v.buffer for s in steps for v in (*s.reads(), *s.writes())} | {
            program.output.buffer
        }
        weights = {w for s in steps for w in s.weight_names()}
        return replace(
            program,
            steps=tuple(steps),
            buffers={name: width for name, width in program.buffers.items() if name in used},
            weights={name: w for name, w in program.weights.items() if name in weights},
        )

    def producers(self) -> dict[View, Step]:
        """Of each view the step that writes exactly it."""
        return {view: step for step in self.steps for view in step.writes()}

    def readers(self, view: View) -> list[Step]:
        """Steps that read any column of the view."""
        return [s for s in self.steps if any(r.overlaps(view) for r in s.reads())]

    def only_reader(self, view: View) -> Step | None:
        """The one step that reads the view; None where there are more, or it is the output."""
        found = self.readers(view)
        return found[0] if len(found) == 1 and not self.output.overlaps(view) else None

    def float_buffers(self) -> frozenset[str]:
        """Buffers that a GPU keeps in float32 in any precision: one number a sample, dense features
        and what generic operations make, unless a product or embedding rows need the activation
        type. Layer norms make numbers of one size: where they alone write a buffer, that type holds
        them in half the memory.
        """
        steps = [leaf for step in self.steps for leaf in step.leaves()]
        bound = {v.buffer for s in steps for v in activations(s)}
        made = {s.out.buffer for s in steps if isinstance(s, (LoadDense, TensorStep))}
        made |= {v.buffer for s in steps if isinstance(s, Lookup) for v in s.dense_out if v}
        made -= _normed(steps)
        narrow = {name for name, width in self.buffers.items() if width == 1}
        return frozenset((narrow | made) - bound)


def _normed(steps: list[Step]) -> set[str]:
    """Buffers that layer norms alone write."""
    norms, others = set[str](), set[str]()
    for step in steps:
        is_norm = isinstance(step, TensorStep) and isinstance(step.op, LayerNorm)
        (norms if is_norm else others).update(view.buffer for view in step.writes())
    return norms - others


def activations(step: Step) -> list[View]:
    """Views that a GPU must keep in the activation type."""
    if isinstance(step, Lookup):
        return [step.out] if step.out else []
    if isinstance(step, (Linear, LinearRows, MappedLinear)):
        return [step.x, step.out]
    if isinstance(step, FusedLinear):
        return [v for v in (step.x, step.out, step.x0, step.xl) if v]
    return []
