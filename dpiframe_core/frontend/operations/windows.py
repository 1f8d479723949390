"""Convolutions and pooling: reductions and products over windows that are read in place."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

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
            padding: Sequence[int], dilation: Sequence[int], ceil: bool = False,
            ) -> Value:  # fmt: skip
    """A reduction of each window. `ceil`: the last one may begin before the end and end behind
    what `padding` adds.
    """
    behind = list(padding)
    if ceil:
        for i, length in enumerate(x.sizes[-len(kernel) :]):
            reach = dilation[i] * (kernel[i] - 1) + 1
            count = -((reach - length - 2 * padding[i]) // stride[i]) + 1
            count -= (count - 1) * stride[i] >= length + padding[i]
            behind[i] = max((count - 1) * stride[i] + reach - length - padding[i], 0)
    if any(padding) or any(behind):
        edge = -math.inf if function == "max" else 0.0
        pads = zip(reversed(padding), reversed(behind), strict=True)
        x = padded(build, x, list(itertools.chain.from_iterable(pads)), edge)
    shown = _windows(build, x, kernel, stride, dilation)
    rank = len(shown.dims)
    return build.reduced(shown, function, range(rank - len(kernel), rank), False)


@TABLE.of("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(build: Building, x: Value, kernel: Any, stride: Any = (), padding: Any = 0,
             dilation: Any = 1, ceil: bool = False) -> tuple[Value, None]:  # fmt: skip
    """The largest of each window."""
    n = len(kernel)
    kernel, stride, padding, dilation = (
        each(v, n) for v in (kernel, stride or kernel, padding, dilation)
    )
    return _pooled(build, x, "max", kernel, stride, padding, dilation, ceil), None


@TABLE.of("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(build: Building, x: Value, kernel: Any, stride: Any = (), padding: Any = 0,
             ceil: bool = False, counts_padding: bool = True, divisor: Any = None,
             ) -> Value:  # fmt: skip
    """The sum of each window over what PyTorch divides it by."""
    n = len(kernel)
    kernel, stride, padding = (each(v, n) for v in (kernel, stride or kernel, padding))
    mean = _pooled(build, x, "mean", kernel, stride, padding, [1] * n, ceil)
    if not (ceil or divisor or (any(padding) and not counts_padding)):
        return mean
    # Of ones: a window's numbers over what PyTorch divides them by, and how many they are.
    missing = max(2 - n, 0)
    ones = torch.ones(1, 1, *[1] * missing, *x.sizes[-n:], dtype=torch.float64)
    window, step = ([1] * missing + v for v in (kernel, stride))
    edge = [0] * missing + padding
    pool = nn.functional.avg_pool3d if n == 3 else nn.functional.avg_pool2d
    shares, counts = (
        pool(ones, window, step, edge, ceil, counts_padding, by) for by in (divisor, 1)
    )
    scale = (shares / counts * math.prod(kernel)).reshape(shares.shape[-n:])
    return build.mapped(("mul", "x0", "x1"), [mean, of_tensor(scale)])


@TABLE.of("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")
def adaptive_avg_pool(build: Building, x: Value, sizes: Sequence[int]) -> Value:
    """The mean of each of so many windows."""
    return _adaptive(build, x, sizes, "mean")


@TABLE.of("adaptive_max_pool2d", "adaptive_max_pool3d", "adaptive_max_pool1d")
def adaptive_max_pool(build: Building, x: Value, sizes: Sequence[int]) -> tuple[Value, None]:
    """The largest of each of so many windows."""
    return _adaptive(build, x, sizes, "max"), None


def _adaptive(build: Building, x: Value, sizes: Sequence[int], function: str) -> Value:
    """Windows of one size where that goes, else from i n / m to (i + 1) n / m, both outwards."""
    have = x.sizes[-len(sizes) :]
    if not any(n % m for n, m in zip(have, sizes, strict=True)):
        kernel = [n // m for n, m in zip(have, sizes, strict=True)]
        return _pooled(build, x, function, kernel, kernel, [0] * len(sizes), [1] * len(sizes))
    for dim, (n, m) in enumerate(zip(have, sizes, strict=True), len(x.dims) - len(sizes)):
        windows = [build.sliced(x, dim, i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
        x = build.joined([build.reduced(w, function, [dim], True) for w in windows], dim)
    return x
