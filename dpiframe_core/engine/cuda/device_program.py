"""A program made ready on a GPU: weights in device memory, each step given to the executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpiframe_core import _core
from dpiframe_core.engine.cuda.chain.areas import GROUP
from dpiframe_core.engine.cuda.chain.grouping import ProductChain
from dpiframe_core.engine.cuda.device_layout import DeviceLayout
from dpiframe_core.engine.cuda.fused import cross_model, fused_form, mlp_model, steps_up_to
from dpiframe_core.engine.cuda.mapped_linear import column_constants, compiled_products
from dpiframe_core.engine.cuda.places import PlacedLinear
from dpiframe_core.engine.cuda.tile.grouping import TileGroup
from dpiframe_core.engine.cuda.tile.loops import THREADS
from dpiframe_core.engine.cuda.tile.source import TileKernel
from dpiframe_core.engine.native_ops import native_op, native_operand
from dpiframe_core.program.program import CrossForm, MlpForm
from dpiframe_core.program.steps import (
    FusedLinear,
    Head,
    Linear,
    LinearRows,
    LoadDense,
    Lookup,
    MappedLinear,
    Step,
    TensorStep,
)
from dpiframe_core.program.views import View

Compiled = Mapping[str, tuple[TileKernel, bytes]]  # of groups by name: the kernel and its cubin
Use = tuple[str, str]  # kind ("numbers", "table", "product", "raw") and name of a weight


@dataclass(frozen=True)
class LookupCounters:
    """Where a lookup's counters are in a batch's report, and the fields of its slots."""

    offset: int
    fields: tuple[int, ...]


class DeviceProgram:
    """The compiled program and what its lookups report; construction takes all GPU memory."""

    def __init__(
        self,
        layout: DeviceLayout,
        device: int,
        fused: bool,
        compiled: Compiled | None = None,
        chains: Mapping[str, bytes] | None = None,
    ) -> None:
        self.layout, self.program = layout, layout.program
        self._products = compiled_products(layout)
        self._chains = chains or {}  # cubins by name
        self.compiled: Compiled = compiled or {}
        self.reports: list[LookupCounters] = []
        weights = dict(self.program.weights)
        uses = {use: None for step in self.program.steps for use in _uses(step)}
        for name, (kernel, _) in self.compiled.items():
            for i, weight in enumerate(kernel.weights):
                weights[f"{name}/{i}"] = weight
                uses[_kind(weight), f"{name}/{i}"] = None
        for step in self.program.steps:
            if isinstance(step, ProductChain):
                for i, layer in enumerate(step.layers):
                    weights[f"{step.name}/{i}"] = _whole_groups(layer.vectors)
                    uses["numbers", f"{step.name}/{i}"] = None
        shapes = {use: as_matrix(use[0], weights[use[1]]).shape for use in uses}
        total = sum(
            _core.weight_bytes(layout.precision, kind, *shapes[kind, name]) for kind, name in uses
        )
        self.native = _core.CudaProgram(
            device, layout.precision, layout.max_batch, total, layout.schedule.arena_bytes
        )
        if self.program.field_ids:
            self.native.add_field_ids(self.program.field_ids)
        self._handles: dict[Use, int] = {}
        for kind, name in uses:
            values = as_matrix(kind, weights[name])
            self._handles[kind, name] = self.native.add_weight(kind, values)
        for step in self.program.steps:
            if step.kernel:
                self._elementwise(step)
            else:
                ADD[type(step)](self, step)
        form = fused_form(self.program, layout.precision) if fused else None
        if form is not None:
            self._fused(form)

    def _view(self, view: View | None) -> _core.ArenaView | None:
        return None if view is None else self.layout.view(view)

    def _offset(self, partial: View | None) -> int | None:
        return None if partial is None else self.layout.schedule.offsets[partial.buffer]

    def _weight(self, kind: str, name: str | None) -> int:
        return -1 if name is None else self._handles[kind, name]

    def _slots(self, step: Lookup) -> list[_core.CudaSlot]:
        program = self.program
        return [
            _core.CudaSlot(
                slot.field,
                self._weight("table", slot.table),
                self._weight("numbers", slot.wide),
                program.field_rows[slot.field],
                slot.dim,
                slot.column,
                program.oov_rows[slot.field],
                slot.in_fm,
            )
            for slot in step.slots
        ]

    def _dense_slots(self, step: Lookup) -> list[_core.CudaDenseSlot]:
        found = []
        for slot, out in zip(step.dense, step.dense_out, strict=True):
            weight = self.program.weights[slot.weight] if slot.weight else np.ones(0)
            dim = weight.shape[1] if weight.ndim == 2 else 0
            found.append(
                _core.CudaDenseSlot(
                    first=slot.x.start,
                    count=slot.x.width,
                    dim=dim,
                    column=out.start - step.out.start if dim and out and step.out else 0,
                    weight=self._weight("numbers", slot.weight),
                    shift=self._weight("numbers", slot.shift),
                    wide=self._weight("numbers", slot.wide),
                    numbers=None if dim else self._view(out),
                    in_fm=slot.in_fm,
                )
            )
        return found

    def _elementwise(self, step: Step) -> None:
        """A row of the table of csrc/kernels/elementwise/steps.cu."""
        (out,) = step.writes()
        self.native.add_elementwise(
            step.kernel,
            [self.layout.view(view) for view in step.reads()],
            [self._weight("numbers", name) for name in step.weight_names()],
            step.sizes(),
            self.layout.view(out),
        )

    def _load_dense(self, step: LoadDense) -> None:
        self.native.add_load_dense(self.layout.view(step.out))

    def _lookup(self, step: Lookup) -> None:
        outs = [self._view(v) for v in (step.out, step.fm_out, step.wide_out)]
        offset = self.native.add_lookup(self._slots(step), self._dense_slots(step), *outs)
        self.reports.append(LookupCounters(offset, tuple(slot.field for slot in step.slots)))

    def _linear(self, step: Linear | FusedLinear) -> None:
        fused = step if isinstance(step, FusedLinear) else None
        head = fused.head if fused else None
        self.native.add_product(
            _core.ProductStep(
                x=self.layout.view(step.x),
                n=int(self.program.weights[step.weight].shape[0]),
                weight=self._weight("product", step.weight),
                bias=self._weight("numbers", step.bias),
                out=self._view(step.out),
                relu=_joined(step.relu),
                cross_begin=fused.cross_start if fused else 0,
                x0=self._view(fused.x0 if fused else None),
                xl=self._view(fused.xl if fused else None),
                head_begin=fused.head_start if fused else 0,
                head_width=len(self.program.weights[head]) if head else 0,
                head=self._weight("numbers", head),
                partial=self._offset(fused.head_out if fused else None),
            )
        )

    def _placed_linear(self, step: PlacedLinear) -> None:
        self._mapped_linear(step.whole, len(step.parts), step.x_step, step.xs_steps)

    def _mapped_linear(
        self, step: MappedLinear, places: int = 1, x_step: int = 0, xs_steps: Sequence[int] = ()
    ) -> None:
        product = _core.ProductStep(
            x=self.layout.view(step.x),
            n=int(self.program.weights[step.weight].shape[0]),
            weight=self._weight("product", step.weight),
            bias=self._weight("numbers", step.bias),
            out=self._view(step.out if step.stored else None),
            relu=[],
            cross_begin=0,
            x0=None,
            xl=None,
            head_begin=0,
            head_width=step.out.width if step.head else 0,
            head=self._weight("numbers", step.head),
            partial=self._offset(step.head_out),
            places=places,
            place_step=x_step,
        )
        apart = xs_steps or [0] * len(step.xs)
        sources = [
            _core.MapSource(self.layout.view(view), -1, columns)
            for view, columns in zip(step.xs, apart, strict=True)
        ]
        for name in column_constants(step, self.program.weights):
            sources.append(_core.MapSource(None, self._weight("numbers", name)))
        norm = step.norm
        made = self.layout.partials[norm.sums.buffer] if norm else (0, 0)
        rows = _core.ProductRows(
            sums_out=self._offset(step.sums_out),
            squares_out=self._offset(step.squares_out),
            sums=self._offset(norm.sums if norm else None),
            squares=self._offset(norm.squares if norm else None),
            made_n=made[0],
            made_k=made[1],
            width=norm.width if norm else 0,
            eps=norm.eps if norm else 0.0,
        )
        self.native.add_mapped_product(product, sources, rows, self._products[step.name])

    def _linear_rows(self, step: LinearRows) -> None:
        self.native.add_product(
            _core.ProductStep(
                x=self.layout.view(step.x),
                n=int(self.program.weights[step.weight].shape[0]),
                weight=self._weight("product", step.weight),
                bias=-1,
                out=self._view(step.out),
                relu=[],
                cross_begin=0,
                x0=None,
                xl=None,
                head_begin=0,
                head_width=0,
                head=-1,
                partial=None,
                rows_a_sample=step.rows,
            )
        )

    def _chain(self, step: ProductChain) -> None:
        for part in step.parts:
            ADD[type(part)](self, part)
        products = [
            _core.ChainProduct(
                weight=self._weight("product", layer.weight),
                n=layer.n,
                k=layer.k,
                vectors=self._weight("numbers", f"{step.name}/{i}"),
                out=self._view(layer.out) if i in step.stored else None,
                partial=self._offset(layer.dot.out if layer.dot else None),
                sums=self._offset(layer.sums if i in step.summed else None),
                squares=self._offset(layer.squares if i in step.summed else None),
            )
            for i, layer in enumerate(step.layers)
        ]
        self.native.add_chain(
            [self.layout.view(area.view) for area in step.areas.inputs],
            products,
            self._chains[step.name],
            step.areas.shared_bytes,
            step.areas.ctas,
            step.rows,
            len(step.parts),
        )

    def _tensor(self, step: TensorStep) -> None:
        self.native.add_tensor(
            native_op(step.op),
            [self.layout.view(x) for x in step.xs],
            [self._weight("numbers", name) for name in step.constants],
            [native_operand(operand) for operand in step.operands],
            self.layout.view(step.out),
        )

    def _tile_group(self, step: TileGroup) -> None:
        kernel, cubin = self.compiled[step.name]
        buffers = self.program.buffers
        self.native.add_compiled(
            cubin,
            kernel.name,
            THREADS,
            kernel.shared_bytes,
            kernel.samples,
            [self.layout.view(View(name, 0, buffers[name])) for name in kernel.buffers],
            [],
            [
                self._weight(_kind(weight), f"{step.name}/{i}")
                for i, weight in enumerate(kernel.weights)
            ],
        )

    def _head(self, step: Head) -> None:
        parts = [
            _core.HeadPart(self.layout.view(x), None, self._weight("numbers", w))
            for x, w in step.dots
        ]
        for scalar in step.scalars:
            shape = self.layout.partials.get(scalar.buffer, (0, 0))
            parts.append(_core.HeadPart(self.layout.view(scalar), None, -1, *shape))
        parts += [
            _core.HeadPart(self.layout.view(a), self.layout.view(b)) for a, b in step.products
        ]
        bias = self.program.weights[step.bias].item() if step.bias else 0.0
        self.native.add_head(parts, bias, self.layout.view(step.out))

    def _fused(self, form: MlpForm | CrossForm) -> None:
        slots, num_ids = self._slots(form.lookup), len(self.program.field_rows)
        above = steps_up_to(self.program, form, self.layout.precision, self.layout.max_batch)
        if isinstance(form, MlpForm):
            self.native.add_fused_mlp(slots, mlp_model(form, num_ids), above)
        else:
            self.native.add_fused_cross(slots, cross_model(form, num_ids), above)


ADD: dict[type[Step], Callable[[DeviceProgram, Any], None]] = {
    Lookup: DeviceProgram._lookup,
    LoadDense: DeviceProgram._load_dense,
    Linear: DeviceProgram._linear,
    FusedLinear: DeviceProgram._linear,
    LinearRows: DeviceProgram._linear_rows,
    MappedLinear: DeviceProgram._mapped_linear,
    PlacedLinear: DeviceProgram._placed_linear,
    ProductChain: DeviceProgram._chain,
    TensorStep: DeviceProgram._tensor,
    TileGroup: DeviceProgram._tile_group,
    Head: DeviceProgram._head,
}


def as_matrix(kind: str, weight: np.ndarray) -> np.ndarray:
    """The weight as the compiled part takes it: float32 with two dimensions."""
    if kind == "raw":
        return weight.reshape(1, -1)
    values = np.ascontiguousarray(weight, np.float32)
    return values.reshape(1, -1) if kind == "numbers" else values


def _whole_groups(vectors: Sequence[np.ndarray]) -> np.ndarray:
    """The vectors [v, n], n filled up to whole groups of 16."""
    columns = len(vectors[0])
    return np.pad(np.stack(vectors), ((0, 0), (0, -columns % GROUP)))


def _kind(weight: np.ndarray) -> str:
    """Of a weight that a generated kernel reads: bytes in an order of its own, or numbers."""
    return "raw" if weight.dtype == np.uint8 else "numbers"


def _uses(step: Step) -> list[Use]:
    """The weights of a step as the device needs them."""
    if isinstance(step, Lookup):
        found = [("table", s.table) for s in step.slots] + [("numbers", s.wide) for s in step.slots]
        found += [("numbers", w) for s in step.dense for w in (s.weight, s.shift, s.wide)]
        return [(kind, weight) for kind, weight in found if weight]
    if isinstance(step, (Linear, FusedLinear)):
        head = step.head if isinstance(step, FusedLinear) else None
        return [("product", step.weight), *(("numbers", w) for w in (step.bias, head) if w)]
    if isinstance(step, LinearRows):
        return [("product", step.weight)]
    if isinstance(step, MappedLinear):
        numbers = [w for w in (step.bias, step.head, *step.constants) if w]
        return [("product", step.weight), *(("numbers", w) for w in numbers)]
    if isinstance(step, PlacedLinear):
        return _uses(step.whole)
    if isinstance(step, TileGroup):
        return []  # its kernel has its own
    if isinstance(step, ProductChain):
        return [use for part in step.parts for use in _uses(part)]
    if isinstance(step, Head):
        return [("numbers", w) for _, w in step.dots]
    return [("numbers", w) for w in step.weight_names()]


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of columns, without empty ones, those that touch made one."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(r for r in ranges if r[0] < r[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found
