"""Operations over per-sample tensors of any rank: what a model computes that no module knows.

A buffer is a matrix [B, width]; an `Operand` says how the columns of one are read as a tensor
[B, *shape]. So reshaping, transposing, slicing and broadcasting cost nothing: they change how the
next operation reads. Every result lies in its buffer in row-major order. All are plain data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import ConfigDict, PlainSerializer

from dpiframe_core.program.expression import (
    Expression,
    as_expression,
    evaluate,
    in_words,
    to_data,
)

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

# Of one sample's tensor: places in it are numbers of float32 where TopK and TakeAlong hand them on,
# which holds whole numbers up to this one exactly.
MOST_ELEMENTS = 2**24
MOST_NUMBERS = 2**31 - 1  # of a constant, such as a weight: kernels find them by a 32-bit number


class TooLargeError(ValueError):
    """A tensor of more elements than can be told apart: which one, and what to do."""


class PlainData:
    """Data that pydantic reads from JSON, without keys that it does not know."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class Operation(PlainData):
    """What a tensor operation computes; `shape` of its result tells operands that do not fit."""

    def shape(self, xs: Sequence[Operand]) -> tuple[int, ...]:
        """The result's shape; ValueError says which operands do not fit."""
        raise NotImplementedError

    def compute(self, xs: Sequence[Tensor]) -> Tensor:
        """The result [B, *shape] of tensors [B, *shape], constants [1, *shape], with torch."""
        raise NotImplementedError

    def write(self, xs: Sequence[Tensor], out: Tensor) -> None:
        """The result into `out` [B, *shape], without a copy where that is easy."""
        out.copy_(self.compute(xs))


@dataclass(frozen=True)
class Operand(PlainData):
    """Element [i, j, ...] is column offset + i strides[0] + j strides[1] + ... (0: repeated)."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.strides):
            raise ValueError(f"an operand has shape {self.shape}, but strides {self.strides}")
        if min((*self.shape, 1)) < 1 or min((*self.strides, self.offset)) < 0:
            raise ValueError(f"an operand of shape {self.shape} is empty or goes backwards")
        if max(self.size, self.end) > MOST_NUMBERS:
            raise TooLargeError(
                f"a tensor of shape {self.shape} has {self.size:,} elements, of which the last is "
                f"number {self.end:,}; at most {MOST_NUMBERS:,} can be read: split it in several"
            )

    def check_size(self, numbers: int = 0) -> None:
        """TooLargeError: the operand reads more elements than a sample's tensor may have, and than
        the `numbers` of the constant that it reads, if it reads one.
        """
        check_elements(self.shape, max(MOST_ELEMENTS, numbers))

    @classmethod
    def whole(cls, *shape: int) -> Operand:
        """All columns, row-major."""
        return cls(shape, row_major(shape))

    @property
    def size(self) -> int:
        """Elements a sample."""
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """The column behind the last one read."""
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.offset + last + 1

    @property
    def is_whole(self) -> bool:
        """Whether it reads columns one after another, each once."""
        kept = [(n, s) for n, s in zip(self.shape, self.strides, strict=True) if n > 1]
        return [s for _, s in kept] == list(row_major([n for n, _ in kept]))

    def numbers(self, constant: np.ndarray) -> np.ndarray:
        """[*shape] of a constant, not to be written to."""
        flat = np.ascontiguousarray(constant).reshape(-1)[self.offset :]
        strides = [stride * flat.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides, writeable=False)

    def read(self, buffer: Tensor) -> Tensor:
        """[B, *shape] of a buffer [B, width]."""
        sample, column = buffer.stride()
        strides = (sample, *(stride * column for stride in self.strides))
        start = buffer.storage_offset() + self.offset * column
        return buffer.as_strided((buffer.shape[0], *self.shape), strides, start)


def check_elements(shape: Sequence[int], most: int = MOST_ELEMENTS) -> None:
    """TooLargeError: a sample's tensor of this shape has more elements than that."""
    if math.prod(shape) > most:
        raise TooLargeError(
            f"a tensor of shape {tuple(shape)} would have {math.prod(shape):,} elements for each "
            f"sample, more than {most:,}; make what is computed of it in parts, or as a product "
            "with a matrix (torch.matmul), which makes no such tensor"
        )


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor whose elements lie one after another."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


