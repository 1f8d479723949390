"""What a traced program's values are while they are converted: how each is read, not what it holds.

A value has the dimensions that PyTorch sees, each a list of factors; one factor is the batch, the
others have a size and a stride into a sample's part of the source. So a view that splits or joins
dimensions, a transpose, a slice or an expansion changes factors alone, and a batch that a view
joined with another dimension ([B, H, L, D] read as [B * H, L, D]) is still known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpiframe_core.program.expression import Expression
from dpiframe_core.program.tensor_ops import Operand, row_major

# The batch's size while sizes are computed: a prime that no number of a model is a multiple of, be
# it a dimension or what ids are hashed with (1,000,003 and such are).
BATCH_SIZE = 1_187_341


class UnreadableError(Exception):
    """A value has no such view; it must be copied first."""


@dataclass(frozen=True)
class Factor:
    """`size` places, `stride` apart in the source; BATCH is the samples."""

    size: int
    stride: int


BATCH = Factor(BATCH_SIZE, -1)
Dim = tuple[Factor, ...]


@dataclass(frozen=True)
class Column:
    """One number a sample from outside: element `position` of an input (0 for one number)."""

    input: str
    position: int


@dataclass(frozen=True)
class Scalar:
    """A function of one column, in `expression` named x0."""

    column: Column
    expression: Expression = "x0"


@dataclass(frozen=True, eq=False)
class Columns:
    """Source: scalars that have not been looked up or computed with yet."""

    scalars: tuple[Scalar, ...]


@dataclass(frozen=True, eq=False)
class Made:
    """Source: what a module makes [B, width], or the dense features."""

    module: str


@dataclass(frozen=True, eq=False)
class Fixed:
    """Source: numbers that are the same for every sample."""

    numbers: Tensor  # contiguous


@dataclass(frozen=True, eq=False)
class Samples:
    """Source: `step` times each sample's place in the batch, by which samples are picked, and what
    is added to it: a value of the same dimensions. `only`: truths [B] of those that are meant.
    """

    step: int
    added: Value | None = None
    only: Value | None = None


Source = Columns | Made | Fixed | Samples


@dataclass(frozen=True)
class Value:
    """A tensor of the program: `dims` into `source`, from `offset` on.

    `is_integer`: ids, counts and truths; `is_truth`: truths alone. `is_complex`: the last of `dims`
    is (real, imaginary).
    """

    source: Source
    dims: tuple[Dim, ...]
    offset: int = 0
    is_integer: bool = False
    is_truth: bool = False
    is_complex: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes as PyTorch sees them, the batch as BATCH_SIZE."""
        return tuple(size(dim) for dim in self.dims)

    @property
    def factors(self) -> list[Factor]:
        """All factors but the batch, outermost first."""
        return [f for dim in self.dims for f in dim if f is not BATCH]

    def operand(self) -> Operand:
        """How a module reads the value: its factors as axes. TooLargeError: nothing can."""
        factors = self.factors
        read = Operand(
            tuple(f.size for f in factors), tuple(f.stride for f in factors), self.offset
        )
        read.check_size(self.source.numbers.numel() if isinstance(self.source, Fixed) else 0)
        return read

    def with_dims(self, dims: Iterable[Dim], **changes: Any) -> Value:
        """The same source read otherwise."""
        return replace(self, dims=tuple(joined(dim) for dim in dims), **changes)


def size(dim: Dim) -> int:
    """Places of a dimension."""
    return math.prod(f.size for f in dim)


def of_tensor(numbers: Tensor) -> Value:
    """A constant as a value."""
    numbers = numbers.detach()
    if numbers.is_complex():
        return replace(of_tensor(torch.view_as_real(numbers.resolve_conj())), is_complex=True)
    numbers = numbers.contiguous()
    dims = tuple(
        (Factor(n, s),) if n != 1 else ()
        for n, s in zip(numbers.shape, row_major(numbers.shape), strict=True)
    )
    return Value(Fixed(numbers), dims, 0, not numbers.dtype.is_floating_point)


def packed(dims: Sequence[Dim], step: int = 1, keep_repeats: bool = False) -> tuple[Dim, ...]:
    """The same dimensions of a source where the factors lie one after another, row-major, the
    last `step` apart; with `keep_repeats` those of stride 0 stay repetitions.
    """
    stride = step
    found: list[Dim] = []
    for dim in reversed(dims):
        new: list[Factor] = []
        for factor in reversed(dim):
            if factor is BATCH or (keep_repeats and not factor.stride):
                new.insert(0, factor)
            else:
                new.insert(0, Factor(factor.size, stride))
                stride *= factor.size
        found.insert(0, joined(tuple(new)))
    return tuple(found)


