"""The table of operations, and the arguments that PyTorch gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from dpiframe_core.frontend.values import Value, of_tensor

Operation = Callable[..., Any]
F = TypeVar("F", bound=Operation)


class Table(dict[str, Operation]):
    """Operations by PyTorch's names: each takes the building and the arguments of its schema, with
    values in place of tensors that depend on the samples, and returns what PyTorch does.
    """

    def of(self, *names: str) -> Callable[[F], F]:
        """Decorator: the function converts the operations of these names."""

        def keep(function: F) -> F:
            self.update(dict.fromkeys(names, function))
            return function

        return keep


def as_value(x: Any) -> Value:
    """A constant or a number as a value."""
    if isinstance(x, Value):
        return x
    if isinstance(x, Tensor):
        return of_tensor(x)
    return of_tensor(torch.tensor(float(x), dtype=torch.float64))


def axis(value: Value, dim: int) -> int:
    """The dimension, counted from the front."""
    rank = len(value.dims) - value.is_complex
    return dim + rank if dim < 0 else dim


def axes(value: Value, dims: Any) -> list[int]:
    """The dimensions, counted from the front; all where none are given."""
    if dims is None or dims == []:
        return list(range(len(value.dims) - value.is_complex))
    return [axis(value, d) for d in (dims if isinstance(dims, (list, tuple)) else [dims])]


def each(value: Any, count: int) -> list[int]:
    """A number for each of `count` dimensions, where one may stand for all."""
    given = list(value) if isinstance(value, (list, tuple)) else [value]
    return given * count if len(given) == 1 else given
