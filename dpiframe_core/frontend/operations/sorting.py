"""Operations that put numbers in order."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from dpiframe_core.frontend.building import MIXES, Building, CannotConvertError
from dpiframe_core.frontend.operations.moving import squeeze, unsqueeze
from dpiframe_core.frontend.operations.table import Operation, Table, as_value, axes, axis
from dpiframe_core.frontend.values import Value, of_tensor

TABLE = Table()


def _extreme(largest: bool) -> Operation:
    def convert(build: Building, x: Value, dim: Any = None, keep: bool = False) -> Any:
        if dim is None:
            return build.reduced(x, "max" if largest else "min", axes(x, None), False)
        at = axis(x, dim)
        number = build.reduced(x, "max" if largest else "min", [at], keep)
        place = build.top(x, 1, at, largest)[1]  # left out where nothing reads it
        return number, place if keep else squeeze(build, place, [at])

    return convert


TABLE["max"], TABLE["min"] = _extreme(True), _extreme(False)


def _extreme_place(largest: bool) -> Operation:
    def convert(build: Building, x: Value, dim: Any = None, keep: bool = False) -> Value:
        if dim is None:
            raise CannotConvertError(MIXES)
        found = build.top(x, 1, axis(x, dim), largest)[1]
        return found if keep else squeeze(build, found, [axis(x, dim)])

    return convert


TABLE["argmax"], TABLE["argmin"] = _extreme_place(True), _extreme_place(False)


@TABLE.of("topk")
def topk(build: Building, x: Value, k: int, dim: int = -1, largest: bool = True,
         ordered: bool = True) -> tuple[Value, Value]:  # fmt: skip
    """The k largest or smallest of a dimension, and their places."""
    return build.top(x, k, axis(x, dim), largest)


@TABLE.of("sort")
def sort(build: Building, x: Value, *args: Any, dim: int = -1, descending: bool = False,
         stable: bool = False) -> tuple[Value, Value]:  # fmt: skip
    """A dimension in order, and where each number was; `stable` may come first."""
    places = [a for a in args if not isinstance(a, bool)]
    truths = [a for a in args if isinstance(a, bool)]
    dim = axis(x, places[0] if places else dim)
    return build.top(x, x.sizes[dim], dim, truths[-1] if truths else descending)


@TABLE.of("argsort")
def argsort(build: Building, x: Value, *args: Any, **options: Any) -> Value:
    """Where each number of a sorted dimension was."""
    return sort(build, x, *args, **options)[1]


@TABLE.of("kthvalue")
def kthvalue(build: Building, x: Value, k: int, dim: int = -1,
             keepdim: bool = False) -> tuple[Value, Value]:  # fmt: skip
    """The k-th smallest number of a dimension, from 1, and its place."""
    dim = axis(x, dim)
    found = [build.sliced(each, dim, k - 1, k) for each in build.top(x, k, dim, largest=False)]
    numbers, places = found if keepdim else (squeeze(build, each, [dim]) for each in found)
    return numbers, places


@TABLE.of("median")
def median(build: Building, x: Value, dim: int | None = None,
           keepdim: bool = False) -> tuple[Value, Value]:  # fmt: skip
    """The middle of a dimension's numbers in order, of two the lower, and its place."""
    if dim is None:
        raise CannotConvertError(MIXES)
    return kthvalue(build, x, (x.sizes[axis(x, dim)] + 1) // 2, dim, keepdim)


@TABLE.of("mode")
def mode(build: Building, x: Value, *args: Any, **options: Any) -> Value:
    """Refused."""
    raise CannotConvertError("the most frequent number is picked; use torch.topk or torch.sort")


@TABLE.of("bucketize")
def bucketize(build: Building, x: Any, edges: Any, *, out_int32: bool = False,
              right: bool = False) -> Value:  # fmt: skip
    """In which bucket between ascending edges [E], or [.., E] for numbers [.., N], each number is:
    how many edges are below it, with `right` at most it. NaN is behind all.
    """
    below = ("not", ("lt" if right else "le", "x0", "x1"))
    x, edges = as_value(x), as_value(edges)
    if len(edges.dims) > 1:
        edges = unsqueeze(build, edges, -2)
    truths = build.mapped(below, [unsqueeze(build, x, -1), edges])
    return build.reduced(truths, "sum", [len(x.dims)], False)


@TABLE.of("searchsorted")
def searchsorted(build: Building, edges: Any, x: Any, *, out_int32: bool = False,
                 right: bool = False, side: Any = None, sorter: Any = None) -> Value:  # fmt: skip
    """`bucketize`."""
    if sorter is not None:
        raise CannotConvertError("edges of buckets in an order of their own")
    return bucketize(build, x, edges, right=right or side == "right")


@TABLE.of("isin")
def isin(build: Building, x: Any, among: Any, *, assume_unique: bool = False,
         invert: bool = False) -> Value:  # fmt: skip
    """Whether each number is one of fixed numbers."""
    if not isinstance(among, Tensor):
        raise CannotConvertError("numbers to compare with that depend on the data")
    x = as_value(x)
    numbers = of_tensor(among.reshape(math.prod(among.shape)))
    truths = build.mapped(("eq", "x0", "x1"), [unsqueeze(build, x, -1), numbers])
    found = build.reduced(truths, "max", [len(x.dims)], False)
    return build.mapped(("not", "x0"), [found]) if invert else found
