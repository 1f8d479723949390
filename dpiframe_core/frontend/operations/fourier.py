"""Complex numbers, and Fourier transforms as products with their matrices.

A complex value has a last dimension more, (real, imaginary), that PyTorch does not see.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dpiframe_core.frontend.building import Building, CannotConvertError
from dpiframe_core.frontend.operations.joining import stack
from dpiframe_core.frontend.operations.moving import select, squeeze, unsqueeze
from dpiframe_core.frontend.operations.products import matmul
from dpiframe_core.frontend.operations.table import Table, as_value, axes
from dpiframe_core.frontend.values import Value, of_tensor
from dpiframe_core.program.expression import Expression

TABLE = Table()


def complex_map(
    build: Building, name: str, values: list[Value], expression: Expression
) -> Value:  # fmt: skip
    """The elementwise operations of complex numbers that models use."""
    parts = expression if isinstance(expression, tuple) else ()
    is_flat = len(values) == 1 and all(isinstance(part, (str, float)) for part in parts)
    number = parts[2] if is_flat and len(parts) == 3 else None
    if name in ("add", "sub") and len(values) == 2:
        return _of_parts(build, expression, [_as_complex(build, v) for v in values])
    if name in ("add", "sub") and is_flat:
        real, imaginary = _parts(build, values[0])
        without = tuple(0.0 if isinstance(part, float) else part for part in parts)
        return complex_(build, build.mapped(expression, [real]), build.mapped(without, [imaginary]))
    if name in ("mul", "div") and len(values) == 2:
        a, b = values
        return _product(build, a, b if name == "mul" else _reciprocal(build, b))
    if name == "neg" or (name in ("mul", "div") and isinstance(number, float)):
        return _of_parts(build, expression, values)
    if name == "reciprocal":
        return _reciprocal(build, values[0])
    if name == "pow" and number in (2.0, 3.0):
        return _power(build, values[0], int(number))
    if name == "square":
        return _power(build, values[0], 2)
    if name == "exp":
        real, imaginary = _parts(build, values[0])
        return polar(build, build.mapped(("exp", "x0"), [real]), imaginary)
    if name == "abs":
        return build.mapped(("sqrt", _SQUARES), [*_parts(build, values[0])])
    raise CannotConvertError(COMPLEX)


_SQUARES: Expression = ("add", ("mul", "x0", "x0"), ("mul", "x1", "x1"))

COMPLEX = (
    "of complex numbers only transforms, sums, products element by element, quotients, powers of 2 "
    "and 3, exp, real and imaginary parts, abs and angle are known; write it with real numbers"
)


def _of_parts(build: Building, expression: Expression, values: list[Value]) -> Value:
    """What is computed of real and imaginary parts alike."""
    plain = [replace(v, is_complex=False) for v in values]
    return replace(build.mapped(expression, plain), is_complex=True)


def _as_complex(build: Building, x: Value) -> Value:
    if x.is_complex:
        return x
    return complex_(build, x, build.mapped(("mul", "x0", 0.0), [x]))


def _reciprocal(build: Building, x: Value) -> Value:
    """The conjugate over the square of the absolute value."""
    if not x.is_complex:
        return build.mapped(("reciprocal", "x0"), [x])
    squares = build.mapped(_SQUARES, [*_parts(build, x)])
    return _product(build, conj(build, x), build.mapped(("reciprocal", "x0"), [squares]))


def _power(build: Building, x: Value, order: int) -> Value:
    found = x
    for _ in range(order - 1):
        found = _product(build, found, x)
    return found


def _parts(build: Building, x: Value) -> tuple[Value, Value]:
    plain = replace(x, is_complex=False)
    return select(build, plain, -1, 0), select(build, plain, -1, 1)


def _product(build: Building, a: Value, b: Value) -> Value:
    """(re, im) of a b."""
    if not (a.is_complex and b.is_complex):
        a, b = (a, b) if a.is_complex else (b, a)
        plain = replace(a, is_complex=False)
        found = build.mapped(("mul", "x0", "x1"), [plain, unsqueeze(build, b, -1)])
        return replace(found, is_complex=True)
    four = [*_parts(build, a), *_parts(build, b)]
    real = build.mapped(("sub", ("mul", "x0", "x2"), ("mul", "x1", "x3")), four)
    imaginary = build.mapped(("add", ("mul", "x0", "x3"), ("mul", "x1", "x2")), four)
    return complex_(build, real, imaginary)


@TABLE.of("view_as_real")
def view_as_real(build: Building, x: Value) -> Value:
    """Real and imaginary parts as a last dimension."""
    return replace(x, is_complex=False)


@TABLE.of("view_as_complex")
def view_as_complex(build: Building, x: Value) -> Value:
    """A last dimension of real and imaginary parts as complex numbers."""
    return replace(x, is_complex=True)


@TABLE.of("complex")
def complex_(build: Building, real: Any, imaginary: Any) -> Value:
    """real + i imaginary."""
    return replace(stack(build, [real, imaginary], -1), is_complex=True)


@TABLE.of("polar")
def polar(build: Building, length: Any, angle: Any) -> Value:
    """Complex numbers of this absolute value and angle."""
    both = [as_value(length), as_value(angle)]
    real = build.mapped(("mul", "x0", ("cos", "x1")), both)
    return complex_(build, real, build.mapped(("mul", "x0", ("sin", "x1")), both))


@TABLE.of("angle")
def angle(build: Building, x: Value) -> Value:
    """The angle of complex numbers; of real ones 0, or pi where they are negative."""
    if not x.is_complex:
        return build.mapped(("where", ("lt", "x0", 0.0), math.pi, 0.0), [x])
    real, imaginary = _parts(build, x)
    return build.mapped(("atan2", "x0", "x1"), [imaginary, real])


@TABLE.of("real")
def real(build: Building, x: Value) -> Value:
    """The real part."""
    return _parts(build, x)[0] if x.is_complex else x


@TABLE.of("imag")
def imag(build: Building, x: Value) -> Value:
    """The imaginary part."""
    return _parts(build, x)[1]


@TABLE.of("_neg_view")
def negated(build: Building, x: Value) -> Value:
    """-x, as the imaginary part of a conjugate is read."""
    return build.mapped(("neg", "x0"), [x])


@TABLE.of("conj", "_conj", "conj_physical", "_conj_physical")
def conj(build: Building, x: Value) -> Value:
    """The imaginary part turned round."""
    if not x.is_complex:
        return x
    signs = of_tensor(torch.tensor([1.0, -1.0], dtype=torch.float64))
    found = build.mapped(("mul", "x0", "x1"), [replace(x, is_complex=False), signs])
    return replace(found, is_complex=True)


def _transformed(build: Building, x: Value, dim: int, rows: Tensor) -> Value:
    """The transform of a dimension: rows [n, parts, m, parts] of its matrix."""
    inner, outer = rows.shape[0] * rows.shape[1], rows.shape[2:]
    plain = replace(x, is_complex=False) if x.is_complex else unsqueeze(build, x, -1)
    last = build.moved(plain, dim, len(plain.dims) - 2)
    sizes = last.sizes
    flat = build.view(last, [math.prod(sizes[:-2]), inner])
    found = matmul(build, flat, rows.reshape(inner, -1))
    shown = build.view(found, [*sizes[:-2], *outer])
    return build.moved(shown, len(sizes) - 2, dim)


def _turns(n: int, out: int, sign: float, scale: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [n, out] of sign 2 pi i j / n, times scale."""
    i, j = (torch.arange(count, dtype=torch.float64) for count in (n, out))
    angle = sign * 2 * math.pi * torch.outer(i, j) / n
    return angle.cos() * scale, angle.sin() * scale


