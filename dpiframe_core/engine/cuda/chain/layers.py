"""A product of a chain: what its kernel needs to know of the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dpiframe_core.engine.cuda.formula import statements
from dpiframe_core.program.expression import replaced
from dpiframe_core.program.steps import FusedLinear, Linear, MappedLinear, Moments, Step
from dpiframe_core.program.views import View, Weight

Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class EpilogueView:
    """A view that the epilogue reads, of the layer's columns begin .. end-1."""

    view: View
    begin: int
    end: int


@dataclass(frozen=True)
class Dot:
    """The head's dot: of the columns begin .. end-1 with a vector of the layer."""

    begin: int
    end: int
    vector: int
    out: View


@dataclass(frozen=True)
class Layer:
    """out = of(x weight^T + bias, operands, vectors), element by element.

    `vectors` [n] each, bias first; `body`: the statements of `of` (product_chain.cuh). `sums`,
    `squares`: of its rows, where it makes them; `norm`: those that its epilogue reads.
    """

    step: Linear | FusedLinear | MappedLinear
    x: View
    n: int
    k: int
    out: View | None
    operands: tuple[EpilogueView, ...]
    vectors: tuple[np.ndarray, ...] = field(repr=False)
    body: str
    dot: Dot | None = None
    sums: View | None = None
    squares: View | None = None
    norm: Moments | None = None

    @property
    def weight(self) -> Weight:
        """Of the product."""
        return self.step.weight


def layer_of(step: Step, weights: Weights) -> Layer | None:
    """The step as a layer; None where it is none."""
    if isinstance(step, (Linear, FusedLinear)):
        return _product(step, weights)
    if isinstance(step, MappedLinear) and step.products == 1:
        return _mapped(step, weights)
    return None


def _product(step: Linear | FusedLinear, weights: Weights) -> Layer:
    n, k = weights[step.weight].shape
    lines = ["float y = sum;"]
    for begin, end in step.relu:
        lines.append(_within("y = y < 0.0f ? 0.0f : y;", begin, end, n))
    fused = step if isinstance(step, FusedLinear) else None
    operands: tuple[EpilogueView, ...] = ()
    if fused and fused.x0 and fused.xl:
        begin, end = fused.cross_start, fused.cross_start + fused.x0.width
        views = dict.fromkeys([fused.x0, fused.xl])
        operands = tuple(EpilogueView(view, begin, end) for view in views)
        lines.append(_within(f"y = fmaf(x[0], y, x[{len(views) - 1}]);", begin, end, n))
    vectors = [_bias(step.bias, weights, n)]
    dot = None
    if fused and fused.head and fused.head_out:
        head = weights[fused.head].reshape(-1)
        begin, end = fused.head_start, fused.head_start + len(head)
        vectors.append(np.zeros(n, np.float32))
        vectors[-1][begin:end] = head
        dot = Dot(begin, end, len(vectors) - 1, fused.head_out)
    body = "\n    ".join([*lines, "return y;"])
    return Layer(step, step.x, n, k, step.out, operands, tuple(vectors), body, dot)


def _mapped(step: MappedLinear, weights: Weights) -> Layer | None:
    n, k = weights[step.weight].shape
    if any(view.width != n for view in step.xs) or step.out.width != n:
        return None
    vectors = [_bias(step.bias, weights, n)]
    names = {"x0": "sum"}
    numbers: dict[str, float] = {}
    views = list(dict.fromkeys(step.xs))
    for i, view in enumerate(step.xs):
        names[f"x{i + 1}"] = f"x[{views.index(view)}]"
    for i, constant in enumerate(step.constants, len(step.xs) + 1):
        values = weights[constant].reshape(-1)
        if values.size == 1:
            numbers[f"x{i}"] = float(values[0])
        else:
            names[f"x{i}"] = f"v[{len(vectors)}]"
            vectors.append(values.astype(np.float32))
    dot = None
    if step.head and step.head_out:
        dot = Dot(0, n, len(vectors), step.head_out)
        vectors.append(weights[step.head].reshape(-1).astype(np.float32))
    if any(len(vector) != n for vector in vectors):
        return None
    if step.norm:
        first = 1 + len(step.xs) + len(step.constants)
        names |= {f"x{first + i}": f"x[{len(views) + i}]" for i in range(2)}
    expression = replaced(step.expression, lambda name: numbers.get(name, name))
    body = statements(expression, names, short=True)
    operands = tuple(EpilogueView(view, 0, n) for view in views)
    out = step.out if step.stored else None
    moments = step.sums_out, step.squares_out, step.norm
    return Layer(step, step.x, n, k, out, operands, tuple(vectors), body, dot, *moments)


def _bias(name: str | None, weights: Weights, n: int) -> np.ndarray:
    return weights[name].reshape(-1).astype(np.float32) if name else np.zeros(n, np.float32)


def _within(statement: str, begin: int, end: int, n: int) -> str:
    if begin <= 0 and end >= n:
        return statement
    return f"if (column >= {begin} && column < {end}) {statement}"