def joined(dim: Dim) -> Dim:
    """Neighbours that lie one after another as one factor, factors of one place left out."""
    found: list[Factor] = []
    for factor in dim:
        if factor is not BATCH and factor.size == 1:
            continue
        last = found[-1] if found else None
        both = last is not None and BATCH not in (last, factor)
        if last is not None and both and last.stride == factor.size * factor.stride:
            found[-1] = Factor(last.size * factor.size, factor.stride)
        else:
            found.append(factor)
    return tuple(found)


def split(dim: Dim, sizes: Sequence[int]) -> list[Dim]:
    """A dimension as several of these sizes; UnreadableError where a factor has no such part."""
    left = list(dim)
    found: list[Dim] = []
    for wanted in reversed(sizes):
        part: list[Factor] = []
        have = 1
        while have < wanted:
            if not left:
                raise UnreadableError
            factor, need = left.pop(), wanted // have
            if factor is BATCH:
                if need % BATCH_SIZE:
                    raise UnreadableError
                part.insert(0, BATCH)
                have *= BATCH_SIZE
                continue
            inner = math.gcd(factor.size, need)
            if inner == 1 or (inner != factor.size and inner != need):
                raise UnreadableError
            part.insert(0, Factor(inner, factor.stride))
            have *= inner
            if inner < factor.size:
                left.append(Factor(factor.size // inner, factor.stride * inner))
        if have != wanted:
            raise UnreadableError
        found.insert(0, tuple(part))
    if left:
        raise UnreadableError
    return found


def viewed(value: Value, sizes: Sequence[int]) -> Value:
    """`view` of the value; UnreadableError where its numbers do not lie so."""
    hidden = [value.dims[-1]] if value.is_complex else []
    dims = value.dims[:-1] if value.is_complex else value.dims
    all_factors = tuple(itertools.chain.from_iterable(dims))
    return value.with_dims([*split(joined(all_factors), sizes), *hidden])


def refined(dims: Sequence[Dim]) -> list[Dim]:
    """Dimensions of one size with factors of the same sizes; one of size 1 is repeated.

    UnreadableError where they have no common factors.
    """
    if all(not dim for dim in dims):
        return [() for _ in dims]
    left = [list(dim) for dim in dims]
    found: list[list[Factor]] = [[] for _ in dims]
    while any(left):
        ends = [part[-1] for part in left if part]
        if any(e is BATCH for e in ends):
            if not all(
                not dim or (part and part[-1] is BATCH)
                for dim, part in zip(dims, left, strict=True)
            ):
                raise UnreadableError
            for i, dim in enumerate(dims):
                if dim:
                    left[i].pop()
                found[i].insert(0, BATCH)
            continue
        least = min(e.size for e in ends)
        for i, dim in enumerate(dims):
            if not dim:
                found[i].insert(0, Factor(least, 0))
                continue
            if not left[i]:
                raise UnreadableError
            factor = left[i].pop()
            if factor.size % least:
                raise UnreadableError
            found[i].insert(0, Factor(least, factor.stride))
            if factor.size > least:
                left[i].append(Factor(factor.size // least, factor.stride * least))
    return [tuple(f) for f in found]


def places(value: Value) -> np.ndarray:
    """The place in the source of each element of one sample, in the order of the factors."""
    found = np.array([value.offset])
    for factor in value.factors:
        found = (found[:, None] + np.arange(factor.size) * factor.stride).reshape(-1)
    return found


def distinct(value: Value) -> tuple[np.ndarray, tuple[Dim, ...]]:
    """The places of the elements that are no repetitions, and the value's dimensions over these
    elements side by side.
    """
    once = [tuple(f for f in dim if f is BATCH or f.stride) for dim in value.dims]
    return places(replace(value, dims=tuple(once))), packed(value.dims, keep_repeats=True)


def shape_of(value: Value) -> list[int]:
    """Places of each dimension, the batch left out."""
    return [math.prod(f.size for f in dim if f is not BATCH) for dim in value.dims]


def numbers_of(value: Value) -> Tensor:
    """The numbers of a constant, as its factors are ordered, flat."""
    assert isinstance(value.source, Fixed)
    flat, read = value.source.numbers.reshape(-1), value.operand()
    if read.is_whole and not read.offset and read.size == len(flat):
        return flat
    return flat[torch.from_numpy(places(value))]