def _scale(mode: int, n: int) -> float:
    """PyTorch's norms: none, 1 / sqrt(n), 1 / n."""
    return {0: 1.0, 1: 1 / math.sqrt(n), 2: 1 / n}[mode]


@TABLE.of("_fft_r2c")
def fft_r2c(build: Building, x: Value, dims: Sequence[int], mode: int, onesided: bool) -> Value:
    """Of real numbers; the last of the dimensions is halved."""
    *rest, last = axes(x, list(dims))
    n = x.sizes[last]
    cos, sin = _turns(n, n // 2 + 1 if onesided else n, -1.0, _scale(mode, n))
    rows = torch.stack([cos, sin], 2).unsqueeze(1)
    found = replace(_transformed(build, x, last, rows), is_complex=True)
    return fft_c2c(build, found, rest, mode, True) if rest else found


@TABLE.of("_fft_c2c")
def fft_c2c(build: Building, x: Value, dims: Sequence[int], mode: int, forward: bool) -> Value:
    """Of complex numbers, forwards or backwards."""
    for dim in axes(x, list(dims)):
        n = x.sizes[dim]
        cos, sin = _turns(n, n, -1.0 if forward else 1.0, _scale(mode, n))
        real_row, imaginary_row = torch.stack([cos, sin], 2), torch.stack([-sin, cos], 2)
        rows = torch.stack([real_row, imaginary_row], 1)
        x = replace(_transformed(build, x, dim, rows), is_complex=True)
    return x


@TABLE.of("_fft_c2r")
def fft_c2r(build: Building, x: Value, dims: Sequence[int], mode: int, length: int) -> Value:
    """Backwards to real numbers, of half of the last dimension."""
    *rest, last = axes(x, list(dims))
    if rest:
        x = fft_c2c(build, x, rest, mode, False)
    half = length // 2 + 1
    if x.sizes[last] != half:
        raise CannotConvertError(f"{x.sizes[last]} frequencies for {length} places")
    cos, sin = _turns(length, length, 1.0, _scale(mode, length))
    weight = torch.full((half, 1), 2.0, dtype=torch.float64)
    weight[0] = 1.0
    if length % 2 == 0:
        weight[-1] = 1.0
    rows = torch.stack([cos[:half] * weight, -sin[:half] * weight], 1).unsqueeze(3)
    found = _transformed(build, x, last, rows)
    return squeeze(build, found, [len(found.dims) - 1])
