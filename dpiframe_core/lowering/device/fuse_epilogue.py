"""Passes for a device that compiles kernels at load: what follows a product element by element
becomes the product's epilogue.

A generic operation by itself reads what the product wrote and writes it again; in the epilogue the
product's own output never exists. It always pays: the same functions are computed of the same
numbers, and what is read and written can only become less.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpiframe_core.program.expression import Expression, count_functions, replaced
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Add, Linear, MappedLinear, Relu, Step, TensorStep
from dpiframe_core.program.tensor_ops import Map, Operand, row_major
from dpiframe_core.program.views import View, Weight

LEAST_WEIGHT = 32 * 1024  # elements: generated kernels take smaller products in whole,
LEAST_WIDTH = 128  # columns: unless they are wider
MOST_OPERANDS = 12  # that a kernel takes
MOST_FUNCTIONS = 64  # of one epilogue: it is unrolled for all columns of a tile
ALIGNMENT = 8  # columns: where the operand of a product may begin


def fuse_epilogue(program: Program) -> Program:
    """Fuse every map into the product that makes one of its operands, where nothing else reads
    that; maps behind it follow. Where a product is read by several maps of which but one is left in
    the end (Dice: x sigmoid(norm(x)) + ...), they are one first.
    """
    beside, of = _beside_others(program), program
    for name in [step.name for step in program.steps]:
        step = next((s for s in program.steps if s.name == name), None)
        found = _as_map(step, program) if step else None
        if step is None or found is None:
            continue
        if of is not program:
            beside, of = _beside_others(program), program
        if isinstance(step, TensorStep) and step.out in beside and (whole := _whole(program, step)):
            program, step = whole
            found = _as_map(step, program)
            assert found is not None
        for place, view in enumerate(found.views):
            product = _maker(program, view)
            if product is None or is_small(program, product):
                continue
            if any(other.overlaps(view) and other != view for other in found.views):
                continue  # the map also reads a part of the product's output, a column for all
            if program.only_reader(view) is step:
                program = _fused(program, product, step, found, place)
                break
    return program


def _beside_others(program: Program) -> set[View]:
    """What maps make of products that several steps read, all of them maps."""
    readers: dict[View, list[Step]] = {
        step.out: []
        for step in program.steps
        if isinstance(step, (Linear, MappedLinear)) and not is_small(program, step)
    }
    for step in program.steps if readers else ():
        for view in set(step.reads()) & readers.keys():
            readers[view].append(step)
    found = {view for view, steps in readers.items() if len(steps) > 1 and all(map(_is_map, steps))}
    for step in program.steps if found else ():
        if isinstance(step, TensorStep) and _is_map(step) and not found.isdisjoint(step.xs):
            found.add(step.out)
    return found


def _is_map(step: Step) -> bool:
    return isinstance(step, TensorStep) and isinstance(step.op, Map)


def _whole(program: Program, step: TensorStep) -> tuple[Program, TensorStep] | None:
    """The program with maps that are made for this one alone put into it, and this one then, if
    it is the only reader of a product by that and was not before.
    """
    if step.out.width == 1:
        return None  # no epilogue makes it
    made, merged = program, step
    while (inner := _made_for(made, merged)) is not None:
        both = _with(merged, inner)
        if both is None:
            return None
        merged = both
        made = made.changed(steps=tuple(merged if s.name == step.name else s for s in made.steps))
    for view in merged.xs:
        product = _maker(made, view)
        if product is None or is_small(made, product) or made.only_reader(view) is not merged:
            continue
        if program.only_reader(view) is None:
            return made, merged
    return None


def _made_for(program: Program, step: TensorStep) -> TensorStep | None:
    """A map of the step's shape that makes one of its operands, and no other step's."""
    made_by = program.producers()
    for view, operand in zip(step.xs, step.operands, strict=False):
        maker = made_by.get(view)
        reads = [o for x, o in zip(step.xs, step.operands, strict=False) if x == view]
        if (
            isinstance(maker, TensorStep)
            and isinstance(maker.op, Map)
            and _as_map(maker, program) is not None
            and program.only_reader(view) is step
            and all(read.is_whole and read.size == view.width for read in reads)
            and all(
                inner.shape == operand.shape or inner.is_whole or not any(inner.strides)
                for inner in maker.operands
            )
        ):
            return maker
    return None


def _expression(step: TensorStep) -> Expression:
    assert isinstance(step.op, Map)
    return step.op.expression


def _with(step: TensorStep, inner: TensorStep) -> TensorStep | None:
    """The map with one that makes an operand of it in the place of that operand; None: too long."""
    gone = [k for k, x in enumerate(step.xs) if x == inner.out]
    shape = step.operands[0].shape
    outer_xs = [k for k in range(len(step.xs)) if k not in gone]
    first = len(step.xs)
    order = [
        *((step, k) for k in outer_xs),
        *((inner, k) for k in range(len(inner.xs))),
        *((step, k) for k in range(first, len(step.operands))),
        *((inner, k) for k in range(len(inner.xs), len(inner.operands))),
    ]
    place = {(id(of), k): f"x{n}" for n, (of, k) in enumerate(order)}
    inside = replaced(_expression(inner), lambda name: place[id(inner), int(name[1:])])
    expression = replaced(
        _expression(step),
        lambda name: inside if int(name[1:]) in gone else place[id(step), int(name[1:])],
    )
    if count_functions(expression) > MOST_FUNCTIONS:
        return None

    def operand(of: TensorStep, k: int) -> Operand:
        read = of.operands[k]
        if read.shape == shape:
            return read
        strides = row_major(shape) if read.is_whole and read.size > 1 else (0,) * len(shape)
        return Operand(shape, strides, read.offset)

    return replace(
        step,
        op=Map(expression),
        xs=(*(step.xs[k] for k in outer_xs), *inner.xs),
        constants=(*step.constants, *inner.constants),
        operands=tuple(operand(of, k) for of, k in order),
    )


def split_epilogues(program: Program) -> Program:
    """Split products whose operand begins where TMA cannot read it: no kernel has them."""
    steps, buffers, weights = list[Step](), dict(program.buffers), dict(program.weights)
    for step in program.steps:
        if not isinstance(step, MappedLinear) or step.x.start % ALIGNMENT == 0:
            steps.append(step)
            continue
        n, made = step.out.width, list[View]()
        for i in range(step.products):
            suffix = f".{i}" if i else ""
            y = View(f"{step.name}.product{suffix}", 0, n)
            buffers[y.buffer] = n
            weight, bias = step.weight, step.bias
            if step.products > 1:
                weight, bias = Weight(f"{weight}/{i}"), Weight(f"{bias}/{i}") if bias else None
                weights[weight] = step.product(weights[step.weight], i)
                if bias and step.bias:
                    weights[bias] = step.product(weights[step.bias], i)
            steps.append(Linear(f"{step.name}{suffix}", step.x, weight, bias, y))
            made.append(y)
        widths = [n] * step.products + [view.width for view in step.xs]
        widths += [program.weights[name].size for name in step.constants]
        operands = tuple(_operand(width, n) for width in widths)
        op, xs = Map(step.expression), (*made, *step.xs)
        steps.append(TensorStep(f"{step.name}.map", op, xs, step.constants, operands, step.out))
    return program.changed(steps=tuple(steps), buffers=buffers, weights=weights)


def is_small(program: Program, product: Linear | MappedLinear) -> bool:
    """Whether a generated kernel takes the product in whole: none has an epilogue of its own."""
    if isinstance(product, MappedLinear):
        return False
    size = program.weights[product.weight].size
    return size <= LEAST_WEIGHT and product.out.width <= LEAST_WIDTH


class _AsMap:
    """A step as an expression of views and constants, each as wide as out, or of one column."""

    def __init__(
        self, expression: Expression, views: list[View], constants: list[tuple[Weight, np.ndarray]]
    ) -> None:
        self.expression, self.views, self.constants = expression, views, constants


def _as_map(step: Step, program: Program) -> _AsMap | None:
    if isinstance(step, Relu):
        return _AsMap(("relu", "x0"), [step.x], [])
    if isinstance(step, Add):
        total: Expression = "x0"
        for i in range(1, len(step.xs) + bool(step.bias)):
            total = ("add", total, f"x{i}")
        constants = [(step.bias, program.weights[step.bias])] if step.bias else []
        return _AsMap(total, list(step.xs), constants)
    if not isinstance(step, TensorStep) or not isinstance(step.op, Map):
        return None
    width, views = step.out.width, []
    for view, operand in zip(step.xs, step.operands, strict=False):
        read = _columns(operand, width)
        if read is None:
            return None
        views.append(view.columns(operand.offset, read))
    constants = []
    reads = zip(step.constants, step.operands[len(step.xs) :], strict=True)
    for k, (name, operand) in enumerate(reads):
        numbers = _numbers(program.weights[name], operand)
        constants.append((Weight(f"{step.name}/{name}/read{k}"), numbers))
    return _AsMap(step.op.expression, views, constants)


def _columns(operand: Operand, width: int) -> int | None:
    """How many columns it reads, each once: all or one; None: others, or in another order."""
    if operand.is_whole and operand.size == width:
        return width
    return 1 if not any(operand.strides) else None


def _numbers(constant: np.ndarray, operand: Operand) -> np.ndarray:
    """A constant as it is read: one number, or one for each column."""
    numbers = operand.numbers(constant).reshape(-1)
    return numbers if any(operand.strides) else numbers[:1]


def _operand(width: int, columns: int) -> Operand:
    return Operand((columns,), (1 if width == columns else 0,))


def _maker(program: Program, view: View) -> Linear | MappedLinear | None:
    for step in program.steps:
        if isinstance(step, (Linear, MappedLinear)) and step.out == view:
            relu = step.relu if isinstance(step, Linear) else ()
            return step if relu in ((), ((0, view.width),)) else None
    return None


def _fused(
    program: Program, product: Linear | MappedLinear, step: Step, found: _AsMap, place: int
) -> Program:
    """The program with the product in the place of the step, by which all operands are made."""
    (out,) = step.writes()
    if isinstance(product, MappedLinear):
        inner, xs, constants = product.expression, product.xs, product.constants
    else:
        inner, xs, constants = ("relu", "x0") if product.relu else "x0", (), ()
    own = found.views[place]
    views = list(dict.fromkeys(v for v in found.views if v != own and v not in xs))
    operands = [*xs, *views]
    names: dict[str, str] = {}  # of operands, in the fused step
    for i, view in enumerate(found.views):
        if view != own:
            names[f"x{i}"] = f"x{1 + operands.index(view)}"
    num_views = 1 + len(xs) + len(views)
    for i in range(len(found.constants)):
        names[f"x{len(found.views) + i}"] = f"x{num_views + len(constants) + i}"
    moved = {f"x{1 + len(xs) + i}": f"x{num_views + i}" for i in range(len(constants))}
    inner = replaced(inner, lambda name: moved.get(name, name))
    expression = replaced(found.expression, lambda name: names.get(name, inner))
    num_operands = num_views - 1 + len(constants) + len(found.constants)
    if num_operands > MOST_OPERANDS or count_functions(expression) > MOST_FUNCTIONS:
        return program
    if out.overlaps(program.output) or out.width != product.out.width or out.width == 1:
        return program
    weights = {**program.weights, **dict(found.constants)}
    fused = MappedLinear(
        product.name,
        product.x,
        product.weight,
        product.bias,
        expression,
        (*xs, *views),
        (*constants, *(name for name, _ in found.constants)),
        out,
    )
    steps = [fused if s is step else s for s in program.steps if s is not product]
    return program.changed(steps=tuple(steps), weights=weights)


__all__ = ["fuse_epilogue", "is_small", "split_epilogues"]
