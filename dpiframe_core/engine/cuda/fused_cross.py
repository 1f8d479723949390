"""Which programs with cross layers of the field width run as one kernel.

The kernels (csrc/kernels/fused/cross/fused_cross.h for 16 bits, forward_split.h for fp32) know one form: a
lookup, a chain of cross layers and a chain of products with ReLU that both read its rows, and a
head that adds up a dot with the end of each chain and the wide sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpiframe_core import _core
from dpiframe_core.engine.cuda.fused_mlp import PRECISIONS, Level, Product, Range, columns_of
from dpiframe_core.engine.cuda.steps import FusedLinear, joined
from dpiframe_core.program.steps import Head, Linear, Lookup, Program, View, Weight

# The kernel takes about 21 us a million weights, however few the rows; steps of few rows take not
# much more than their launches: 23 us for 512 rows, 44 us for 2,048 (docs/kernels_forward.md).
MANY_WEIGHTS, STEPS_UP_TO = 1_000_000, 1024
# The fp32 kernel streams all weights through every cluster however few its rows.
SPLIT, SPLIT_STEPS_UP_TO = "fp32", 2048

Dot = tuple[View, Weight]


@dataclass(frozen=True)
class OneCrossKernel:
    """The heads are those of the last x and of the last h, one number a column."""

    lookup: Lookup
    cross: tuple[Level, ...]
    cross_head: Weight
    deep: tuple[Level, ...]
    deep_head: Weight
    bias: Weight | None


@dataclass(frozen=True)
class _Chain:
    """`head_out`: where the last step leaves its dot, which is otherwise the head's `dot`."""

    steps: tuple[Product, ...]
    rows: tuple[Range, ...]
    head: Weight
    head_out: View | None
    dot: Dot | None

    def levels(self) -> tuple[Level, ...]:
        return tuple(
            Level(s.weight, s.bias, (r,)) for s, r in zip(self.steps, self.rows, strict=True)
        )


def one_cross_kernel(program: Program, precision: str) -> OneCrossKernel | None:
    """The program in the kernel's form; None where it has another or does not fit."""
    lookup, head = program.steps[0], program.steps[-1]
    if precision not in (*PRECISIONS, SPLIT):
        return None
    if not isinstance(lookup, Lookup) or not isinstance(head, Head):
        return None
    products = [s for s in program.steps if isinstance(s, (Linear, FusedLinear))]
    cross = _chain(program, lookup, products, head, is_cross=True)
    deep = _chain(program, lookup, products, head, is_cross=False)
    if cross is None or deep is None or lookup.fm_out is not None or head.products:
        return None
    if len(products) + 2 != len(program.steps) or {*cross.steps, *deep.steps} != {*products}:
        return None
    sums = [v for v in (lookup.wide_out, cross.head_out, deep.head_out) if v is not None]
    dots = [d for d in (cross.dot, deep.dot) if d is not None]
    if sorted(map(str, head.scalars)) != sorted(map(str, sums)) or len(head.dots) != len(dots):
        return None
    found = OneCrossKernel(
        lookup, cross.levels(), cross.head, deep.levels(), deep.head, bias=head.bias
    )
    return found if _fits(program, found, precision) else None


def steps_up_to(program: Program, found: OneCrossKernel, precision: str) -> int:
    """Rows up to which a batch is faster in steps; 0: none is."""
    if precision == SPLIT:
        return SPLIT_STEPS_UP_TO
    weights = sum(
        (stop - start) * program.weights[level.weight].shape[1]
        for level in (*found.cross, *found.deep)
        for start, stop in level.rows
    )
    return STEPS_UP_TO if weights > MANY_WEIGHTS else 0


def _chain(
    program: Program, lookup: Lookup, products: Sequence[Product], head: Head, is_cross: bool
) -> _Chain | None:
    """From the lookup's rows on the products of a kind that each read the one before."""
    steps: list[Product] = []
    rows: list[Range] = []
    x = lookup.out
    while x is not None:
        found = [s for s in products if s.x == x and _rows(s, lookup, is_cross) is not None]
        if len(found) != 1 or found[0] in steps:
            break
        (step,) = found
        steps.append(step)
        rows.append(_rows(step, lookup, is_cross) or (0, 0))
        x = _view(step, rows[-1])
    return _ended(program, head, steps, rows) if steps else None


def _ended(
    program: Program, head: Head, steps: Sequence[Product], rows: Sequence[Range]
) -> _Chain | None:
    """The chain with what the head does with its end; None where that is no dot."""
    last, (start, stop) = steps[-1], rows[-1]
    if isinstance(last, FusedLinear) and last.head is not None:
        ends = last.head_start + len(program.weights[last.head])
        if (last.head_start, ends) == (start, stop):
            return _Chain(tuple(steps), tuple(rows), last.head, last.head_out, None)
    view = _view(last, rows[-1])
    for dot in head.dots:
        if dot[0] == view:
            return _Chain(tuple(steps), tuple(rows), dot[1], None, dot)
    return None


def _rows(step: Product, lookup: Lookup, is_cross: bool) -> Range | None:
    """Rows of its weight that make the next x, or those with ReLU that make the next h."""
    fused = step if isinstance(step, FusedLinear) else None
    relu = joined(step.relu)
    if not is_cross:
        return relu[0] if len(relu) == 1 else None
    if fused is None or lookup.out is None or fused.x0 != lookup.out or fused.xl != fused.x:
        return None
    return (fused.cross_start, fused.cross_start + lookup.out.width)


def _view(step: Product, rows: Range) -> View | None:
    """Where the step writes what these rows make."""
    if step.out is None:
        return None
    view = step.out.columns(rows[0], rows[1] - rows[0])
    return view if columns_of(step, view) == rows else None


def _fits(program: Program, found: OneCrossKernel, precision: str) -> bool:
    """Whether its numbers are within the limits of the kernel for the precision."""
    lookup = found.lookup
    dims = [slot.dim if slot.table is not None else 0 for slot in lookup.slots]
    if lookup.out is None or sum(dims) != lookup.out.width:
        return False
    fits = _core.fused_cross_fp16x3_fits if precision == SPLIT else _core.fused_cross_fits
    return fits(
        dims=dims,
        num_cross=len(found.cross),
        columns=[stop - start for level in found.deep for start, stop in level.rows],
        num_ids=len(program.field_rows),
        most_rows=max(program.field_rows),
    )