@dataclass(frozen=True)
class Map(Operation):
    """out = expression of operands x0, x1, ... of one shape, element by element."""

    expression: Annotated[Expression, PlainSerializer(to_data)]
    kind: Literal["map"] = "map"

    def __post_init__(self) -> None:
        object.__setattr__(self, "expression", as_expression(self.expression))

    def shape(self, xs: Sequence[Operand]) -> tuple[int, ...]:
        if any(x.shape != xs[0].shape for x in xs):
            raise ValueError(f"a map needs operands of one shape, got {[x.shape for x in xs]}")
        return xs[0].shape

    def compute(self, xs: Sequence[Tensor]) -> Tensor:
        return evaluate(self.expression, xs)

    def __str__(self) -> str:
        return in_words(self.expression)


@dataclass(frozen=True)
class Reduce(Operation):
    """out = sum, mean, product, largest or smallest over axes, which are gone then."""

    function: Literal["sum", "mean", "prod", "max", "min"]
    axes: tuple[int, ...]
    kind: Literal["reduce"] = "reduce"

    def shape(self, xs: Sequence[Operand]) -> tuple[int, ...]:
        (x,) = xs
        if not set(self.axes) <= set(range(len(x.shape))) or not self.axes:
            raise ValueError(f"a tensor of shape {x.shape} has no axes {self.axes}")
        return tuple(n for i, n in enumerate(x.shape) if i not in self.axes)

    def compute(self, xs: Sequence[Tensor]) -> Tensor:
        x, axes = xs[0], [axis + 1 for axis in self.axes]
        if self.function == "prod":
            for axis in sorted(axes, reverse=True):
                x = x.prod(axis)
            return x
        names = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}
        found: Tensor = getattr(x, names[self.function])(axes)
        return found

    def __str__(self) -> str:
        return f"{self.function} over axes {list(self.axes)}"


@dataclass(frozen=True)
class Softmax(Operation):
    """out = softmax over axes taken together; `guarded`: 0 where all of a row is -infinity."""

    axes: tuple[int, ...]
    guarded: bool = False
    kind: Literal["softmax"] = "softmax"

    def shape(self, xs: Sequence[Operand]) -> tuple[int, ...]:
        (x,) = xs
        if not set(self.axes) <= set(range(len(x.shape))) or not self.axes:
            raise ValueError(f"a tensor of shape {x.shape} has no axes {self.axes}")
        return x.shape

    def compute(self, xs: Sequence[Tensor]) -> Tensor:
        x, axes = xs[0], [axis + 1 for axis in self.axes]
        largest = x.amax(axes, keepdim=True)
        if len(axes) == 1:
            found = x.softmax(axes[0])
        else:
            powers = (x - largest).exp()
            found = powers / powers.sum(axes, keepdim=True)
        return found.masked_fill(largest == -math.inf, 0.0) if self.guarded else found

    def __str__(self) -> str:
        kind = "guarded softmax" if self.guarded else "softmax"
        return f"{kind} over axes {list(self.axes)}"


@dataclass(frozen=True)
class LayerNorm(Operation):
    """out = (x - mean) / sqrt(var + eps) * weight + bias over the last `axes` axes (Ba et al.,
    2016); weight and bias are operands of that shape, if any.
    """

    axes: int
    eps: float
    kind: Literal["layer_norm"] = "layer_norm"

    def shape(self, xs: Sequence[Operand]) -> tuple[int, ...]:
        x, *affine = xs
        if not 1 <= self.axes <= len(x.shape) or len(affine) > 2:
            raise ValueError(f"a tensor of shape {x.shape} has no {self.axes} axes")
        if any(part.shape != x.shape[-self.axes :] for part in affine):
            raise ValueError(f"weight and bias must have shape {x.shape[-self.axes :]}")
        return x.shape

    def compute(self, xs: Sequence[Tensor]) -> Tensor:
        from torch.nn import functional

        x, *affine = xs
        shape = x.shape[-self.axes :]
        weight, bias = [*(part.reshape(shape) for part in affine), None, None][:2]
        return functional.layer_norm(x, shape, weight, bias, self.eps)

    def __str__(self) -> str:
        return f"layer norm over the last {self.axes} axes"


