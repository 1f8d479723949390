"""Convolutions and pooling: reductions and products over windows that are read in place."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from dpiframe_core.frontend.building import Building, CannotConvertError
from dpiframe_core.frontend.operations.joining import padded
from dpiframe_core.frontend.operations.moving import permute
from dpiframe_core.frontend.operations.table import Table, each
from dpiframe_core.frontend.values import BATCH, Dim, Factor, Value, of_tensor, size

TABLE = Table()


@TABLE.of("convolution", "_convolution")
def convolution(build: Building, x: Value, weight: Any, bias: Any, stride: Sequence[int],  # noqa: PLR0913
                padding: Sequence[int], dilation: Sequence[int], turned: bool,
                output_padding: Sequence[int], groups: int, *rest: Any) -> Value:  # fmt: skip
    """x [B, C, ..] with weight [O, C / groups, ..]: a product over channels and window."""
    if turned or not isinstance(weight, Tensor):
        raise CannotConvertError(
            "a transposed convolution, or one whose weights depend on the data"
        )
    spatial = len(weight.shape) - 2
    edges = each(padding, spatial)
    if any(edges):
        x = padded(build, x, [p for n in reversed(edges) for p in (n, n)], 0.0)
    shown = _windows(build, x, weight.shape[2:], each(stride, spatial), each(dilation, spatial))
    batch, channels, *others = shown.dims
    outs, inner = others[:spatial], others[spatial:]
    group, channel = build.view(
        replace(shown, dims=(channels,)), [groups, weight.shape[1]]
    ).dims  # fmt: skip
    windows = replace(shown, dims=(group, _merged([batch, *outs]), _merged([channel, *inner])))
    per_group = weight.reshape(groups, weight.shape[0] // groups, -1).transpose(1, 2)
    found = build.product(windows, of_tensor(per_group))
    sizes = [size(d) for d in outs]
    apart = build.view(found, [groups, size(batch), *sizes, weight.shape[0] // groups])
    first = permute(build, apart, [1, 0, len(sizes) + 2, *range(2, 2 + spatial)])
    result = build.view(first, [size(batch), weight.shape[0], *sizes])
    if bias is None:
        return result
    return build.mapped(("add", "x0", "x1"), [result, of_tensor(bias.reshape(-1, *[1] * spatial))])


def _merged(dims: Sequence[Dim]) -> Dim:
    return tuple(itertools.chain.from_iterable(dims))


def _windows(build: Building, x: Value, kernel: Sequence[int], stride: Sequence[int],
             dilation: Sequence[int]) -> Value:  # fmt: skip
    """[B, C, out.., kernel..]: the windows of a convolution or pooling, read in place."""
    x = build.on_batch(x)
    first = len(x.dims) - len(kernel)
    for dim in range(first - 1, len(x.dims)):
        if BATCH not in x.dims[dim]:
            x, _ = build.plain(x, dim)
    outs: list[Dim] = []
    inner: list[Dim] = []
    for i, width in enumerate(kernel):
        x, factor = build.plain(x, first + i)
        reach = dilation[i] * (width - 1) + 1
        count = (factor.size - reach) // stride[i] + 1
        if count < 1:
            raise CannotConvertError(f"a window of {reach} places over {factor.size}")
        outs.append((Factor(count, factor.stride * stride[i]),) if count > 1 else ())
        inner.append((Factor(width, factor.stride * dilation[i]),) if width > 1 else ())
    return replace(x, dims=(*x.dims[:first], *outs, *inner))


def _pooled(build: Building, x: Value, function: str, kernel: Sequence[int], stride: Sequence[int],
            padding: Sequence[int], dilation: Sequence[int]) -> Value:  # fmt: skip
    if any(padding):
        edge = -math.inf if function == "max" else 0.0
        x = padded(build, x, [p for n in reversed(padding) for p in (n, n)], edge)
    shown = _windows(build, x, kernel, stride, dilation)
    rank = len(shown.dims)
    return build.reduced(shown, function, range(rank - len(kernel), rank), False)


@TABLE.of("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(build: Building, x: Value, kernel: Any, stride: Any = (), padding: Any = 0,
             dilation: Any = 1, ceil: bool = False) -> tuple[Value, None]:  # fmt: skip
    """The largest of each window."""
    if ceil:
        raise CannotConvertError("pooling whose last window is cut (ceil_mode)")
    n = len(kernel)
    spread = [each(v, n) for v in (kernel, stride or kernel, padding, dilation)]
    return _pooled(build, x, "max", *spread), None


@TABLE.of("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(build: Building, x: Value, kernel: Any, stride: Any = (), padding: Any = 0,
             ceil: bool = False, counts_padding: bool = True, divisor: Any = None,
             ) -> Value:  # fmt: skip
    """The mean of each window."""
    n = len(kernel)
    edges = each(padding, n)
    if ceil or divisor or (any(edges) and not counts_padding):
        raise CannotConvertError("average pooling with cut windows or a divisor of its own")
    return _pooled(build, x, "mean", each(kernel, n), each(stride or kernel, n), edges, [1] * n)


@TABLE.of("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")
def adaptive_avg_pool(build: Building, x: Value, sizes: Sequence[int]) -> Value:
    """The mean of each of so many windows."""
    return _adaptive(build, x, sizes, "mean")


@TABLE.of("adaptive_max_pool2d", "adaptive_max_pool3d", "adaptive_max_pool1d")
def adaptive_max_pool(build: Building, x: Value, sizes: Sequence[int]) -> tuple[Value, None]:
    """The largest of each of so many windows."""
    return _adaptive(build, x, sizes, "max"), None


def _adaptive(build: Building, x: Value, sizes: Sequence[int], function: str) -> Value:
    have = x.sizes[-len(sizes) :]
    if any(n % m for n, m in zip(have, sizes, strict=True)):
        raise CannotConvertError(f"{have} places cannot be pooled to {tuple(sizes)} of one size")
    kernel = [n // m for n, m in zip(have, sizes, strict=True)]
    return _pooled(build, x, function, kernel, kernel, [0] * len(sizes), [1] * len(sizes))
