"""Pass for a device: what a product makes begins at a column that is a multiple of 8.

16-byte accesses (8 halves) need that, and TMA tensor copies of the operand of another product.
Where several outputs of one merged product are side by side and an odd width misaligns a later one,
the columns are laid out anew: operands of products and other wide parts first, each at a multiple
of 8, then the narrow ones. The rows of the product's weight follow that order, with rows of zeros
in the gaps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import FusedLinear, Linear, MappedLinear
from dpiframe_core.program.views import View, Weight

ALIGNMENT = 8

Range = tuple[int, int]  # columns start .. stop - 1


def align_columns(program: Program) -> Program:
    """Align every buffer that one product writes by itself."""
    for name in [s.name for s in program.steps if isinstance(s, (Linear, FusedLinear))]:
        step = next(s for s in program.steps if s.name == name)
        assert isinstance(step, (Linear, FusedLinear))
        if step.out is not None and step.out.width == program.buffers[step.out.buffer]:
            program = _aligned(program, step, step.out)
    return program


def _aligned(program: Program, step: Linear | FusedLinear, out: View) -> Program:
    segments = _segments(program, step, out)
    aligned = {s for s in segments if _is_wide(s) or _is_operand(program, out, s)}
    if out.buffer == program.output.buffer or all(s[0] % ALIGNMENT == 0 for s in aligned):
        return program
    moved: dict[Range, int] = {}
    width = 0
    for segment in sorted(segments, key=lambda s: (s not in aligned, s)):
        if segment in aligned:
            width = -(-width // ALIGNMENT) * ALIGNMENT
        moved[segment] = width
        width += segment[1] - segment[0]

    def column(old: int) -> int:
        start, stop = next(s for s in segments if s[0] <= old < s[1])
        return moved[start, stop] + old - start

    def place(view: View) -> View:
        return replace(view, start=column(view.start)) if view.buffer == out.buffer else view

    laid, weights = _laid_out(program, step, moved, width)
    laid = replace(laid, relu=tuple((column(a), column(a) + b - a) for a, b in step.relu))
    if isinstance(laid, FusedLinear):
        cross = column(laid.cross_start) if laid.x0 else 0
        head = column(laid.head_start) if laid.head else 0
        laid = replace(laid, cross_start=cross, head_start=head)
    steps = [
        replace(laid, out=View(out.buffer, 0, width)) if s is step else s.map_views(place)
        for s in program.steps
    ]
    buffers = {**program.buffers, out.buffer: width}
    return program.changed(steps=tuple(steps), buffers=buffers, weights=weights)


def _laid_out(
    program: Program, step: Linear | FusedLinear, moved: dict[Range, int], width: int
) -> tuple[Linear | FusedLinear, dict[str, np.ndarray]]:
    """The step with weight and bias in the new order, and the program's weights with them."""
    weights = dict(program.weights)
    made = {}
    for part, name in (("weight", step.weight), ("bias", step.bias)):
        if name is None:
            continue
        old = weights[name]
        new = np.zeros((width, *old.shape[1:]), old.dtype)
        for (start, stop), place in moved.items():
            new[place : place + stop - start] = old[start:stop]
        made[part] = Weight(f"{step.name}/aligned_{part}")
        weights[made[part]] = new
    return replace(step, weight=made["weight"], bias=made.get("bias")), weights


def _segments(program: Program, step: Linear | FusedLinear, out: View) -> list[Range]:
    """Ranges that must stay together: what is read at once, or has an epilogue in common."""
    ranges = [
        (v.start, v.start + v.width)
        for s in program.readers(out)
        for v in s.reads()
        if v.buffer == out.buffer
    ]
    ranges += list(step.relu)
    if isinstance(step, FusedLinear):
        if step.x0 is not None:
            ranges.append((step.cross_start, step.cross_start + step.x0.width))
        if step.head is not None:
            width = len(program.weights[step.head])
            ranges.append((step.head_start, step.head_start + width))
    covered = sorted({(c, c + 1) for c in range(out.width)} | set(ranges))
    joined: list[Range] = []
    for start, stop in covered:
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _is_wide(segment: Range) -> bool:
    return segment[1] - segment[0] >= ALIGNMENT


def _is_operand(program: Program, out: View, segment: Range) -> bool:
    """Whether a product reads columns of the segment."""
    view = View(out.buffer, segment[0], segment[1] - segment[0])
    return any(
        v.overlaps(view)
        for s in program.steps
        if isinstance(s, (Linear, FusedLinear, MappedLinear))
        for v in s.reads()
    )
