"""A program made ready on a GPU: weights in device memory, each step given to the executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpiframe_core import _core
from dpiframe_core.engine.cuda.fused_cross import OneCrossKernel, one_cross_kernel, steps_up_to
from dpiframe_core.engine.cuda.fused_mlp import Level, OneKernel, one_kernel
from dpiframe_core.engine.cuda.layout import DeviceLayout
from dpiframe_core.engine.cuda.steps import FusedLinear, LoadDense, joined
from dpiframe_core.program import steps as p
from dpiframe_core.program.steps import Program, Step, View, Weight

Use = tuple[str, str]  # kind ("numbers", "table", "product") and name of a weight


@dataclass(frozen=True)
class LookupReport:
    """Where a lookup's counters lie in a batch's report, and the fields of its slots."""

    place: int
    fields: tuple[int, ...]


class DeviceProgram:
    """The compiled program and what its lookups report; construction takes all GPU memory."""

    def __init__(self, layout: DeviceLayout, device: int, fused: bool) -> None:
        self.layout, self.program = layout, layout.program
        self.reports: list[LookupReport] = []
        self._values = {**self.program.weights, **_batch_norm_numbers(self.program)}
        uses = {use: None for step in self.program.steps for use in _weights(step)}
        shapes = {use: _matrix(use[0], self._values[use[1]]).shape for use in uses}
        total = sum(
            _core.weight_bytes(layout.precision, kind, *shapes[kind, name]) for kind, name in uses
        )
        self.native = _core.CudaProgram(
            device, layout.precision, layout.max_batch, total, layout.schedule.arena_bytes
        )
        self._handles: dict[Use, int] = {}
        for kind, name in uses:
            values = _matrix(kind, self._values[name])
            self._handles[kind, name] = self.native.add_weight(kind, values)
        for step in self.program.steps:
            ADD[type(step)](self, step)
        if fused:
            self._add_fused()
        self._values = {}

    def view(self, view: View) -> _core.ArenaView:
        return self.layout.view(view)

    def some_view(self, view: View | None) -> _core.ArenaView | None:
        return None if view is None else self.view(view)

    def weight(self, kind: str, name: str | None) -> int:
        return -1 if name is None else self._handles[kind, name]

    def slots(self, step: p.Lookup) -> list[_core.CudaSlot]:
        program = self.program
        return [
            _core.CudaSlot(
                slot.field,
                self.weight("table", slot.table),
                self.weight("numbers", slot.wide),
                program.field_rows[slot.field],
                slot.dim,
                slot.column,
                program.oov_rows[slot.field],
                slot.in_fm,
            )
            for slot in step.slots
        ]

    def lookup(self, step: p.Lookup) -> None:
        outs = [self.some_view(v) for v in (step.out, step.fm_out, step.wide_out)]
        place = self.native.add_lookup(self.slots(step), *outs)
        self.reports.append(LookupReport(place, tuple(slot.field for slot in step.slots)))

    def linear(self, step: p.Linear | FusedLinear) -> None:
        fused = step if isinstance(step, FusedLinear) else None
        head = fused.head if fused else None
        partial = None
        if fused and fused.head_out:
            partial = self.layout.schedule.offsets[fused.head_out.buffer]
        self.native.add_product(
            _core.ProductStep(
                x=self.view(step.x),
                n=int(self.program.weights[step.weight].shape[0]),
                weight=self.weight("product", step.weight),
                bias=self.weight("numbers", step.bias),
                out=self.some_view(step.out),
                relu=joined(step.relu),
                cross_begin=fused.cross_start if fused else 0,
                x0=self.some_view(fused.x0 if fused else None),
                xl=self.some_view(fused.xl if fused else None),
                head_begin=fused.head_start if fused else 0,
                head_width=len(self.program.weights[head]) if head else 0,
                head=self.weight("numbers", head),
                partial=partial,
            )
        )

    def head(self, step: p.Head) -> None:
        parts = [
            _core.HeadPart(self.view(x), None, self.weight("numbers", w)) for x, w in step.dots
        ]
        for scalar in step.scalars:
            n = self.layout.partials.get(scalar.buffer, 0)
            parts.append(_core.HeadPart(self.view(scalar), None, -1, n))
        parts += [_core.HeadPart(self.view(a), self.view(b)) for a, b in step.products]
        bias = self.program.weights[step.bias].item() if step.bias else 0.0
        self.native.add_head(parts, bias, self.view(step.out))

    def _add_fused(self) -> None:
        """The fused forward kernel, where the program has the form of one."""
        if found := one_kernel(self.program, self.layout.precision):
            self._add_one_kernel(found)
        elif crossed := one_cross_kernel(self.program, self.layout.precision):
            self._add_one_cross_kernel(crossed)

    def _add_one_kernel(self, found: OneKernel) -> None:
        model = _core.FusedMlpModel(
            self._levels(found.levels),
            shifts=self._values[found.shift].tolist() if found.shift else [],
            has_cross=found.shift is not None,
            head=self._row(found.head),
            bias=self._values[found.bias].item() if found.bias else 0.0,
            num_ids=len(self.program.field_rows),
        )
        self.native.add_fused_mlp(self.slots(found.lookup), model)

    def _add_one_cross_kernel(self, found: OneCrossKernel) -> None:
        model = _core.FusedCrossModel(
            self._levels(found.cross),
            self._row(found.cross_head),
            self._levels(found.deep),
            self._row(found.deep_head),
            bias=self._values[found.bias].item() if found.bias else 0.0,
            num_ids=len(self.program.field_rows),
        )
        above = steps_up_to(self.program, found, self.layout.precision)
        self.native.add_fused_cross(self.slots(found.lookup), model, above)

    def _levels(self, levels: Sequence[Level]) -> list[tuple[np.ndarray, np.ndarray | None]]:
        """Weight and bias of each, of its own rows."""
        found = []
        for level in levels:
            rows = np.concatenate([np.arange(*r) for r in level.rows])
            weight = _matrix("product", self._values[level.weight])
            found.append((weight[rows], self._row(level.bias)[rows] if level.bias else None))
        return found

    def _row(self, name: Weight) -> np.ndarray:
        row: np.ndarray = _matrix("numbers", self._values[name])[0]
        return row


def _weights(step: Step) -> list[Use]:
    """The weights of a step as the device needs them."""
    if isinstance(step, p.Lookup):
        tables: list[Use] = [("table", s.table) for s in step.slots if s.table]
        return tables + [("numbers", s.wide) for s in step.slots if s.wide]
    if isinstance(step, (p.Linear, FusedLinear)):
        head = step.head if isinstance(step, FusedLinear) else None
        return [("product", step.weight), *(("numbers", w) for w in (step.bias, head) if w)]
    if isinstance(step, p.BatchNorm):
        return [("numbers", f"{step.name}/scale"), ("numbers", f"{step.name}/shift")]
    if isinstance(step, p.Head):
        return [("numbers", w) for _, w in step.dots]
    return [("numbers", w) for w in step.weight_names()]


def _batch_norm_numbers(program: Program) -> dict[str, np.ndarray]:
    """Scale and shift of each BatchNorm, worked out in float64."""
    numbers = {}
    for step in program.steps:
        if isinstance(step, p.BatchNorm):
            weight, bias, mean, var = (
                program.weights[part].astype(np.float64) for part in step.parts
            )
            scale = weight / np.sqrt(var + step.eps)
            numbers[f"{step.name}/scale"] = scale
            numbers[f"{step.name}/shift"] = bias - mean * scale
    return numbers


def _matrix(kind: str, weight: np.ndarray) -> np.ndarray:
    """The weight as the compiled part takes it: float32 with two dimensions."""
    values = np.ascontiguousarray(weight, np.float32)
    return values.reshape(1, -1) if kind == "numbers" else values


def _numbers(device: DeviceProgram, name: str | None) -> int:
    return device.weight("numbers", name)


def _elementwise() -> Mapping[type[Step], Callable[[DeviceProgram, Any], None]]:
    """The small steps: each a call of the compiled method of its name."""
    return {
        LoadDense: lambda d, s: d.native.add_load_dense(d.view(s.out)),
        p.Copy: lambda d, s: d.native.add_copy(d.view(s.x), d.view(s.out)),
        p.Relu: lambda d, s: d.native.add_relu(d.view(s.x), d.view(s.out)),
        p.Outer: lambda d, s: d.native.add_outer(
            d.view(s.x), _numbers(d, s.weight), s.out.width // s.x.width, d.view(s.out)
        ),
        p.BatchNorm: lambda d, s: d.native.add_batch_norm(
            d.view(s.x),
            _numbers(d, f"{s.name}/scale"),
            _numbers(d, f"{s.name}/shift"),
            d.view(s.out),
        ),
        p.CrossCombine: lambda d, s: d.native.add_cross_combine(
            d.view(s.x0), d.view(s.wx), d.view(s.xl), d.view(s.out)
        ),
        p.CrossV1: lambda d, s: d.native.add_cross_v1(
            d.view(s.x0),
            d.view(s.xl),
            _numbers(d, s.weight),
            _numbers(d, s.bias),
            d.view(s.out),
        ),
        p.CrossScalar: lambda d, s: d.native.add_cross_scalar(
            d.view(s.dots), _numbers(d, s.shift), d.view(s.out)
        ),
        p.ScaleShift: lambda d, s: d.native.add_scale_shift(
            d.view(s.x), d.view(s.alpha), _numbers(d, s.beta), d.view(s.out)
        ),
        p.Add: lambda d, s: d.native.add_add(
            [d.view(x) for x in s.xs], _numbers(d, s.bias), d.view(s.out)
        ),
        p.FM: lambda d, s: d.native.add_fm([d.view(x) for x in s.xs], s.dim, d.view(s.out)),
    }


ADD: dict[type[Step], Callable[[DeviceProgram, Any], None]] = {
    p.Lookup: DeviceProgram.lookup,
    p.Linear: DeviceProgram.linear,
    FusedLinear: DeviceProgram.linear,
    p.Head: DeviceProgram.head,
    **_elementwise(),
}
