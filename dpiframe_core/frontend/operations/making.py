"""Sizes, and numbers that are the same for every sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from dpiframe_core.frontend.building import MIXES, Building, CannotConvertError
from dpiframe_core.frontend.operations.moving import expand
from dpiframe_core.frontend.operations.table import Table, axis
from dpiframe_core.frontend.values import BATCH, BATCH_SIZE, Samples, Value

TABLE = Table()


@TABLE.of("sym_size")
def sym_size(build: Building, x: Value, dim: int) -> int:
    """Places of a dimension."""
    return x.sizes[axis(x, dim)]


@TABLE.of("sym_numel", "numel")
def sym_numel(build: Building, x: Value) -> int:
    """Elements of a tensor."""
    return math.prod(x.sizes)


@TABLE.of("full")
def full(build: Building, sizes: Sequence[int], value: float, **options: Any) -> Value:
    """One number in every place."""
    return expand(build, torch.tensor(float(value), dtype=torch.float64), sizes)


@TABLE.of("zeros", "empty", "new_zeros", "new_empty")
def zeros(build: Building, *args: Any, **options: Any) -> Value:
    """0 in every place; what `empty` holds is written over."""
    return full(build, args[-1], 0.0)


@TABLE.of("empty_permuted", "empty_strided", "new_empty_strided")
def empty_permuted(build: Building, *args: Any, **options: Any) -> Value:
    """Memory that is written over: how it lies is of no account."""
    return full(build, args[-2], 0.0)


@TABLE.of("ones", "new_ones")
def ones(build: Building, *args: Any, **options: Any) -> Value:
    """1 in every place."""
    return full(build, args[-1], 1.0)


@TABLE.of("new_full")
def new_full(build: Building, x: Any, sizes: Sequence[int], value: float, **options: Any) -> Value:
    """One number in every place."""
    return full(build, sizes, value)


@TABLE.of("full_like", "fill")
def full_like(build: Building, x: Value, value: float, **options: Any) -> Value:
    """One number in every place of a tensor of the sizes of x."""
    return full(build, x.sizes, value)


@TABLE.of("zeros_like", "empty_like")
def zeros_like(build: Building, x: Value, **options: Any) -> Value:
    """0 in every place of a tensor of the sizes of x."""
    return full(build, x.sizes, 0.0)


@TABLE.of("ones_like")
def ones_like(build: Building, x: Value, **options: Any) -> Value:
    """1 in every place of a tensor of the sizes of x."""
    return full(build, x.sizes, 1.0)


@TABLE.of("arange")
def arange(build: Building, *args: Any, **options: Any) -> Value:
    """The samples' places in the batch: `x[torch.arange(B), ...]` picks of each sample its own."""
    start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    if start != 0 or stop != BATCH_SIZE * step:
        raise CannotConvertError("samples are numbered by their place in the batch: " + MIXES)
    return Value(Samples(step), ((BATCH,),), is_integer=True)


_RANDOM = (
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli",
    "normal", "normal_functional", "multinomial", "exponential", "uniform", "native_dropout",
)  # fmt: skip


@TABLE.of(*_RANDOM)
def random(build: Building, *args: Any, **options: Any) -> Value:
    """Refused: a score would be another at every run."""
    raise CannotConvertError(
        "random numbers, so a sample would have another score at every run; call eval() on the "
        "model, and leave noise to its training"
    )
