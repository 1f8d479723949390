"""Pass: constants by which columns are multiplied go into what reads these, so that the scaled
columns are never stored.

Learned weights of fields, as EDCN's gates or a scale of each column behind a block, are such. A
product (s x) . w is x . (s w); a map takes them as constants of its own. The weights are multiplied
in float64 and rounded once. Only columns that a device stores in the activation type anyhow, such
as embedding rows and what products make: others, such as dense features, might not be held by it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from dpiframe_core.lowering.device.fuse_epilogue import MOST_FUNCTIONS, MOST_OPERANDS
from dpiframe_core.program.expression import Expression, count_functions, replaced
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Head, Linear, Lookup, MappedLinear, Step, TensorStep
from dpiframe_core.program.tensor_ops import Map
from dpiframe_core.program.views import View, Weight

Product = TypeVar("Product", Linear, MappedLinear)
LEAST, MOST = 2.0**-12, 2.0**12  # by more, what float16 holds of the scaled columns it might not
# Of a product's weights in float16: a typical one of the smallest columns keeps 8 bits.
LEAST_TYPICAL, LARGEST = 2.0**-16, 2.0**15


def scale_columns(program: Program) -> Program:
    """Move the constants behind every map that does nothing else, where all that reads it are
    products, maps and the head's dots.
    """
    for name in [step.name for step in program.steps if _is_map(step)]:
        step = next(s for s in program.steps if s.name == name)
        scaled = _scaled(step, program)
        if scaled is not None and isinstance(step, TensorStep):
            program = _moved(program, step, *scaled)
    return program


def _is_map(step: Step) -> bool:
    return isinstance(step, TensorStep) and isinstance(step.op, Map)


def _scaled(step: Step, program: Program) -> tuple[View, np.ndarray] | None:
    """What a map multiplies, and by how much each column."""
    if not isinstance(step, TensorStep) or not isinstance(step.op, Map) or len(step.xs) != 1:
        return None
    x, width = step.operands[0], step.out.width
    if not x.is_whole or x.size != width:
        return None
    reads = zip(step.constants, step.operands[1:], strict=True)
    constants = {
        f"x{i}": operand.numbers(program.weights[name]).astype(np.float64).reshape(-1)
        for i, (name, operand) in enumerate(reads, 1)
    }
    factor = _factor(step.op.expression, constants)
    if factor is None:
        return None
    numbers = np.broadcast_to(factor, (width,))
    if not (np.abs(numbers) >= LEAST).all() or not (np.abs(numbers) <= MOST).all():
        return None
    read = step.xs[0].columns(x.offset, width)
    return (read, numbers) if _is_activation(program, read) else None


def _is_activation(program: Program, x: View) -> bool:
    """Whether an embedding lookup or a product makes all of it."""
    makers = (s for s in program.steps if isinstance(s, (Lookup, Linear, MappedLinear)))
    return x.width > 1 and any(s.out is not None and s.out.contains(x) for s in makers)


def _factor(part: Expression, constants: dict[str, np.ndarray]) -> np.ndarray | None:
    """By what an expression multiplies x0."""
    if part == "x0":
        return np.ones(1)
    if not isinstance(part, tuple) or part[0] not in ("mul", "div", "neg"):
        return None
    if part[0] == "neg":
        inner = _factor(part[1], constants)
        return None if inner is None else -inner
    function, a, b = part
    if function == "mul" and _number(a, constants) is not None:
        a, b = b, a
    inner, number = _factor(a, constants), _number(b, constants)
    if inner is None or number is None or (function == "div" and not number.all()):
        return None
    found: np.ndarray = inner * number if function == "mul" else inner / number
    return found


def _number(part: Expression, constants: dict[str, np.ndarray]) -> np.ndarray | None:
    if isinstance(part, float):
        return np.full(1, part)
    return constants.get(part) if isinstance(part, str) else None


def _moved(program: Program, step: TensorStep, x: View, factor: np.ndarray) -> Program:
    """The program in which all that reads the step reads x; as it was where something cannot."""
    readers = program.readers(step.out)
    if not readers or program.output.overlaps(step.out):
        return program
    weights, changed = dict(program.weights), dict[str, Step]()
    for reader in readers:
        after: Step | None = None
        if isinstance(reader, Linear) and step.out.contains(reader.x):
            view, numbers = _part(step, x, factor, reader.x)
            after = _linear(reader, step, view, numbers, weights)
        elif isinstance(reader, MappedLinear):
            after = _mapped(reader, step, x, factor, weights)
        elif isinstance(reader, Head):
            after = _head(reader, step, x, factor, weights)
        elif isinstance(reader, TensorStep) and isinstance(reader.op, Map):
            after = _map(reader, step, x, factor, weights)
        if after is None:
            return program
        changed[reader.name] = after
    steps = tuple(changed.get(s.name, s) for s in program.steps if s is not step)
    return program.changed(steps=steps, weights=weights)


def _part(step: TensorStep, x: View, factor: np.ndarray, read: View) -> tuple[View, np.ndarray]:
    """Of what is multiplied and of the factor the part that a view of the result is made of."""
    begin = read.start - step.out.start
    return x.columns(begin, read.width), factor[begin : begin + read.width]


def _product(weight: np.ndarray, factor: np.ndarray) -> np.ndarray:
    product: np.ndarray = (weight.astype(np.float64) * factor).astype(weight.dtype)
    return product


def _linear(
    reader: Product,
    step: TensorStep,
    x: View,
    factor: np.ndarray,
    weights: dict[str, np.ndarray],
) -> Product | None:
    """The product of x with weights times the factor, if float16 holds these as well as those that
    there were.
    """
    weight, sizes = weights[reader.weight], np.abs(factor)
    name = Weight(f"{reader.name}/scaled_by/{step.name}")
    weights[name] = _product(weight, factor)
    before = np.abs(weight)
    fits = np.abs(weights[name]).max() <= max(LARGEST, before.max())
    if not fits or np.median(before) * min(1.0, sizes.min()) < min(
        LEAST_TYPICAL, np.median(before)
    ):
        return None
    return replace(reader, x=x, weight=name)


def _mapped(
    reader: MappedLinear,
    step: TensorStep,
    x: View,
    factor: np.ndarray,
    weights: dict[str, np.ndarray],
) -> MappedLinear | None:
    """The product with an epilogue that reads x, as its operand or in its epilogue."""
    if reader.norm is not None:
        return None
    after: MappedLinear | None = reader
    if reader.x.overlaps(step.out):
        if not step.out.contains(reader.x):
            return None
        view, numbers = _part(step, x, factor, reader.x)
        after = _linear(reader, step, view, numbers, weights)
    if after is None:
        return None
    xs, constants = list(after.xs), list(after.constants)
    times: dict[str, Expression] = {}
    for k, view in enumerate(after.xs):
        if not view.overlaps(step.out):
            continue
        if not step.out.contains(view):
            return None
        xs[k], numbers = _part(step, x, factor, view)
        name = Weight(f"{reader.name}/scale{k}/{step.name}")
        weights[name] = numbers.astype(weights[reader.weight].dtype)
        own = f"x{k + reader.products}"
        times[own] = ("mul", own, f"x{reader.products + len(xs) + len(constants)}")
        constants.append(name)
    expression = replaced(after.expression, lambda name: times.get(name, name))
    if len(xs) + len(constants) > MOST_OPERANDS or count_functions(expression) > MOST_FUNCTIONS:
        return None
    return replace(after, xs=tuple(xs), constants=tuple(constants), expression=expression)


def _head(
    head: Head, step: TensorStep, x: View, factor: np.ndarray, weights: dict[str, np.ndarray]
) -> Head | None:
    """The head with dots of x, those of one view in one."""
    others = [*head.scalars, *(view for product in head.products for view in product)]
    if any(view.overlaps(step.out) for view in others):
        return None
    dots: dict[View, Weight] = {}
    for i, (view, weight) in enumerate(head.dots):
        name = weight
        if view.overlaps(step.out):
            if not step.out.contains(view):
                return None
            view, numbers = _part(step, x, factor, view)
            weights[name := Weight(f"{head.name}/dot{i}/scaled_by/{step.name}")] = _product(
                weights[weight], numbers
            )
        if view in dots:
            both = weights[dots[view]].astype(np.float64) + weights[name]
            weights[joined := Weight(f"{head.name}/joined{i}/{step.name}")] = both.astype(
                weights[name].dtype
            )
            name = joined
        dots[view] = name
    return replace(head, dots=tuple(dots.items()))


def _map(
    reader: TensorStep,
    step: TensorStep,
    x: View,
    factor: np.ndarray,
    weights: dict[str, np.ndarray],
) -> TensorStep | None:
    """The map with what it reads of the step multiplied in it."""
    xs, constants, operands = list(reader.xs), list(reader.constants), list(reader.operands)
    times: dict[str, Expression] = {}
    dtype = next((weight.dtype for weight in weights.values()), np.dtype(np.float32))
    for k, view in enumerate(reader.xs):
        if not view.overlaps(step.out):
            continue
        if not step.out.contains(view) or operands[k].size > view.width:
            return None
        xs[k], numbers = _part(step, x, factor, view)
        name = Weight(f"{reader.name}/scale{k}/{step.name}")
        weights[name] = numbers.astype(dtype)
        times[f"x{k}"] = ("mul", f"x{k}", f"x{len(operands)}")
        constants.append(name)
        operands.append(operands[k])
    assert isinstance(reader.op, Map)
    op = Map(replaced(reader.op.expression, lambda name: times.get(name, name)))
    return replace(
        reader, op=op, xs=tuple(xs), constants=tuple(constants), operands=tuple(operands)
    )
