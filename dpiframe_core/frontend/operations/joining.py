"""Operations that put tensors side by side or in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dpiframe_core.frontend.building import Building
from dpiframe_core.frontend.operations.moving import expand, unsqueeze
from dpiframe_core.frontend.operations.table import Operation, Table, as_value, axes, axis
from dpiframe_core.frontend.values import Value, of_tensor

TABLE = Table()


@TABLE.of("cat", "concat")
def cat(build: Building, values: Sequence[Any], dim: int = 0) -> Value:
    """Side by side along a dimension."""
    parts = [as_value(v) for v in values if not (isinstance(v, Tensor) and v.numel() == 0)]
    return build.joined(parts, axis(parts[0], dim))


@TABLE.of("stack")
def stack(build: Building, values: Sequence[Any], dim: int = 0) -> Value:
    """Side by side along a new dimension."""
    parts = [as_value(v) for v in values]
    dim = dim + len(parts[0].dims) + 1 if dim < 0 else dim
    return build.joined([unsqueeze(build, v, dim) for v in parts], dim)


@TABLE.of("flip")
def flip(build: Building, x: Value, dims: Sequence[int]) -> Value:
    """Dimensions backwards."""
    for dim in axes(x, dims):
        x = build.taken(x, dim, list(range(x.sizes[dim] - 1, -1, -1)))
    return x


@TABLE.of("roll")
def roll(build: Building, x: Value, shifts: Sequence[int], dims: Sequence[int]) -> Value:
    """Dimensions turned by so many places."""
    for shift, dim in zip(shifts, axes(x, dims), strict=True):
        n = x.sizes[dim]
        x = build.taken(x, dim, [(i - shift) % n for i in range(n)])
    return x


@TABLE.of("constant_pad_nd")
def constant_pad_nd(build: Building, x: Value, pads: Sequence[int], value: float = 0.0) -> Value:
    """`padded`."""
    return padded(build, x, pads, float(value))


def padded(build: Building, x: Value, pads: Sequence[int], value: float) -> Value:
    """Places of one number more, or fewer places: before and behind the last dimension, then the
    one before it, and so on.
    """
    for i in range(len(pads) // 2):
        dim, (before, behind) = len(x.dims) - 1 - i, pads[2 * i : 2 * i + 2]
        if min(before, behind) < 0:
            x = build.sliced(x, dim, max(-before, 0), x.sizes[dim] + min(behind, 0))
        sizes = x.sizes

        def edge(n: int, dim: int = dim, sizes: tuple[int, ...] = sizes) -> list[Value]:
            number = torch.tensor(value, dtype=torch.float64)
            shape = [*sizes[:dim], n, *sizes[dim + 1 :]]
            return [expand(build, number, shape)] if n > 0 else []

        x = build.joined([*edge(before), x, *edge(behind)], dim)
    return x


def _triangle(name: str) -> Operation:
    def convert(build: Building, x: Value, diagonal: int = 0) -> Value:
        ones = torch.ones(x.sizes[-2], x.sizes[-1], dtype=torch.float64)
        kept = of_tensor(getattr(torch, name)(ones, diagonal))
        return build.mapped(("where", "x1", "x0", 0.0), [x, kept])

    return convert


TABLE["tril"], TABLE["triu"] = _triangle("tril"), _triangle("triu")
