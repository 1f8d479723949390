"""Pass: numbers by which a product's operands are multiplied multiply its result instead.

torch.export writes scaled_dot_product_attention as (q s) (k s)^T, which would store both operands
anew; behind the product s^2 becomes part of what follows it.
"""

from __future__ import annotations

from dataclasses import replace

from dpiframe_core.program.expression import Expression, replaced
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Step, TensorStep
from dpiframe_core.program.tensor_ops import Map, MatMul, Operand
from dpiframe_core.program.views import View


def scale_products(program: Program) -> Program:
    """Move the numbers behind every product of two tensors that nothing else reads."""
    for name in [step.name for step in program.steps]:
        step = next((s for s in program.steps if s.name == name), None)
        if isinstance(step, TensorStep) and isinstance(step.op, MatMul) and len(step.xs) == 2:
            program = _moved(program, step)
    return program


def _moved(program: Program, step: TensorStep) -> Program:
    xs, operands, factor = list(step.xs), list(step.operands), 1.0
    for k in range(2):
        made = program.producers().get(step.xs[k])
        number = _factor(made) if made is not None else None
        if number is None or program.only_reader(step.xs[k]) is not step:
            continue
        assert isinstance(made, TensorStep)
        if operands[k].is_whole and operands[k].shape == made.operands[0].shape:
            xs[k], operands[k], factor = made.xs[0], made.operands[0], factor * number
    if xs == list(step.xs):
        return program
    bare = replace(step, xs=tuple(xs), operands=tuple(operands))
    if factor == 1.0:
        return program.changed(steps=tuple(bare if s is step else s for s in program.steps))
    reader = program.only_reader(step.out)
    place = _place(reader, step.out) if reader is not None else None
    if place is not None and isinstance(reader, TensorStep) and isinstance(reader.op, Map):
        own = f"x{place}"
        scaled: Expression = ("mul", own, factor)
        op = Map(replaced(reader.op.expression, lambda n: scaled if n == own else n))
        after = replace(reader, op=op)
        steps: list[Step] = [_either(s, step, bare, reader, after) for s in program.steps]
        return program.changed(steps=tuple(steps))
    product = View(f"{step.name}.product", 0, step.out.width)
    times = Map(("mul", "x0", factor))
    whole = (Operand.whole(step.out.width),)
    behind = TensorStep(f"{step.name}.scaled", times, (product,), (), whole, step.out)
    steps = []
    for s in program.steps:
        steps += [replace(bare, out=product), behind] if s is step else [s]
    buffers = {**program.buffers, product.buffer: product.width}
    return program.changed(steps=tuple(steps), buffers=buffers)


def _either(step: Step, product: Step, bare: Step, reader: Step, after: Step) -> Step:
    return bare if step is product else after if step is reader else step


def _factor(step: Step) -> float | None:
    """The number by which a step multiplies all that it reads."""
    if not isinstance(step, TensorStep) or not isinstance(step.op, Map) or len(step.xs) != 1:
        return None
    return None if step.constants else _number(step.op.expression)


def _number(part: Expression) -> float | None:
    """The number by which an expression multiplies x0."""
    if part == "x0":
        return 1.0
    if not isinstance(part, tuple) or len(part) != 3:
        return None
    function, a, b = part
    if function == "mul" and isinstance(a, float):
        a, b = b, a
    inner = _number(a)
    if inner is None or not isinstance(b, float):
        return None
    if function == "mul":
        return inner * b
    return inner / b if function == "div" and b != 0.0 else None


def _place(reader: Step, view: View) -> int | None:
    """The operand as which a map reads a view, once."""
    if not isinstance(reader, TensorStep):
        return None
    found = [i for i, x in enumerate(reader.xs) if x.overlaps(view)]
    return found[0] if len(found) == 1 and reader.xs[found[0]] == view else None
