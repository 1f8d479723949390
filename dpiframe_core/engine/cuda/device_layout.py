"""Layout of a program on a device: each buffer's type, row stride and offset in one arena."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dpiframe_core import _core
from dpiframe_core.program.program import Program
from dpiframe_core.program.schedule import Policy, Schedule, schedule
from dpiframe_core.program.steps import (
    FusedLinear,
    Linear,
    LinearRows,
    MappedLinear,
    Step,
    TensorStep,
)
from dpiframe_core.program.tensor_ops import MatMul
from dpiframe_core.program.views import View

ALIGNMENT = 8  # elements: 16 bytes of halves
LINE = 128  # bytes that L2 and TMA move at once
LAUNCH = 2.0  # microseconds that a step takes at least
BANDWIDTH = 4e6  # bytes a microsecond
RATES = {"fp32": 1e8, "tf32": 3e8, "fp16": 5e8, "bf16": 5e8}  # operations a microsecond
PLANNED_BATCH = 4096  # plans weigh steps by their cost at this batch


@dataclass(frozen=True)
class DeviceLayout:
    """`floats`: buffers of float32, the others hold the activation type; `partials`: those of a
    product's partial dots, with the shape [n, k] of its weight; `strides`: elements from one sample
    to the next; `schedule`: the plan and the arena.
    """

    precision: str
    max_batch: int
    program: Program
    floats: frozenset[str]
    partials: dict[str, tuple[int, int]]
    strides: dict[str, int]
    schedule: Schedule = field(repr=False)

    def view(self, view: View) -> _core.ArenaView:
        """The view as offset, row stride and type."""
        name = view.buffer
        is_float = name in self.floats
        element = element_bytes(self.precision, is_float)
        offset = self.schedule.offsets[name] + view.start * element
        return _core.ArenaView(offset, self.strides[name], view.width, is_float)


def lay_out(
    program: Program, precision: str, max_batch: int, streams: int, policy: Policy
) -> DeviceLayout:
    """Choose types and strides, plan the steps, give each buffer its offset."""
    floats = program.float_buffers()
    partials = {
        view.buffer: _shape(program, s)
        for step in program.steps
        for s in step.leaves()
        if isinstance(s, (FusedLinear, MappedLinear))
        for view in partial_views(s)
    }
    # A product of several rows a sample takes rows that follow one another without a gap.
    dense = {
        view.buffer
        for step in program.steps
        if isinstance(step, LinearRows)
        for view in (step.x, step.out)
    }
    elements = {name: element_bytes(precision, name in floats) for name in program.buffers}
    strides = {
        name: row_stride(width, ALIGNMENT if name in dense else LINE // elements[name])
        for name, width in program.buffers.items()
    }
    row_bytes = {name: stride * elements[name] for name, stride in strides.items()}
    for name, shape in partials.items():
        row_bytes[name] = 4 * _core.max_head_partials(precision, max_batch, *shape)
    planned = schedule(
        program,
        max_batch,
        streams,
        policy,
        row_bytes=row_bytes,
        cost=lambda step: _cost(step, program, precision),
    )
    return DeviceLayout(precision, max_batch, program, floats, partials, strides, planned)


def row_stride(width: int, line: int = ALIGNMENT) -> int:
    """Elements from one sample to the next: scalars side by side, rows of more than `line` elements
    at multiples of these, others at 16 bytes.
    """
    if width == 1:
        return width
    step = line if width > line else ALIGNMENT
    return -(-width // step) * step


def element_bytes(precision: str, is_float: bool) -> int:
    """Bytes of an element."""
    return 4 if is_float or precision in ("fp32", "tf32") else 2


def partial_views(step: FusedLinear | MappedLinear) -> list[View]:
    """What a product leaves as a part for each of its tiles in a row."""
    views = [step.head_out]
    if isinstance(step, MappedLinear):
        views += [step.sums_out, step.squares_out]
    return [view for view in views if view]


def _shape(program: Program, step: FusedLinear | MappedLinear) -> tuple[int, int]:
    n, k = program.weights[step.weight].shape
    return int(n), int(k)


def _cost(step: Step, program: Program, precision: str) -> float:
    """Microseconds at PLANNED_BATCH samples, roughly: only ratios matter."""
    columns = sum(v.width for v in (*step.reads(), *step.writes()))
    operations = sum(_operations(leaf, program) for leaf in step.leaves())
    moved = columns * element_bytes(precision, False)
    return LAUNCH + PLANNED_BATCH * (moved / BANDWIDTH + operations / RATES[precision])


def _operations(step: Step, program: Program) -> int:
    """Of a sample's products."""
    if isinstance(step, (Linear, FusedLinear, MappedLinear)):
        return 2 * program.weights[step.weight].size
    if isinstance(step, LinearRows):
        return 2 * step.rows * program.weights[step.weight].size
    if isinstance(step, TensorStep) and isinstance(step.op, MatMul):
        a, _ = step.operands
        return 2 * step.out.width * math.prod(a.shape[len(a.shape) - step.op.inner :])
    return 0
