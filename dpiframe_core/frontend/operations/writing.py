"""Operations that write into places of a tensor; it is a new tensor then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from dpiframe_core.frontend.building import Building, CannotConvertError
from dpiframe_core.frontend.operations.moving import expand, unsqueeze
from dpiframe_core.frontend.operations.picking import Indices, mask_of, rows_of_mask
from dpiframe_core.frontend.operations.table import Table, as_value, axis
from dpiframe_core.frontend.values import (
    BATCH,
    BATCH_SIZE,
    Fixed,
    Samples,
    Value,
    numbers_of,
    of_tensor,
)
from dpiframe_core.program.expression import Expression

TABLE = Table()

MOST_WRITES = 64  # one after another


@TABLE.of("copy")
def copy(build: Building, into: Any, x: Any, *rest: Any) -> Value:
    """x in the sizes of `into`."""
    return expand(build, x, as_value(into).sizes)


@TABLE.of("select_scatter")
def select_scatter(build: Building, x: Any, part: Any, dim: int, index: int) -> Value:
    """x with one place of a dimension written."""
    x = as_value(x)
    dim = axis(x, dim)
    return _written(build, x, unsqueeze(build, as_value(part), dim), dim, [index % x.sizes[dim]])


@TABLE.of("slice_scatter")
def slice_scatter(build: Building, x: Any, part: Any, dim: int = 0, start: Any = None,
                  stop: Any = None, step: int = 1) -> Value:  # fmt: skip
    """x with places start, start + step, ... of a dimension written."""
    x, part = as_value(x), as_value(part)
    dim = axis(x, dim)
    places = range(x.sizes[dim])[slice(start, stop, step)]
    if len(places) == x.sizes[dim]:
        return as_value(part)
    return _written(build, x, part, dim, list(places))


def _written(build: Building, x: Value, part: Value, dim: int, places: Sequence[int]) -> Value:
    """x with `part` in these places of a dimension; of the same place the last is written."""
    length = x.sizes[dim]
    sizes = [max(a, b) for a, b in zip(x.sizes, part.sizes, strict=True)]
    x, part = (
        expand(build, v, [v.sizes[dim] if i == dim else n for i, n in enumerate(sizes)])
        for v in (x, part)
    )
    if list(places) == list(range(places[0], places[0] + len(places))):
        end = places[0] + len(places)
        before = [build.sliced(x, dim, 0, places[0])] if places[0] else []
        behind = [build.sliced(x, dim, end, length)] if end < length else []
        return build.joined([*before, part, *behind], dim)
    source = {place: length + i for i, place in enumerate(places)}
    return build.taken(build.joined([x, part], dim), dim, [source.get(i, i) for i in range(length)])


@TABLE.of("index_put", "_unsafe_index_put")
def index_put(build: Building, x: Any, indices: Sequence[Any], values: Any,
              accumulate: bool = False) -> Value:  # fmt: skip
    """x with values written to fixed places, or where a mask is true."""
    x, values = as_value(x), as_value(values)
    if len(indices) == 1 and (mask := mask_of(indices[0], x)) is not None:
        return _where_mask(build, x, mask, values, accumulate)
    chosen = Indices.of(indices)
    dims = chosen.dims
    if dims == [0, 1] and _are_samples(chosen.parts[0]):
        return _own_places(build, x, as_value(chosen.parts[1]), values, accumulate)
    if not chosen.is_fixed or dims != list(range(dims[0], dims[0] + len(dims))):
        raise CannotConvertError(
            "places that depend on the data are written to; use torch.where with a mask"
        )
    places = chosen.flat(x.sizes)
    lead, rest = x.sizes[: dims[0]], x.sizes[dims[-1] + 1 :]
    merged = build.view(x, [*lead, math.prod(x.sizes[d] for d in dims), *rest])
    shown = expand(build, values, [*lead, *places.shape, *rest])
    flat = build.view(shown, [*lead, places.numel(), *rest])
    at = [int(i) for i in places.reshape(-1)]
    if accumulate:
        flat, at = _summed(build, flat, dims[0], at)
        flat = build.mapped(("add", "x0", "x1"), [flat, build.taken(merged, dims[0], at)])
    return build.view(_written(build, merged, flat, dims[0], at), x.sizes)


def _where_mask(build: Building, x: Value, mask: Value, values: Value, adds: bool) -> Value:
    """x[mask] written: a number, a row for all places, or the rows of the places [B * .., ..]."""
    rows, truths = rows_of_mask(build, x, mask), rows_of_mask(build, mask, mask)
    for _ in rows.dims[1:]:
        truths = unsqueeze(build, truths, -1)
    written = ("add", "x0", "x2") if adds else "x2"
    found = build.mapped(("where", "x1", written, "x0"), [rows, truths, values])
    return build.view(found, x.sizes)


def _summed(build: Building, x: Value, dim: int, places: list[int]) -> tuple[Value, list[int]]:
    """The sums of what is added to the same place, and each place once."""
    parts: dict[int, list[int]] = {}
    for i, place in enumerate(places):
        parts.setdefault(place, []).append(i)
    most = max(map(len, parts.values()))
    if most == 1:
        return x, places
    sizes = list(x.sizes)
    none = expand(build, of_tensor(torch.zeros(())), [*sizes[:dim], 1, *sizes[dim + 1 :]])
    padded = [[*own, *[len(places)] * (most - len(own))] for own in parts.values()]
    taken = build.taken(build.joined([x, none], dim), dim, [i for own in padded for i in own])
    apart = build.view(taken, [*sizes[:dim], len(parts), most, *sizes[dim + 1 :]])
    return build.reduced(apart, "sum", [dim + 1], False), list(parts)


def _fixed_places(index: Value, dim: int) -> list[int] | None:
    """The places that an index names along a dimension, where it names the same ones everywhere."""
    rest = [f for i, d in enumerate(index.dims) for f in d if i != dim and f is not BATCH]
    if not isinstance(index.source, Fixed) or any(f.stride for f in rest):
        return None
    return [int(i) for i in numbers_of(replace(index, dims=(index.dims[dim],))).reshape(-1)]


def _are_samples(part: Any) -> bool:
    """Whether it is torch.arange(B), which names each sample itself."""
    source = part.source if isinstance(part, Value) else None
    return isinstance(source, Samples) and source.added is None and source.only is None


def _own_places(build: Building, x: Value, place: Value, values: Value, adds: bool) -> Value:
    """x[i, place[i]] of each sample i written: x [B, N, ...], places [B] or [B, J]."""
    rest = x.sizes[2:]
    of_samples = bool(place.dims) and place.dims[0] == (BATCH,)
    lead = [BATCH_SIZE, *place.sizes[of_samples:]]
    values = expand(build, values, [*lead, *rest])
    count = math.prod(lead[1:])
    place = build.mapped(("where", ("lt", "x0", 0.0), ("add", "x0", float(x.sizes[1])), "x0"),
                         [expand(build, place, lead)])  # fmt: skip
    place = build.view(place, [BATCH_SIZE, count, *[1] * len(rest)])
    place = expand(build, place, [BATCH_SIZE, count, *rest])
    values = build.view(values, [BATCH_SIZE, count, *rest])
    return _scattered(build, x, 1, place, values, adds=adds)


@TABLE.of("scatter")
def scatter(build: Building, x: Any, dim: int, index: Any, src: Any, **options: Any) -> Value:
    """x with src[..., j] written at index[..., j] of a dimension."""
    if options.get("reduce") is not None:
        raise CannotConvertError("numbers are written by a reduction of their own")
    return _scattered(build, x, dim, index, src, adds=False)


@TABLE.of("scatter_add")
def scatter_add(build: Building, x: Any, dim: int, index: Any, src: Any) -> Value:
    """x with src[..., j] added at index[..., j] of a dimension."""
    x, source, along = as_value(x), as_value(src), axis(as_value(x), dim)
    places = _fixed_places(as_value(index), along)
    if places is not None and source.sizes == as_value(index).sizes:
        added, at = _summed(build, source, along, places)
        added = build.mapped(("add", "x0", "x1"), [added, build.taken(x, along, at)])
        return _written(build, x, added, along, at)
    return _scattered(build, x, dim, index, src, adds=True)


@TABLE.of("scatter_reduce")
def scatter_reduce(build: Building, x: Any, dim: int, index: Any, src: Any, reduce: str,
                   include_self: bool = True, **options: Any) -> Value:  # fmt: skip
    """x with the sum, mean, product, maximum or minimum of all that is written to a place."""
    if reduce == "sum" and include_self:
        return _scattered(build, x, dim, index, src, adds=True)
    x = as_value(x)
    dim = axis(x, dim)
    moved, hot = _hot(build, x, dim, index)
    function, nothing, both = _REDUCTIONS[reduce]
    parts = build.mapped(("where", "x0", "x1", nothing), [hot, _sources(build, src, dim, hot)])
    over = len(hot.dims) - 2
    found = build.reduced(parts, function, [over], False)
    count = build.reduced(hot, "sum", [over], False)
    result: Expression = (both, "x0", "x1") if include_self else "x1"
    if reduce == "mean":
        result = ("div", result, ("add", "x2", 1.0) if include_self else "x2")
    made = build.mapped(("where", ("gt", "x2", 0.0), result, "x0"), [moved, found, count])
    return build.moved(made, len(x.dims) - 1, dim)


# The engine's reduction, what leaves its result as it is, and its function of two numbers.
_REDUCTIONS = {
    "sum": ("sum", 0.0, "add"), "mean": ("sum", 0.0, "add"), "prod": ("prod", 1.0, "mul"),
    "amax": ("max", -math.inf, "max"), "amin": ("min", math.inf, "min"),
}  # fmt: skip


def _hot(build: Building, x: Value, dim: int, index: Any) -> tuple[Value, Value]:
    """x with the dimension last [.., N], and where each index points [.., J, N]."""
    places = build.moved(as_value(index), dim, len(x.dims) - 1)
    moved = build.moved(x, dim, len(x.dims) - 1)
    if any(a != b for a, b in zip(places.sizes[:-1], moved.sizes[:-1], strict=True)):
        raise CannotConvertError("an index that is shorter than what it writes into")
    numbers = of_tensor(torch.arange(x.sizes[dim], dtype=torch.float64))
    return moved, build.mapped(("eq", "x0", "x1"), [unsqueeze(build, places, -1), numbers])


def _sources(build: Building, src: Any, dim: int, hot: Value) -> Value:
    """What is written [.., J, 1], or one number for all places."""
    source = as_value(src)
    if not source.dims:
        return source
    last = len(source.dims) - 1
    source = build.sliced(build.moved(source, dim, last), last, 0, hot.sizes[-2])
    return unsqueeze(build, source, -1)


def _scattered(build: Building, x: Any, dim: int, index: Any, src: Any, adds: bool) -> Value:
    x = as_value(x)
    dim = axis(x, dim)
    last = len(x.dims) - 1
    moved, hot = _hot(build, x, dim, index)
    source = _sources(build, src, dim, hot)
    if adds:
        parts = build.mapped(("where", "x0", "x1", 0.0), [hot, source])  # infinite, too
        total = build.reduced(parts, "sum", [len(hot.dims) - 2], False)
        return build.moved(build.mapped(("add", "x0", "x1"), [moved, total]), last, dim)
    if hot.sizes[-2] > MOST_WRITES:
        raise CannotConvertError(f"more than {MOST_WRITES} numbers are written in turn")
    for j in range(hot.sizes[-2]):
        where = _row(build, hot, j)
        number = _row(build, source, j) if source.dims else source
        moved = build.mapped(("where", "x1", "x2", "x0"), [moved, where, number])
    return build.moved(moved, last, dim)


def _row(build: Building, x: Value, j: int) -> Value:
    """Row j of the dimension before the last."""
    dim = len(x.dims) - 2
    found = build.sliced(x, dim, j, j + 1)
    return found.with_dims([d for i, d in enumerate(found.dims) if i != dim])
