"""Which programs run as one kernel where batches are small, and as what.

The kernel (csrc/kernels/fused/mlp/fused_mlp.h) knows one form: a lookup, a chain of products with ReLU, and a
head that adds up the last product's dot, FM, the wide sum and a collapsed cross network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpiframe_core import _core
from dpiframe_core.engine.cuda.steps import FusedLinear, joined
from dpiframe_core.program.steps import CrossScalar, Head, Linear, Lookup, Program, View, Weight

Product = Linear | FusedLinear
Range = tuple[int, int]  # rows of a weight, start .. stop - 1
PRECISIONS = ("fp16", "bf16")


@dataclass(frozen=True)
class Level:
    """A product: the rows of its weight that make the next level's input, then the extras."""

    weight: Weight
    bias: Weight | None
    rows: tuple[Range, ...]


@dataclass(frozen=True)
class OneKernel:
    """`shift`: of the cross network, whose dots are the first level's second rows and whose part of
    the head is the third.
    """

    lookup: Lookup
    levels: tuple[Level, ...]
    shift: Weight | None
    head: Weight
    bias: Weight | None


def one_kernel(program: Program, precision: str) -> OneKernel | None:
    """The program in the kernel's form; None where it has another or does not fit."""
    if precision not in PRECISIONS or len(program.steps) < 3:
        return None
    lookup, head = program.steps[0], program.steps[-1]
    products = [s for s in program.steps if isinstance(s, (Linear, FusedLinear))]
    crosses = [s for s in program.steps if isinstance(s, CrossScalar)]
    if not isinstance(lookup, Lookup) or not isinstance(head, Head) or not products:
        return None
    if len(products) + len(crosses) + 2 != len(program.steps) or len(crosses) > 1:
        return None
    own = _chain(program, lookup, products)
    last = products[-1]
    extras = _extras(crosses, head, products[0])
    if own is None or extras is None or not isinstance(last, FusedLinear) or last.head is None:
        return None
    sums = {v for v in (lookup.wide_out, lookup.fm_out, last.head_out) if v is not None}
    if head.dots or len(head.scalars) != len(sums) or set(head.scalars) != sums:
        return None
    rows = [(own[0], *extras), *((r,) for r in own[1:])]
    levels = tuple(Level(p.weight, p.bias, r) for p, r in zip(products, rows, strict=True))
    shift = crosses[0].shift if crosses else None
    found = OneKernel(lookup, levels, shift, last.head, head.bias)
    return found if _fits(program, found) else None


def _chain(program: Program, lookup: Lookup, products: Sequence[Product]) -> list[Range] | None:
    """The columns of each product that the next reads, or the head's dot, where they are those with
    ReLU and each reads the one before it alone.
    """
    found: list[Range] = []
    reads = lookup.out
    for step, after in zip(products, [*products[1:], None], strict=True):
        fused = step if isinstance(step, FusedLinear) else None
        if step.x != reads or (fused and (fused.x0 or (fused.head is None) is (after is None))):
            return None
        reads = after.x if after else None
        if reads is not None:
            columns = columns_of(step, reads)
        else:
            width = len(program.weights[fused.head]) if fused and fused.head else 0
            columns = (fused.head_start, fused.head_start + width) if fused else None
        if columns is None or joined(step.relu) != [columns]:
            return None
        found.append(columns)
    return found


def _extras(crosses: Sequence[CrossScalar], head: Head, first: Product) -> tuple[Range, ...] | None:
    """Columns of a cross network's dots and of its part of the head; empty where there is none."""
    if not crosses:
        return None if head.products else ()
    alpha = crosses[0].out
    parts = [b if a == alpha else a for a, b in head.products if alpha in (a, b)]
    if len(head.products) != 1 or len(parts) != 1 or parts[0].width != 1:
        return None
    ranges = (columns_of(first, crosses[0].dots), columns_of(first, parts[0]))
    relu = joined(first.relu)
    if any(r is None or any(r[0] < stop and start < r[1] for start, stop in relu) for r in ranges):
        return None
    return tuple(r for r in ranges if r is not None)


def columns_of(step: Product, view: View) -> Range | None:
    """Where the view lies in what the product writes."""
    out = step.out
    if out is None or out.buffer != view.buffer:
        return None
    start = view.start - out.start
    return (start, start + view.width) if 0 <= start <= out.width - view.width else None


def _fits(program: Program, found: OneKernel) -> bool:
    """Whether its numbers are within the kernel's limits."""
    lookup = found.lookup
    slots = [slot for slot in lookup.slots if slot.table is not None]
    dims = {slot.dim for slot in slots}
    if lookup.out is None or sum(slot.dim for slot in slots) != lookup.out.width:
        return False
    if lookup.fm_out and (len(dims) != 1 or not all(slot.in_fm for slot in slots)):
        return False
    return _core.fused_mlp_fits(
        dims=[slot.dim if slot.table is not None else 0 for slot in lookup.slots],
        columns=[level.rows[0][1] - level.rows[0][0] for level in found.levels],
        num_shifts=len(program.weights[found.shift]) if found.shift else 0,
        has_cross=found.shift is not None,
        num_fm=dims.pop() if lookup.fm_out else 0,
        num_ids=len(program.field_rows),
        most_rows=max(program.field_rows),
    )
