"""Matrix products."""

from __future__ import annotations

import math
from typing import Any

from dpiframe_core.frontend.building import MIXES, Building, CannotConvertError
from dpiframe_core.frontend.operations.moving import squeeze, unsqueeze
from dpiframe_core.frontend.operations.table import Table, as_value
from dpiframe_core.frontend.values import Fixed, Value
from dpiframe_core.program.expression import Expression

TABLE = Table()


@TABLE.of("mm", "bmm")
def matmul(build: Building, a: Any, b: Any) -> Value:
    """a [.., M, K] times b [.., K, N], of two or three dimensions."""
    a, b = as_value(a), as_value(b)
    if isinstance(a.source, Fixed) and isinstance(b.source, Fixed):
        a = build.on_batch(a)
    missing = 3 - len(a.dims)
    x, y = (v.with_dims([*[()] * missing, *v.dims]) for v in (a, b))
    found = build.product(x, y)
    return found.with_dims(found.dims[missing:])


@TABLE.of("addmm", "baddbmm")
def addmm(build: Building, c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Value:
    """beta c + alpha a b."""
    return build.mapped(_sum(alpha, beta), [matmul(build, a, b), as_value(c)])


def _sum(alpha: float, beta: float) -> Expression:
    product: Expression = "x0" if alpha == 1 else ("mul", "x0", float(alpha))
    return ("add", product, "x1" if beta == 1 else ("mul", "x1", float(beta)))


@TABLE.of("mv")
def mv(build: Building, a: Any, b: Any) -> Value:
    """A matrix times a vector."""
    return squeeze(build, matmul(build, a, unsqueeze(build, as_value(b), 1)), [1])


@TABLE.of("addmv")
def addmv(build: Building, c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Value:
    """beta c + alpha a b of a vector b."""
    return build.mapped(_sum(alpha, beta), [mv(build, a, b), as_value(c)])


@TABLE.of("linear")
def linear(build: Building, x: Value, weight: Any, bias: Any = None) -> Value:
    """x [.., K] times weight [N, K] transposed, and the bias."""
    turned = as_value(weight)
    turned = turned.with_dims(turned.dims[::-1])
    flat = build.view(x, [math.prod(x.sizes[:-1]), x.sizes[-1]])
    found = build.view(matmul(build, flat, turned), [*x.sizes[:-1], turned.sizes[1]])
    if bias is None:
        return found
    return build.mapped(("add", "x0", "x1"), [found, as_value(bias)])


@TABLE.of("_trilinear")
def trilinear(  # noqa: PLR0913
    build: Building, a: Any, b: Any, c: Any, expand1: Any, expand2: Any, expand3: Any,
              sumdim: Any, unroll_dim: int = 1) -> Value:  # fmt: skip
    """The sum over dimensions of a b c, each with dimensions of one place more (nn.Bilinear)."""
    expanded = (list(expand1), list(expand2), list(expand3), list(sumdim))
    if expanded == ([1, 3], [0], [1, 2], [2, 3]) and isinstance(as_value(b).source, Fixed):
        return _bilinear(build, as_value(a), as_value(b), as_value(c))
    parts = []
    for x, dims in ((as_value(a), expand1), (as_value(b), expand2), (as_value(c), expand3)):
        for dim in sorted(dims):
            x = unsqueeze(build, x, dim)
        parts.append(x)
    product = build.mapped(("mul", ("mul", "x0", "x1"), "x2"), parts)
    return build.reduced(product, "sum", list(sumdim), False)


def _bilinear(build: Building, a: Value, b: Value, c: Value) -> Value:
    """sum_ij a [.., i] b [n, i, j] c [.., j]: a product with a matrix [i, n j], and another of what
    that makes, so that there is no tensor of all three for each sample.
    """
    rows, (n, width, _) = a.sizes[0], b.sizes
    matrix = build.view(build.moved(b, 0, 1), [width, n * b.sizes[2]])
    left = build.view(matmul(build, a, matrix), [rows, n, b.sizes[2]])
    return squeeze(build, matmul(build, left, unsqueeze(build, c, 2)), [2])


@TABLE.of("dot", "vdot")
def dot(build: Building, a: Any, b: Any) -> Value:
    """Refused: vectors of samples."""
    raise CannotConvertError(MIXES)
