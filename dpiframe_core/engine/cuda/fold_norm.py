"""A layer norm between products becomes part of them, in 16 bits.

    norm(v) w^T + b = (v (gamma w)^T - mean sum_k (gamma w)) scale + beta w^T + b

The product before it sums up its rows and their squares in its epilogue (`sums_out`,
`squares_out`); the products behind it read its result itself, with gamma in their weights, and take
the mean out of their sums, of weights as the GPU rounds them. v is rounded to 16 bits either way.
In float32 a mean far from 0 would cost digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dpiframe_core.engine.precision import HALF_PRECISIONS
from dpiframe_core.lowering.device.align_columns import ALIGNMENT
from dpiframe_core.lowering.device.fuse_epilogue import MOST_OPERANDS, is_small
from dpiframe_core.program.expression import Expression, replaced
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Linear, MappedLinear, Moments, TensorStep
from dpiframe_core.program.tensor_ops import LayerNorm
from dpiframe_core.program.views import View, Weight

Weights = Mapping[str, np.ndarray]


def fold_norms(program: Program, precision: str) -> Program:
    """The program without the norms of whole results of products that only products read."""
    if precision not in HALF_PRECISIONS:
        return program
    for step in program.steps:
        if isinstance(step, TensorStep) and isinstance(step.op, LayerNorm):
            program = _folded(program, step, step.op, precision) or program
    return program


def _folded(program: Program, norm: TensorStep, op: LayerNorm, precision: str) -> Program | None:
    """The program without the norm; None where it stays."""
    operand, width = norm.operands[0], norm.out.width
    if len(norm.xs) != 1 or op.axes != len(operand.shape) or not operand.is_whole:
        return None
    x = norm.xs[0].columns(operand.offset, operand.size)
    maker, readers = _maker(program, x), _readers(program, norm.out)
    if operand.size != width or x.start % ALIGNMENT or maker is None or not readers:
        return None
    parts = [
        program.weights[name].reshape(-1)[o.offset :][:width]
        for name, o in zip(norm.constants, norm.operands[1:], strict=True)
    ]
    gamma = parts[0] if parts else np.ones(width)
    beta = parts[1] if len(parts) > 1 else np.zeros(width)
    sums, squares = View(f"{maker.name}.sums", 0, 1), View(f"{maker.name}.squares", 0, 1)
    moments = Moments(sums, squares, width, op.eps)
    changed = {maker.name: replace(maker, sums_out=sums, squares_out=squares)}
    weights = dict(program.weights)
    for reader in readers:
        normed = _normed(reader, x, moments, (gamma, beta), weights, precision)
        if normed is None:
            return None
        changed[reader.name] = normed
    buffers = {**program.buffers, sums.buffer: 1, squares.buffer: 1}
    steps = tuple(changed.get(step.name, step) for step in program.steps if step is not norm)
    return program.changed(steps=steps, buffers=buffers, weights=weights)


def _maker(program: Program, view: View) -> MappedLinear | None:
    """The product whose result is the view."""
    makers = [s for s in program.steps if any(w.overlaps(view) for w in s.writes())]
    if len(makers) != 1:
        return None
    made = _as_mapped(makers[0], program)
    return made if made and made.out == view and not made.sums_out else None


def _readers(program: Program, view: View) -> list[MappedLinear]:
    """The products that read the view; none where anything else does, or where they would rather
    be one.
    """
    found = program.readers(view)
    made = [_as_mapped(step, program) for step in found]
    apart = len(found) > 1 and any(isinstance(step, Linear) for step in found)
    if apart or program.output.overlaps(view):
        return []
    good = [m for m in made if m and m.x == view and not m.norm and not _overlaps(m, view)]
    return good if len(good) == len(found) else []


def _overlaps(step: MappedLinear, view: View) -> bool:
    return any(x.overlaps(view) for x in step.xs)


def _as_mapped(step: object, program: Program) -> MappedLinear | None:
    """The step as a product with a compiled epilogue."""
    if not isinstance(step, (Linear, MappedLinear)) or is_small(program, step):
        return None
    if isinstance(step, MappedLinear):
        return step
    if step.relu not in ((), ((0, step.out.width),)) or step.x.start % ALIGNMENT:
        return None
    made: Expression = ("relu", "x0") if step.relu else "x0"
    return MappedLinear(step.name, step.x, step.weight, step.bias, made, (), (), step.out)


def _normed(
    step: MappedLinear,
    x: View,
    moments: Moments,
    affine: tuple[np.ndarray, np.ndarray],
    weights: dict[str, np.ndarray],
    precision: str,
) -> MappedLinear | None:
    """The product of the norm of x as one of x; adds its weights. None: it has too many operands,
    or the weights are too large.
    """
    first = step.products + len(step.xs) + len(step.constants)
    if len(step.xs) + len(step.constants) + 2 * step.products > MOST_OPERANDS:
        return None
    gamma, beta = (part.astype(np.float64) for part in affine)
    weight = weights[step.weight]
    scaled = rounded(weight * gamma, precision)
    if not np.isfinite(scaled).all() or step.out.width == 1:
        return None
    shift = weight @ beta + (weights[step.bias] if step.bias else 0.0)
    name = Weight(f"{step.weight}/normed")
    weights[name] = scaled.astype(weight.dtype)
    behind = first + 2 * step.products
    mean, scale = f"x{behind}", f"x{behind + 1}"
    constants, names = list(step.constants), dict[str, Expression]()
    for i in range(step.products):
        for kind, columns in (("sums", scaled.sum(axis=1)), ("shift", shift)):
            constants.append(Weight(f"{step.name}/{kind}{i}"))
            weights[constants[-1]] = step.product(columns, i).astype(weight.dtype)
        sums, own = f"x{first + 2 * i}", f"x{first + 2 * i + 1}"
        centred = ("sub", f"x{i}", ("mul", mean, sums))
        names[f"x{i}"] = ("add", ("mul", centred, scale), own)
    expression = replaced(step.expression, lambda operand: names.get(operand, operand))
    return replace(
        step,
        x=x,
        weight=name,
        bias=None,
        expression=expression,
        constants=tuple(constants),
        norm=moments,
    )


def rounded(values: np.ndarray, precision: str) -> np.ndarray:
    """In float64, as the 16 bits of a precision hold them."""
    with np.errstate(over="ignore"):
        if precision == "fp16":
            return values.astype(np.float16).astype(np.float64)
        bits = values.astype(np.float32).view(np.uint32)
    even = bits + 0x7FFF + (bits >> 16 & 1)
    return (even & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)
