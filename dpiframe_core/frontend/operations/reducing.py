"""Reductions, softmax and what is made of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from dpiframe_core.frontend.building import Building, CannotConvertError
from dpiframe_core.frontend.operations.moving import squeeze, unsqueeze
from dpiframe_core.frontend.operations.products import matmul
from dpiframe_core.frontend.operations.table import Operation, Table, as_value, axes, axis
from dpiframe_core.frontend.values import BATCH, Value, of_tensor
from dpiframe_core.program.expression import Expression

TABLE = Table()


def _reduction(function: str) -> Operation:
    def convert(
        build: Building, x: Value, dims: Any = None, keep: bool = False, **options: Any
    ) -> Value:
        found = build.reduced(x, function, axes(x, dims), keep)
        return replace(found, is_complex=x.is_complex)  # sums and means, of each part

    return convert


for _name, _function in {
    "sum": "sum", "mean": "mean", "amax": "max", "amin": "min", "prod": "prod",
}.items():  # fmt: skip
    TABLE[_name] = _reduction(_function)


@TABLE.of("any")
def any_(build: Building, x: Value, dims: Any = None, keep: bool = False) -> Value:
    """Whether any is true."""
    truth = build.mapped(("ne", "x0", 0.0), [x])
    return build.reduced(truth, "max", axes(x, dims), keep)


@TABLE.of("all")
def all_(build: Building, x: Value, dims: Any = None, keep: bool = False) -> Value:
    """Whether all are true."""
    truth = build.mapped(("ne", "x0", 0.0), [x])
    return build.reduced(truth, "min", axes(x, dims), keep)


@TABLE.of("count_nonzero")
def count_nonzero(build: Building, x: Value, dims: Any = None) -> Value:
    """How many are not 0."""
    truth = build.mapped(("ne", "x0", 0.0), [x])
    return build.reduced(truth, "sum", axes(x, dims), False)


def _spread(root: bool) -> Operation:
    def convert(build: Building, x: Value, dims: Any = None, unbiased: Any = None,
                keep: bool = False, *, correction: Any = None, keepdim: bool = False,
                ) -> Value:  # fmt: skip
        if isinstance(dims, bool):  # var(x, unbiased)
            dims, unbiased = None, dims
        over = axes(x, dims)
        count = math.prod(x.sizes[d] for d in over)
        less = (0 if unbiased is False else 1) if correction is None else correction
        if count - less <= 0:
            raise CannotConvertError(f"a variance of {count} numbers with correction {less}")
        mean = build.reduced(x, "mean", over, True)
        squares = build.mapped(("pow", ("sub", "x0", "x1"), 2.0), [x, mean])
        total = build.reduced(squares, "sum", over, keep or keepdim)
        scaled: Expression = ("mul", "x0", 1.0 / (count - less))
        return build.mapped(("sqrt", scaled) if root else scaled, [total])

    return convert


TABLE["var"], TABLE["std"] = _spread(False), _spread(True)


def _with_mean(spread: Operation) -> Operation:
    def convert(build: Building, x: Value, dims: Any = None, *rest: Any, **options: Any) -> Any:
        keep = rest[1] if len(rest) > 1 else options.get("keepdim", False)
        found = spread(build, x, dims, *rest, **options)
        over = axes(x, None if isinstance(dims, bool) else dims)
        return found, build.reduced(x, "mean", over, keep)

    return convert


TABLE["var_mean"], TABLE["std_mean"] = _with_mean(TABLE["var"]), _with_mean(TABLE["std"])


@TABLE.of("linalg_vector_norm", "norm")
def norm(build: Building, x: Value, order: Any = 2, dims: Any = None, keep: bool = False,
         **options: Any) -> Value:  # fmt: skip
    """(sum |x|^order)^(1 / order) over dimensions, and its limits: 0 counts, infinity picks."""
    order, over = 2.0 if order is None else float(order), axes(x, dims)
    magnitude: Expression = ("abs", "x0")
    if math.isinf(order):
        return build.reduced(
            build.mapped(magnitude, [x]), "max" if order > 0 else "min", over, keep
        )
    if order == 0.0:
        return build.reduced(build.mapped(("ne", "x0", 0.0), [x]), "sum", over, keep)
    if order == 1.0:
        return build.reduced(build.mapped(magnitude, [x]), "sum", over, keep)
    if order == 2.0:
        total = build.reduced(build.mapped(("mul", "x0", "x0"), [x]), "sum", over, keep)
        return build.mapped(("sqrt", "x0"), [total])
    total = build.reduced(build.mapped(("pow", magnitude, order), [x]), "sum", over, keep)
    return build.mapped(("pow", "x0", 1.0 / order), [total])


@TABLE.of("_cdist_forward")
def cdist(build: Building, a: Any, b: Any, p: float = 2.0, mode: Any = None) -> Value:
    """Distances [.., N, M] of rows a [.., N, K] and b [.., M, K]: norms of order p."""
    pair = [unsqueeze(build, as_value(a), -2), unsqueeze(build, as_value(b), -3)]
    return norm(build, build.mapped(("sub", "x0", "x1"), pair), p, [-1])


@TABLE.of("logsumexp")
def logsumexp(build: Building, x: Value, dims: Any, keep: bool = False) -> Value:
    """ln(sum exp(x)), the largest taken out first; 0 in its place where that is infinite."""
    over = axes(x, dims)
    most = build.reduced(x, "max", over, True)
    shift: Expression = ("where", ("isfinite", "x1"), "x1", 0.0)
    powers = build.mapped(("exp", ("sub", "x0", shift)), [x, most])
    total = build.reduced(powers, "sum", over, True)
    found = build.mapped(("add", ("log", "x0"), shift), [total, most])
    return found if keep else squeeze(build, found, over)


@TABLE.of("_softmax", "softmax")
def softmax(build: Building, x: Value, dim: int, *rest: Any, **options: Any) -> Value:
    """Softmax over a dimension."""
    return build.softmax(x, axis(x, dim))


@TABLE.of("_safe_softmax")
def safe_softmax(build: Building, x: Value, dim: int, *rest: Any, **options: Any) -> Value:
    """Softmax over a dimension; 0 where all of it is -infinity."""
    return build.softmax(x, axis(x, dim), guarded=True)


@TABLE.of("_log_softmax", "log_softmax")
def log_softmax(build: Building, x: Value, dim: int, *rest: Any, **options: Any) -> Value:
    """ln of softmax over a dimension."""
    total = logsumexp(build, x, [dim], True)
    return build.mapped(("sub", "x0", "x1"), [x, total])


def _running_axis(x: Value, dim: int) -> tuple[int, int]:
    """A dimension along which results run, and its size."""
    dim = axis(x, dim)
    if BATCH in x.dims[dim]:
        raise CannotConvertError(
            "it runs over the samples of a batch, as offsets of lists that lie one behind the "
            "other do; give the model lists [B, L], padded to the longest"
        )
    return dim, x.sizes[dim]


@TABLE.of("cumsum")
def cumsum(build: Building, x: Value, dim: int, **options: Any) -> Value:
    """Sums of a dimension up to each place: a product with a triangle of ones."""
    dim, n = _running_axis(x, dim)
    last = build.moved(x, dim, len(x.dims) - 1)
    flat = build.view(last, [math.prod(last.sizes[:-1]), n])
    ones = torch.ones(n, n, dtype=torch.float64).triu()
    found = build.view(matmul(build, flat, of_tensor(ones)), last.sizes)
    return build.moved(found, len(x.dims) - 1, dim)


@TABLE.of("logcumsumexp")
def logcumsumexp(build: Building, x: Value, dim: int) -> Value:
    """`logsumexp` of a dimension up to each place."""
    dim, n = _running_axis(x, dim)
    last = unsqueeze(build, build.moved(x, dim, len(x.dims) - 1), -2)
    later = of_tensor(torch.ones(n, n, dtype=torch.float64).triu(1))
    shown = build.mapped(("where", "x1", -math.inf, "x0"), [last, later])
    return build.moved(logsumexp(build, shown, [-1]), len(x.dims) - 1, dim)


def _running(function: str) -> Operation:
    def convert(build: Building, x: Value, dim: int, **options: Any) -> Any:
        dim, n = _running_axis(x, dim)
        parts = [build.sliced(x, dim, i, i + 1) for i in range(n)]
        for i in range(1, len(parts)):
            parts[i] = build.mapped((function, "x0", "x1"), [parts[i - 1], parts[i]])
        found = build.joined(parts, dim)
        return found if function == "mul" else (found, None)

    return convert


TABLE["cumprod"] = _running("mul")
TABLE["cummax"], TABLE["cummin"] = _running("max"), _running("min")
