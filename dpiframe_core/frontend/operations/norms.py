"""Norms: batch norm with stored statistics is affine, the others are over one sample's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dpiframe_core.frontend.building import MIXES, Building, CannotConvertError
from dpiframe_core.frontend.operations.moving import unsqueeze
from dpiframe_core.frontend.operations.table import Table, as_value
from dpiframe_core.frontend.values import BATCH, Value, of_tensor
from dpiframe_core.program.expression import Expression

TABLE = Table()

Normed = tuple[Value, None, None]


@TABLE.of("_native_batch_norm_legit_no_training")
def batch_norm(build: Building, x: Value, weight: Any, bias: Any, mean: Any, variance: Any,
               momentum: float, eps: float) -> Normed:  # fmt: skip
    """(x - mean) / sqrt(variance + eps) weight + bias of channels, with stored statistics."""
    if not isinstance(mean, Tensor) or not isinstance(variance, Tensor):
        return _by_value(build, x, weight, bias, mean, variance, eps), None, None
    scale = (variance.double() + eps).rsqrt() * (1.0 if weight is None else weight.double())
    shift = (0.0 if bias is None else bias.double()) - mean.double() * scale
    shape = [-1, *[1] * (len(x.dims) - 2)]
    parts = [of_tensor(part.reshape(shape)) for part in (scale, shift)]
    return build.mapped(("add", ("mul", "x0", "x1"), "x2"), [x, *parts]), None, None


def _by_value(build: Building, x: Value, weight: Any, bias: Any, mean: Any, variance: Any,
              eps: float) -> Value:  # fmt: skip
    """With statistics that are repeated for every sample (instance norm)."""
    parts = []
    for part, absent in ((mean, 0.0), (variance, 1.0), (weight, 1.0), (bias, 0.0)):
        value = as_value(torch.tensor([absent]) if part is None else part)
        for _ in x.dims[2:]:
            value = unsqueeze(build, value, -1)
        parts.append(value)
    scale: Expression = ("mul", ("rsqrt", ("add", "x2", eps)), "x3")
    return build.mapped(("add", ("mul", ("sub", "x0", "x1"), scale), "x4"), [x, *parts])


@TABLE.of("native_batch_norm", "cudnn_batch_norm")
def any_batch_norm(build: Building, x: Value, weight: Any, bias: Any, mean: Any, variance: Any,  # noqa: PLR0913
                   training: bool, momentum: float, eps: float) -> Normed:  # fmt: skip
    """`batch_norm`, unless in training mode."""
    if training:
        return training_batch_norm(build, x)
    return batch_norm(build, x, weight, bias, mean, variance, momentum, eps)


@TABLE.of("_native_batch_norm_legit")
def own_statistics(build: Building, x: Value, weight: Any, bias: Any, *rest: Any) -> Normed:
    """By the input's own statistics, of each place of dimension 1: those of one sample, where the
    batch is part of that dimension (instance norm).
    """
    over = [i for i in range(len(x.dims)) if i != 1]
    if len(rest) != 3 or any(BATCH in x.dims[i] for i in over):
        return training_batch_norm(build, x)
    mean = build.reduced(x, "mean", over, True)
    apart = build.mapped(("sub", "x0", "x1"), [x, mean])
    variance = build.reduced(build.mapped(("mul", "x0", "x0"), [apart]), "mean", over, True)
    scaled: Expression = ("mul", "x0", ("rsqrt", ("add", "x1", float(rest[-1]))))
    found = build.mapped(scaled, [apart, variance])
    for part, name in ((weight, "mul"), (bias, "add")):
        if part is not None:
            shape = [1, x.sizes[1], *[1] * (len(x.dims) - 2)]
            found = build.mapped((name, "x0", "x1"), [found, build.view(as_value(part), shape)])
    return found, None, None


@TABLE.of("_native_batch_norm_legit_functional", "_batch_norm_with_update",
          "_batch_norm_with_update_functional")  # fmt: skip
def training_batch_norm(build: Building, x: Value, *rest: Any) -> Normed:
    """Refused: the statistics are of the batch."""
    raise CannotConvertError(
        "batch norm in training mode, or without stored statistics: call eval() on the model "
        "first, and use track_running_stats. " + MIXES
    )


@TABLE.of("native_layer_norm")
def layer_norm(build: Building, x: Value, shape: Sequence[int], weight: Any, bias: Any,
               eps: float) -> Normed:  # fmt: skip
    """Ba et al., 2016, over the last dimensions."""
    if weight is None and bias is not None:
        weight = torch.ones_like(bias)
    affine = [part for part in (weight, bias) if part is not None]
    return build.layer_norm(x, len(shape), affine, eps), None, None


@TABLE.of("_fused_rms_norm")
def rms_norm(build: Building, x: Value, shape: Sequence[int], weight: Any, eps: Any
             ) -> tuple[Value, None]:  # fmt: skip
    """x / sqrt(mean x^2 + eps) weight over the last dimensions (Zhang and Sennrich, 2019)."""
    over = list(range(len(x.dims) - len(shape), len(x.dims)))
    mean = build.reduced(build.mapped(("mul", "x0", "x0"), [x]), "mean", over, True)
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    found = build.mapped(("mul", "x0", ("rsqrt", ("add", "x1", float(eps)))), [x, mean])
    if weight is not None:
        found = build.mapped(("mul", "x0", "x1"), [found, of_tensor(weight)])
    return found, None


@TABLE.of("native_group_norm")
def group_norm(build: Building, x: Value, weight: Any, bias: Any, n: int, channels: int, rest: int,  # noqa: PLR0913
               groups: int, eps: float) -> Normed:  # fmt: skip
    """Layer norm over each group of channels (Wu and He, 2018), affine by channel."""
    sizes = x.sizes
    flat = build.view(x, [sizes[0], groups, channels // groups * rest])
    found = build.view(build.layer_norm(flat, 1, [], eps), sizes)
    shape = [-1, *[1] * (len(sizes) - 2)]
    for part, name in ((weight, "mul"), (bias, "add")):
        if part is not None:
            found = build.mapped((name, "x0", "x1"), [found, of_tensor(part.reshape(shape))])
    return found, None, None