@dataclass(frozen=True)
class MatMul(Operation):
    """out [batch.., rows.., columns..] = a [batch.., rows.., inner..] b [batch.., inner..,
    columns..]; the numbers of axes of each kind.
    """

    batch: int
    rows: int
    inner: int
    kind: Literal["matmul"] = "matmul"

    def shape(self, xs: Sequence[Operand]) -> tuple[int, ...]:
        a, b = (x.shape for x in xs)
        batch, rows = self.batch, self.batch + self.rows
        ours, theirs = a[:batch] + a[rows:], b[: batch + self.inner]
        if min(self.batch, self.rows) < 0 or len(a) != rows + self.inner or ours != theirs:
            raise ValueError(f"tensors of shapes {a} and {b} have no such product")
        return a[:rows] + b[batch + self.inner :]

    def compute(self, xs: Sequence[Tensor]) -> Tensor:
        a, b = xs
        batch, rows = 1 + self.batch, 1 + self.batch + self.rows
        out = (*a.shape[1:rows], *b.shape[batch + self.inner :])
        inner = math.prod(a.shape[rows:])
        x = a.reshape(*a.shape[:batch], -1, inner)
        y = b.reshape(*b.shape[:batch], inner, -1)
        if self.batch and b.shape[0] == 1:  # weights: one product of each for all samples
            samples = x.movedim(0, -3)
            found = samples.flatten(-3, -2) @ y[0]
            found = found.unflatten(-2, samples.shape[-3:-1]).movedim(-3, 0)
        else:
            found = x @ y
        return found.reshape(found.shape[0], *out)

    def write(self, xs: Sequence[Tensor], out: Tensor) -> None:
        import torch

        a, b = xs
        if self.batch == 0 and b.shape[0] == 1 and out.is_contiguous():  # one product for all
            inner = math.prod(a.shape[1 + self.rows :])
            x, y = a.reshape(-1, inner), b.reshape(inner, -1)
            torch.mm(x, y, out=out.view(x.shape[0], y.shape[1]))
        else:
            out.copy_(self.compute(xs))

    def __str__(self) -> str:
        return f"product ({self.batch} batch, {self.rows} row, {self.inner} inner axes)"


