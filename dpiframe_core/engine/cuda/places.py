"""Products with matrices of their own at the places of an axis become one step, in 16 bits.

Per-token layers, stacked experts and towers are a product a place
(`lowering.device.places_to_linear`), and so are experts that are modules of their own, whose first
layers were merged: of the same sizes and with the same epilogue, over columns of x that are a step
apart. One kernel has the tiles of all (csrc/kernels/gemm/mapped/mapped_linear.h), where each alone
would have too few for the GPU and a launch of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpiframe_core.engine.cuda.tile.recurrence import in_order
from dpiframe_core.engine.precision import HALF_PRECISIONS
from dpiframe_core.lowering.device.align_columns import ALIGNMENT
from dpiframe_core.lowering.device.fuse_epilogue import is_small
from dpiframe_core.program.expression import Expression
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Linear, MappedLinear, Step, StepGroup
from dpiframe_core.program.views import View, Weight

GROUP = 16  # columns of a weight that lie together
LEAST_PLACES = 4  # fewer may as well run side by side, or be a part of a chain


@dataclass(frozen=True)
class PlacedLinear(StepGroup):
    """Products of a place each, which one kernel runs; `whole` is the first of them with the
    weight, the bias and the constants of all, one place behind the other, and what they read beside
    x and write; of one number a sample it reads the first's, the others' are `xs_steps` columns
    apart.
    """

    parts: tuple[MappedLinear, ...]
    whole: MappedLinear
    xs_steps: tuple[int, ...]  # of each of its xs

    @property
    def x_step(self) -> int:
        """Columns from one place's x to the next one's."""
        return self.parts[1].x.start - self.parts[0].x.start

    def writes(self) -> list[View]:
        return [self.whole.out]

    def reads(self) -> list[View]:
        return list(dict.fromkeys(view for step in self.parts for view in step.reads()))

    def map_views(self, change: Callable[[View], View]) -> PlacedLinear:
        parts = tuple(step.map_views(change) for step in self.parts)
        return replace(self, parts=parts, whole=self.whole.map_views(change))


def join_places(program: Program, precision: str) -> Program:
    """The program with one step in the place of products that differ in their place alone."""
    if precision not in HALF_PRECISIONS:
        return program
    tried: set[str] = set()
    while parts := _next_family(program, tried):
        tried |= {part.name for part in parts}
        program = _with_family(program, parts) or program
    return program


def _with_family(program: Program, parts: Sequence[MappedLinear]) -> Program | None:
    """The program with one step in the place of these; None where it can have none."""
    joined = _with_joined_buffers(program, parts)
    if joined is None:
        return None
    weights = dict(joined.weights)
    made = _placed(_parts_of(joined, parts), weights)
    if made is None:
        return None
    names = {part.name for part in parts}
    others = [step for step in joined.steps if step.name not in names]
    ordered = in_order([*others, made])
    return replace(joined, steps=tuple(ordered), weights=weights) if ordered else None


def _next_family(program: Program, tried: set[str]) -> list[MappedLinear]:
    """Products of one size and one expression that read one buffer, each so many columns behind the
    one before. Where they write a buffer each, these become one, which other products read then.
    """
    found: dict[tuple[object, ...], list[MappedLinear]] = {}
    for step in program.steps:
        if _has_epilogue(program, step) and step.name not in tried:
            part = _as_mapped(step)
            if kind := _kind(program, part):
                found.setdefault((part.x.buffer, *kind), []).append(part)
    for parts in found.values():
        parts.sort(key=lambda part: part.x.start)
        begin = 0
        for end in range(1, len(parts) + 1):
            steps = [b.x.start - a.x.start for a, b in itertools.pairwise(parts[begin : end + 1])]
            if end < len(parts) and len(set(steps)) == 1:
                continue
            if end - begin >= LEAST_PLACES:
                return parts[begin:end]
            begin = end
    return []


def _has_epilogue(program: Program, step: Step) -> bool:
    """Whether it is a product whose results all have one expression, and that no generated kernel
    takes in.
    """
    if isinstance(step, Linear):
        return step.relu in ((), ((0, step.out.width),)) and not is_small(program, step)
    return isinstance(step, MappedLinear)


def _as_mapped(step: Step) -> MappedLinear:
    if isinstance(step, MappedLinear):
        return step
    assert isinstance(step, Linear)
    made: Expression = ("relu", "x0") if step.relu else "x0"
    return MappedLinear(step.name, step.x, step.weight, step.bias, made, (), (), step.out)


def _kind(program: Program, part: MappedLinear) -> tuple[object, ...] | None:
    """What products that are one have in common; None: a product that can be none of them."""
    n, k = program.weights[part.weight].shape
    made = (part.head, part.sums_out, part.norm)
    if part.products > 1 or made != (None,) * 3 or not part.stored:
        return None
    if n % GROUP or k % ALIGNMENT or n != part.out.width:
        return None
    constants = tuple(program.weights[name].size for name in part.constants)
    widths = tuple(x.width for x in part.xs)
    if any(size not in (1, n) for size in (*constants, *widths)):
        return None
    return (n, k, part.expression, widths, constants, part.bias is None)


def _views(part: MappedLinear) -> list[View]:
    return [part.x, part.out, *part.xs]


def _with_joined_buffers(program: Program, parts: Sequence[MappedLinear]) -> Program | None:
    """The program in which views that are a buffer a place are columns of one buffer; None where
    they are of some, but not of as many.
    """
    for i in range(len(_views(parts[0]))):
        names = [_views(step)[i].buffer for step in _parts_of(program, parts)]
        if len(set(names)) == 1:
            continue
        widths = {program.buffers[name] for name in names}
        if len(set(names)) != len(names) or len(widths) > 1 or program.output.buffer in names:
            return None
        program = _joined(program, names, widths.pop())
    return program


def _parts_of(program: Program, parts: Sequence[MappedLinear]) -> list[MappedLinear]:
    """The same products in this program."""
    steps = {step.name: step for step in program.steps}
    return [_as_mapped(steps[part.name]) for part in parts]


def _joined(program: Program, names: Sequence[str], width: int) -> Program:
    """The program with one buffer of all columns, one behind the other."""
    first = {name: i * width for i, name in enumerate(names)}
    whole = names[0]

    def moved(view: View) -> View:
        if view.buffer not in first:
            return view
        return View(whole, first[view.buffer] + view.start, view.width)

    buffers = {name: n for name, n in program.buffers.items() if name not in first}
    buffers[whole] = width * len(names)
    return replace(program, buffers=buffers, steps=tuple(s.map_views(moved) for s in program.steps))


def _placed(parts: Sequence[MappedLinear], weights: dict[str, np.ndarray]) -> PlacedLinear | None:
    """The products as one, whose weights are added to those; None where their views are not a step
    apart.
    """
    first, n = parts[0], parts[0].out.width
    if not _are_apart([part.out for part in parts], n):
        return None
    step = parts[1].x.start - first.x.start
    if (
        step <= 0
        or step % ALIGNMENT
        or first.x.start % ALIGNMENT
        or not _are_apart([p.x for p in parts], step)
    ):
        return None
    if any(a.out.overlaps(view) for a in parts for b in parts for view in b.reads()):
        return None
    xs, steps = list[View](), list[int]()
    for views in zip(*(part.xs for part in parts), strict=True):
        apart = views[1].start - views[0].start
        if not _are_apart(views, apart) or views[0].width not in (1, n):
            return None
        if views[0].width == n != apart:
            return None
        is_row = views[0].width == n > 1
        width = n * len(parts) if is_row else 1
        xs.append(View(views[0].buffer, views[0].start, width))
        steps.append(0 if is_row else apart)
    name = f"{first.name} .. {parts[-1].name}"

    def stacked(what: str, names: Sequence[Weight]) -> Weight:
        made = Weight(f"{name}/{what}")
        weights[made] = np.concatenate([weights[each] for each in names])
        return made

    constants = []
    for i, names in enumerate(zip(*(part.constants for part in parts), strict=True)):
        if weights[names[0]].size > 1:
            constants.append(stacked(f"constant{i}", names))
        elif len({float(weights[each].reshape(-1)[0]) for each in names}) == 1:
            constants.append(names[0])
        else:
            return None
    whole = replace(
        first,
        name=name,
        weight=stacked("weight", [part.weight for part in parts]),
        bias=stacked("bias", [part.bias for part in parts if part.bias]) if first.bias else None,
        xs=tuple(xs),
        constants=tuple(constants),
        out=View(first.out.buffer, first.out.start, n * len(parts)),
    )
    return PlacedLinear(name, tuple(parts), whole, tuple(steps))


def _are_apart(views: Sequence[View], step: int) -> bool:
    """Whether they begin so many columns apart, one after the other, in one buffer."""
    return all(
        b.buffer == a.buffer and b.start - a.start == step for a, b in itertools.pairwise(views)
    )
