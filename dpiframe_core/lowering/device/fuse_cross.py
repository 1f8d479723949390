"""Pass for a device: DCNv2's x0 * (Wx + b) + xl becomes the epilogue of its product.

At large batches the combination by itself costs as much as the product: it reads three matrices
and writes one, where the epilogue reads two and the product's own output never exists.
"""

from __future__ import annotations

from dataclasses import replace

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import CrossCombine, FusedLinear, Linear, Step
from dpiframe_core.program.views import View


def fuse_cross(program: Program) -> Program:
    """Fuse every CrossCombine into the product that makes its `wx`, where nothing else reads it."""
    for combine in [s for s in program.steps if isinstance(s, CrossCombine)]:
        program = _fused(program, next(s for s in program.steps if s.name == combine.name))
    return program


def _fused(program: Program, combine: Step) -> Program:
    assert isinstance(combine, CrossCombine)
    linear = next((s for s in program.steps if _makes(s, combine.wx)), None)
    if not isinstance(linear, Linear) and not isinstance(linear, FusedLinear):
        return program
    assert linear.out is not None
    start = combine.wx.start - linear.out.start
    relu = any(a < start + combine.wx.width and start < b for a, b in linear.relu)
    if relu or (isinstance(linear, FusedLinear) and linear.x0 is not None):
        return program
    if program.only_reader(combine.wx) is not combine or not _ready(program, linear, combine):
        return program
    whole = combine.out == View(combine.out.buffer, 0, program.buffers[combine.out.buffer])
    out = linear.out
    if combine.wx == out:
        out, moved = combine.out, combine.out
    elif whole and combine.out.buffer != program.output.buffer:
        moved = combine.wx
    else:
        return program
    fused = as_fused(replace(linear, out=out))
    fused = replace(fused, cross_start=start, x0=combine.x0, xl=combine.xl)

    def place(view: View) -> View:
        if view.buffer != combine.out.buffer or moved == combine.out:
            return view
        return moved.columns(view.start, view.width)

    steps = [fused if s is linear else s for s in program.steps if s is not combine]
    return program.changed(steps=tuple(s.map_views(place) for s in steps))


def as_fused(linear: Linear | FusedLinear) -> FusedLinear:
    """The same step as a FusedLinear."""
    if isinstance(linear, FusedLinear):
        return linear
    return FusedLinear(
        linear.name, linear.x, linear.weight, linear.bias, linear.out, relu=linear.relu
    )


def _makes(step: Step, view: View) -> bool:
    return isinstance(step, (Linear, FusedLinear)) and bool(step.out and step.out.contains(view))


def _ready(program: Program, linear: Step, combine: CrossCombine) -> bool:
    """Whether x0 and xl are made before the product runs."""
    later = program.steps[program.steps.index(linear) :]
    return not any(
        w.overlaps(x) for s in later for w in s.writes() for x in (combine.x0, combine.xl)
    )