@dataclass(frozen=True)
class Join(Operation):
    """out [outer, sum of n] = operands [outer, n] side by side; one operand alone is copied."""

    outer: int = 1
    kind: Literal["join"] = "join"

    def shape(self, xs: Sequence[Operand]) -> tuple[int, ...]:
        if self.outer < 1 or any(x.size % self.outer for x in xs):
            raise ValueError(f"operands {[x.shape for x in xs]} have no {self.outer} rows")
        return (self.outer, sum(x.size // self.outer for x in xs))

    def compute(self, xs: Sequence[Tensor]) -> Tensor:
        import torch

        batch = max(x.shape[0] for x in xs)
        parts = [x.reshape(x.shape[0], self.outer, -1) for x in xs]
        return torch.cat([part.expand(batch, -1, -1) for part in parts], dim=2)

    def write(self, xs: Sequence[Tensor], out: Tensor) -> None:
        begin = 0
        for x in xs:
            part = x.reshape(x.shape[0], self.outer, -1)
            out[:, :, begin : begin + part.shape[2]] = part
            begin += part.shape[2]

    def __str__(self) -> str:
        return f"join in {self.outer} rows"


@dataclass(frozen=True)
class Take(Operation):
    """out = x at fixed places of an axis: out[.., i, ..] = x[.., index[i], ..], where `behind` axes
    come behind i.
    """

    index: tuple[int, ...]
    behind: int = 0
    kind: Literal["take"] = "take"

    def shape(self, xs: Sequence[Operand]) -> tuple[int, ...]:
        (x,) = xs
        axis = len(x.shape) - 1 - self.behind
        if not 0 <= axis < len(x.shape) or not self.index or min(self.index) < 0:
            raise ValueError("take needs an axis and places in it")
        if max(self.index) >= x.shape[axis]:
            raise ValueError(f"place {max(self.index)} is outside an axis of {x.shape[axis]}")
        return (*x.shape[:axis], len(self.index), *x.shape[axis + 1 :])

    def compute(self, xs: Sequence[Tensor]) -> Tensor:
        import torch

        (x,) = xs
        return x.index_select(x.dim() - 1 - self.behind, torch.tensor(self.index, device=x.device))

    def write(self, xs: Sequence[Tensor], out: Tensor) -> None:
        import torch

        (x,) = xs
        if x.shape[0] == out.shape[0] and out.is_contiguous():
            torch.index_select(
                x, x.dim() - 1 - self.behind, torch.tensor(self.index, device=x.device), out=out
            )
        else:
            out.copy_(self.compute(xs))

    def __str__(self) -> str:
        return f"take {len(self.index)} places"


@dataclass(frozen=True)
class TopK(Operation):
    """out = the k largest (or smallest) of the last axis in order, or their places there."""

    k: int
    largest: bool = True
    places: bool = False
    kind: Literal["top_k"] = "top_k"

    def shape(self, xs: Sequence[Operand]) -> tuple[int, ...]:
        (x,) = xs
        if not x.shape or not 1 <= self.k <= x.shape[-1]:
            raise ValueError(f"a tensor of shape {x.shape} has no {self.k} to pick")
        check_elements(x.shape[-1:])
        return (*x.shape[:-1], self.k)

    def compute(self, xs: Sequence[Tensor]) -> Tensor:
        # A stable order: of equal numbers the first, as the kernel of a GPU picks them.
        import torch

        x = xs[0]
        if not self.places:
            return x.topk(self.k, largest=self.largest).values
        if x.dtype == torch.float32 and 4 * self.k <= x.shape[-1]:
            return self._first_places(x).to(x.dtype)
        places = x.sort(dim=-1, descending=self.largest, stable=True).indices
        return places[..., : self.k].to(x.dtype)

    def _first_places(self, x: Tensor) -> Tensor:
        """The places by integers that are all different: a number's order, then how far behind it
        stands. They are picked faster than all is sorted.
        """
        import torch

        n = x.shape[-1]
        bits = torch.where(x == x, x + 0.0, math.nan).view(torch.int32).long()  # one NaN, one 0
        order = bits ^ (bits >> 31 & 0x7FFFFFFF)
        behind = torch.arange(n - 1, -1, -1, device=x.device)
        keys = (order if self.largest else ~order) << 24 | behind
        return n - 1 - (keys.topk(self.k).values & 0xFFFFFF)

    def __str__(self) -> str:
        return f"top {self.k}{' places' if self.places else ''}"


@dataclass(frozen=True)
class TakeAlong(Operation):
    """out[.., i] = x[.., places[.., i]] along the last axis, NaN where that is outside of it.
    `places_first`: these are the first operand, as where x is a constant, for constants come last.
    """

    kind: Literal["take_along"] = "take_along"
    places_first: bool = False

    def shape(self, xs: Sequence[Operand]) -> tuple[int, ...]:
        x, places = self._in_order(xs)
        if not x.shape or x.shape[:-1] != places.shape[:-1]:
            raise ValueError(f"places {places.shape} do not fit a tensor of shape {x.shape}")
        check_elements(x.shape[-1:])
        return places.shape

    def compute(self, xs: Sequence[Tensor]) -> Tensor:
        batch = max(x.shape[0] for x in xs)
        x, places = (x.expand(batch, *x.shape[1:]) for x in self._in_order(xs))
        inside = (places > -1) & (places < x.shape[-1])
        found = x.gather(-1, places.where(inside, 0).long())
        return found if bool(inside.all()) else found.where(inside, math.nan)

    @property
    def picked(self) -> int:
        """Which operand x is; the other one are the places."""
        return 1 if self.places_first else 0

    def _in_order(self, xs: Sequence[T]) -> Sequence[T]:
        return xs[::-1] if self.places_first else xs

    def __str__(self) -> str:
        return "take along the last axis"


@dataclass(frozen=True)
class FieldPairs:
    """FM of all rows of the operands, `dim` wide: of a CPU's groups alone, as programs have a step
    for it.
    """

    dim: int


TensorOp = Map | Reduce | Softmax | LayerNorm | MatMul | Join | Take | TopK | TakeAlong
