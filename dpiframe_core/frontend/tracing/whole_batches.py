"""Tensors of several whole batches while a model is traced: taken apart by views.

Ports of TensorFlow's attention put the heads one behind the other along the batch,
`torch.cat(q.split(head_dim, 2), 0)`, and take them apart again by `out.split(batch, 0)` or
`out.chunk(heads)`. How many parts that makes torch.export knows for no batch but the examples'.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import SymInt, Tensor


@contextlib.contextmanager
def batches_taken_apart() -> Iterator[None]:
    """Let split and chunk make views where they take whole batches apart."""
    kept: dict[tuple[Any, str], Any] = {
        (torch.Tensor, "split"): torch.Tensor.split,
        (torch.Tensor, "chunk"): torch.Tensor.chunk,
        (torch, "chunk"): torch.chunk,
    }
    for (owner, name), given in kept.items():
        setattr(owner, name, _by_views(given, _split if name == "split" else _chunk))
    try:
        yield
    finally:
        for (owner, name), given in kept.items():
            setattr(owner, name, given)


def _by_views(given: Callable[..., Any], parts: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or views where `parts` finds such."""

    @functools.wraps(given)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        try:
            found = parts(*args, **kwargs)
        except TypeError:  # of the arguments: the function itself says what is wrong with them
            found = None
        return given(*args, **kwargs) if found is None else found

    return replaced


def _split(input: Tensor, split_size: Any, dim: int = 0) -> tuple[Tensor, ...] | None:
    """Parts of so many whole batches each. The parameters have torch's names, as keywords."""
    if not isinstance(split_size, SymInt):
        return None
    count = _ratio(input.shape[dim], split_size)
    return _parts(input, int(count), split_size, dim) if count.is_Integer else None


def _chunk(input: Tensor, chunks: Any, dim: int = 0) -> tuple[Tensor, ...] | None:
    """As many parts of whole batches."""
    if not isinstance(input.shape[dim], SymInt) or not isinstance(chunks, int) or chunks < 1:
        return None
    batches, _ = _ratio(input.shape[dim], chunks).as_coeff_Mul()
    return _parts(input, chunks, -1, dim) if batches.is_Integer else None


def _ratio(size: Any, by: Any) -> Any:
    """One size over another, whatever the batch is."""
    parts = (x.node.expr if isinstance(x, SymInt) else x for x in (size, by))
    a, b = map(sympy.sympify, parts)
    return sympy.cancel(a / b)


def _parts(x: Tensor, count: int, size: Any, dim: int) -> tuple[Tensor, ...]:
    dim %= x.dim()
    return x.reshape(*x.shape[:dim], count, size, *x.shape[dim + 1 :]).unbind(dim)
