"""Operations that show the same numbers in other dimensions: they cost nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from dpiframe_core.frontend.building import (
    BATCH_PLACES,
    Building,
    CannotConvertError,
    transposed,
)
from dpiframe_core.frontend.operations.elementwise import truncated
from dpiframe_core.frontend.operations.table import Table, as_value, axes, axis
from dpiframe_core.frontend.values import BATCH, Columns, Dim, Factor, Scalar, Value, size
from dpiframe_core.program.expression import Expression, rebuilt
from dpiframe_core.program.tensor_ops import row_major

TABLE = Table()


@TABLE.of("clone", "alias", "alias_copy", "detach", "detach_copy", "lift_fresh_copy", "contiguous",
          "resolve_conj", "resolve_neg", "positive")  # fmt: skip
def same(build: Building, x: Value, *rest: Any, **options: Any) -> Value:
    """x itself."""
    return x


@TABLE.of("as_strided", "as_strided_copy")
def strided(
    build: Building, x: Value, sizes: Any, strides: Any, offset: int | None = None
) -> Value:
    """A view, where the strides are those of its sizes: as adaptive pools to one place tell it."""
    plain = zip(sizes, strides, row_major(sizes), strict=True)
    if offset or any(size != 1 and stride != step for size, stride, step in plain):
        raise CannotConvertError("strides of its own; use view, transpose or unfold")
    return build.view(x, sizes)


@TABLE.of("_to_copy", "to", "type_as")
def converted(build: Building, x: Value, *rest: Any, **options: Any) -> Value:
    """x in another type: floats stay as they are, others become whole numbers or truths."""
    kind = options.get("dtype")
    if not isinstance(kind, torch.dtype):
        return x
    if kind.is_complex:
        if x.is_complex:
            return x
        parts = [unsqueeze(build, v, -1) for v in (x, build.mapped(("mul", "x0", 0.0), [x]))]
        return replace(build.joined(parts, len(x.dims)), is_complex=True)
    if kind == torch.bool:
        return build.mapped(("ne", "x0", 0.0), [x])
    if kind.is_floating_point:
        return replace(x, is_integer=False)
    if x.is_integer:
        return x
    if isinstance(x.source, Columns):  # still functions of a column each, so that they can be ids
        whole = [Scalar(s.column, truncated(s.expression)) for s in x.source.scalars]
        return replace(x, source=Columns(tuple(whole)), is_integer=True)
    return build.mapped(truncated("x0"), [x])


def of_whole(expression: Expression) -> Expression:
    """The expression of a whole number x0: without its being rounded first."""
    rounded = truncated("x0")
    return rebuilt(expression, lambda part: "x0" if part == rounded else part)


@TABLE.of("view", "_unsafe_view", "reshape", "view_copy", "_reshape_alias")
def view(build: Building, x: Value, sizes: Sequence[int], *rest: Any) -> Value:
    """The numbers in order, in these sizes; -1 is what is left."""
    if isinstance(sizes, torch.dtype):
        raise CannotConvertError("bits of numbers are read as another type")
    known = math.prod(n for n in sizes if n != -1)
    total = math.prod(x.sizes[: len(x.dims) - x.is_complex])
    return build.view(x, [total // known if n == -1 else n for n in sizes])


@TABLE.of("permute", "permute_copy")
def permute(build: Building, x: Value, dims: Sequence[int]) -> Value:
    """Dimensions in another order."""
    hidden = [x.dims[-1]] if x.is_complex else []
    return replace(x, dims=(*(x.dims[axis(x, d)] for d in dims), *hidden))


@TABLE.of("transpose", "transpose_copy")
def transpose(build: Building, x: Value, a: int, b: int) -> Value:
    """Two dimensions exchanged."""
    dims = list(x.dims)
    a, b = axis(x, a), axis(x, b)
    dims[a], dims[b] = dims[b], dims[a]
    return replace(x, dims=tuple(dims))


@TABLE.of("t")
def t(build: Building, x: Value) -> Value:
    """A matrix transposed."""
    return transposed(x) if len(x.dims) == 2 else x


@TABLE.of("unsqueeze", "unsqueeze_copy")
def unsqueeze(build: Building, x: Value, dim: int) -> Value:
    """A dimension of one place more."""
    dim = dim + len(x.dims) - x.is_complex + 1 if dim < 0 else dim
    return replace(x, dims=(*x.dims[:dim], (), *x.dims[dim:]))


@TABLE.of("squeeze", "squeeze_copy")
def squeeze(build: Building, x: Value, dims: Any = None) -> Value:
    """Without dimensions of one place."""
    gone = {d for d in axes(x, dims) if not x.dims[d]}
    return replace(x, dims=tuple(d for i, d in enumerate(x.dims) if i not in gone))


@TABLE.of("expand", "expand_copy")
def expand(build: Building, x: Any, sizes: Sequence[int], implicit: bool = False) -> Value:
    """Dimensions of one place repeated."""
    value = as_value(x)
    dims: list[Dim] = [()] * (len(sizes) - len(value.dims)) + [*value.dims]
    found = [
        dim if n in (-1, size(dim)) else _repeated(n) for dim, n in zip(dims, sizes, strict=True)
    ]
    return replace(value, dims=tuple(found))


@TABLE.of("broadcast_to", "expand_as")
def broadcast_to(build: Building, x: Any, sizes: Any) -> Value:
    """`expand` to sizes, or to those of another tensor."""
    return expand(build, x, sizes.sizes if isinstance(sizes, Value) else sizes)


@TABLE.of("repeat")
def repeat(build: Building, x: Any, repeats: Sequence[int]) -> Value:
    """Every dimension that many times, one after another."""
    value = as_value(x)
    dims: list[Dim] = [()] * (len(repeats) - len(value.dims)) + [*value.dims]
    return value.with_dims((*_repeated(n), *d) for n, d in zip(repeats, dims, strict=True))


@TABLE.of("repeat_interleave")
def repeat_interleave(build: Building, x: Value, repeats: Any, dim: Any = None, **options: Any
                      ) -> Value:  # fmt: skip
    """Every place of a dimension that many times, side by side."""
    if not isinstance(repeats, int):
        raise CannotConvertError("each place is repeated a number of times of its own")
    if dim is None:
        x, dim = build.view(x, [math.prod(x.sizes)]), 0
    dim = axis(x, dim)
    dims = [(*d, *_repeated(repeats)) if i == dim else d for i, d in enumerate(x.dims)]
    return x.with_dims(dims)


def _repeated(places: int) -> Dim:
    """A dimension whose places are all the same."""
    if places % BATCH_PLACES == 0 and places:
        rest = places // BATCH_PLACES
        return (BATCH,) if rest == 1 else (BATCH, Factor(rest, 0))
    return (Factor(places, 0),) if places != 1 else ()


@TABLE.of("slice", "slice_copy")
def slice_(build: Building, x: Value, dim: int = 0, start: Any = None, stop: Any = None,
           step: int = 1) -> Value:  # fmt: skip
    """Places start, start + step, ... below stop of a dimension."""
    dim = axis(x, dim)
    places = range(x.sizes[dim])[slice(start, stop, step)]
    if not len(places):
        raise CannotConvertError("a slice of no places")
    return build.sliced(x, dim, places.start, places.stop, step)


@TABLE.of("select", "select_copy")
def select(build: Building, x: Value, dim: int, index: int) -> Value:
    """One place of a dimension, which is gone then."""
    dim = axis(x, dim)
    index = index + x.sizes[dim] if index < 0 else index
    return squeeze(build, build.sliced(x, dim, index, index + 1), [dim])


@TABLE.of("unbind", "unbind_copy")
def unbind(build: Building, x: Value, dim: int = 0) -> list[Value]:
    """Every place of a dimension by itself."""
    return [select(build, x, dim, i) for i in range(x.sizes[axis(x, dim)])]


@TABLE.of("split_with_sizes", "split_with_sizes_copy")
def split_with_sizes(build: Building, x: Value, sizes: Sequence[int], dim: int = 0) -> list[Value]:
    """A dimension in parts of these sizes."""
    dim, ends = axis(x, dim), list(itertools.accumulate(sizes))
    return [build.sliced(x, dim, end - n, end) for n, end in zip(sizes, ends, strict=True)]


@TABLE.of("split", "split_copy")
def split(build: Building, x: Value, length: int, dim: int = 0) -> list[Value]:
    """A dimension in parts of one size, the last with what is left."""
    total = x.sizes[axis(x, dim)]
    sizes = [min(length, total - at) for at in range(0, total, length)]
    return split_with_sizes(build, x, sizes, dim)


@TABLE.of("chunk")
def chunk(build: Building, x: Value, chunks: int, dim: int = 0) -> list[Value]:
    """A dimension in so many parts."""
    return split(build, x, -(-x.sizes[axis(x, dim)] // chunks), dim)


@TABLE.of("diagonal", "diagonal_copy")
def diagonal(build: Building, x: Value, offset: int = 0, a: int = 0, b: int = 1) -> Value:
    """The diagonal of two dimensions, as a new last one."""
    a, b = axis(x, a), axis(x, b)
    x = build.moved(x, a, len(x.dims) - 1)
    x = build.moved(x, b - (a < b), len(x.dims) - 1)
    rows, columns = x.sizes[-2:]
    places = [r * columns + r + offset for r in range(rows) if 0 <= r + offset < columns]
    return build.taken(build.view(x, [*x.sizes[:-2], rows * columns]), len(x.dims) - 2, places)


@TABLE.of("unfold")
def unfold(build: Building, x: Value, dim: int, width: int, step: int) -> Value:
    """The windows of a dimension, each along a new last one."""
    dim = axis(x, dim)
    value, factor = build.plain(build.ready(x), dim)
    count = (factor.size - width) // step + 1
    outer: Dim = (Factor(count, factor.stride * step),) if count > 1 else ()
    inner: Dim = (Factor(width, factor.stride),) if width > 1 else ()
    return replace(value, dims=(*value.dims[:dim], outer, *value.dims[dim + 1 :], inner))
