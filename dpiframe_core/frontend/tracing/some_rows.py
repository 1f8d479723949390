"""Branches that ask whether a batch has any samples of a kind, such as `if mask.any():` before the
tower of a domain: traced as for a batch that has some.

What is computed of them is written to their places alone, and so is right for every batch; whether
a module does something else instead, its samples tell that are scored alone (`Source.run`).
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import SymInt, Tensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from dpiframe_core.frontend.tracing.any_batch import replaced_within

_MARK = "_dpiframe_of_some"  # of a tensor: its value where there are some, inf for how many
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_ALL_COUNTS = (1, 2, 2**20)


@contextlib.contextmanager
def some_rows() -> Iterator[None]:
    """What asks whether there are any samples of a kind is told so within."""
    compared = [(Tensor, f"__{name}__", _comparison(name)) for name in _COMPARED]
    reduced = [
        (owner, name, _reduction(getattr(owner, name), value))
        for owner in (torch, Tensor)
        for name, value in (("any", True), ("sum", math.inf), ("count_nonzero", math.inf))
    ]
    with replaced_within(
        *compared,
        *reduced,
        (Tensor, "__bool__", _truth),
        (Tensor, "__invert__", _inverse),
        (Tensor, "item", _item),
        (ShapeEnv, "evaluate_expr", _guard(ShapeEnv.evaluate_expr)),
    ):
        yield


def _marked(x: Tensor, value: Any) -> Tensor:
    setattr(x, _MARK, value)
    return x


def _reduction(given: Callable[..., Any], value: Any) -> Callable[..., Any]:
    """any, sum and count_nonzero of all truths of a batch."""

    @functools.wraps(given)
    def reduced(x: Any, *args: Any, **kwargs: Any) -> Any:
        found = given(x, *args, **kwargs)
        is_of_truths = isinstance(x, Tensor) and x.dtype == torch.bool and x.dim() > 0
        if is_of_truths and isinstance(x.shape[0], SymInt) and found.dim() == 0:
            return _marked(found, value)
        return found

    return reduced


def _comparison(name: str) -> Callable[..., Any]:
    given, compare = getattr(Tensor, f"__{name}__"), getattr(operator, name)

    @functools.wraps(given)
    def compared(x: Tensor, other: Any) -> Any:
        found = given(x, other)
        if hasattr(x, _MARK) and isinstance(other, int | float):
            return _marked(found, compare(getattr(x, _MARK), other))
        return found

    return compared


_BOOL, _INVERT, _ITEM = Tensor.__bool__, Tensor.__invert__, Tensor.item


def _truth(x: Tensor) -> bool:
    return bool(getattr(x, _MARK)) if hasattr(x, _MARK) else _BOOL(x)


def _inverse(x: Tensor) -> Tensor:
    found = _INVERT(x)
    return _marked(found, not getattr(x, _MARK)) if hasattr(x, _MARK) else found


def _item(x: Tensor) -> Any:
    value = getattr(x, _MARK, None)
    return value if isinstance(value, bool) else _ITEM(x)


def _guard(given: Callable[..., Any]) -> Callable[..., Any]:
    """Guards of sizes that the data decides: of whether there is anything, as if there is."""

    @functools.wraps(given)
    def evaluated(*args: Any, **kwargs: Any) -> Any:
        try:
            return given(*args, **kwargs)
        except GuardOnDataDependentSymNode as error:
            symbols = list(error.cond.free_symbols)
            if len(symbols) != 1:
                raise
            of_none = error.cond.subs(symbols[0], 0)
            found = {error.cond.subs(symbols[0], count) for count in _ALL_COUNTS}
            if len(found) != 1 or of_none in found or not found <= {sympy.true, sympy.false}:
                raise
            return found.pop()

    return evaluated
