"""Maps that only one other map reads become part of it, so that each is one pass over memory."""

from __future__ import annotations

from dataclasses import replace

from dpiframe_core.frontend.draft import Compute, Draft
from dpiframe_core.program.expression import (
    Expression,
    count_functions,
    replaced,
)
from dpiframe_core.program.tensor_ops import Map, MatMul, Operand, row_major

MOST_OPERANDS = 16
MOST_FUNCTIONS = 200


def outer_products_to_maps(draft: Draft) -> None:
    """A product over no inner axis multiplies element by element."""
    for module in draft.modules:
        if not isinstance(module, Compute) or not isinstance(module.op, MatMul) or module.op.inner:
            continue
        a, b = module.operands
        batch, rows = module.op.batch, module.op.rows
        columns = len(b.shape) - batch
        shape = module.op.shape(module.operands)
        module.operands = [
            Operand(shape, (*a.strides, *[0] * columns), a.offset),
            Operand(shape, (*b.strides[:batch], *[0] * rows, *b.strides[batch:]), b.offset),
        ]
        module.op = Map(("mul", "x0", "x1"))


def fuse_maps(draft: Draft) -> None:
    """Write each map into the only map that reads it."""
    for module in list(draft.modules):
        if not isinstance(module, Compute) or not isinstance(module.op, Map):
            continue
        reader = draft.only_reader(module.name)
        if isinstance(reader, Compute) and isinstance(reader.op, Map):
            _fuse(draft, module, reader)


def _fuse(draft: Draft, module: Compute, reader: Compute) -> None:
    assert isinstance(module.op, Map) and isinstance(reader.op, Map)
    places = [i for i, name in enumerate(reader.inputs) if name == module.name]
    parts = [(name, o) for name, o in zip(reader.inputs, reader.operands, strict=False)]
    repeated = any(0 in _needed_strides(reader.operands[i]) for i in places)
    if (len(places) > 1 or repeated) and count_functions(module.op.expression) > 1:
        return  # it would be computed more than once
    chosen: list[Expression] = []
    inputs: list[str] = []
    constants = []
    read: list[Operand] = []
    fixed: list[Operand] = []

    def add(name: str | None, constant: object, operand: Operand) -> str:
        if name is None:
            constants.append(constant)
            fixed.append(operand)
            return f"c{len(constants) - 1}"
        inputs.append(name)
        read.append(operand)
        return f"i{len(inputs) - 1}"

    for i, operand in enumerate(reader.operands):
        if i in places:
            inner = [_through(o, operand, module.operands[0].shape) for o in module.operands]
            if any(o is None for o in inner):
                return
            names: dict[str, Expression] = {}
            for j, o in enumerate(inner):
                assert o is not None
                source = module.inputs[j] if j < len(module.inputs) else None
                constant = None if source else module.constants[j - len(module.inputs)]
                names[f"x{j}"] = add(source, constant, o)
            chosen.append(replaced(module.op.expression, names.__getitem__))
        elif i < len(reader.inputs):
            chosen.append(add(parts[i][0], None, operand))
        else:
            chosen.append(add(None, reader.constants[i - len(reader.inputs)], operand))
    if len(read) + len(fixed) > MOST_OPERANDS:
        return
    final = {f"i{i}": f"x{i}" for i in range(len(inputs))}
    final |= {f"c{i}": f"x{len(inputs) + i}" for i in range(len(constants))}
    by_place = {f"x{i}": e for i, e in enumerate(chosen)}
    merged = replaced(reader.op.expression, lambda name: by_place[name])
    merged = replaced(merged, lambda name: final[name])
    if count_functions(merged) > MOST_FUNCTIONS:
        return
    reader.op = Map(merged)
    reader.inputs, reader.constants, reader.operands = inputs, constants, read + fixed  # type: ignore[assignment]
    share_operands(reader)


def share_operands(module: Compute) -> None:
    """An input read twice in the same way is one operand."""
    assert isinstance(module.op, Map)
    seen: dict[object, str] = {}
    names: dict[str, str] = {}
    inputs, constants = [], []
    read: list[Operand] = []
    for i, operand in enumerate(module.operands):
        is_input = i < len(module.inputs)
        constant = None if is_input else module.constants[i - len(module.inputs)]
        key = (module.inputs[i] if is_input else id(constant), operand)
        if key in seen:
            names[f"x{i}"] = seen[key]
            continue
        seen[key] = names[f"x{i}"] = f"x{len(read)}"
        read.append(operand)
        if constant is None:
            inputs.append(module.inputs[i])
        else:
            constants.append(constant)
    module.op = Map(replaced(module.op.expression, lambda name: names[name]))
    module.inputs, module.constants, module.operands = inputs, constants, read


def _needed_strides(operand: Operand) -> list[int]:
    return [s for n, s in zip(operand.shape, operand.strides, strict=True) if n > 1]


def _through(inner: Operand, outer: Operand, shape: tuple[int, ...]) -> Operand | None:
    """How the reader of a row-major tensor of `shape` reads what its maker read; None where the
    reader's axes are no axes, or parts of axes, of the tensor.
    """
    strides = row_major(shape)
    found, offset = [], inner.offset
    left = outer.offset
    for n, s, mine in zip(shape, strides, inner.strides, strict=True):
        offset += left // s % n * mine
        left %= s
    if left:
        return None
    for n, step in zip(outer.shape, outer.strides, strict=True):
        if n == 1 or step == 0:
            found.append(0)
            continue
        for size, s, mine in zip(shape, strides, inner.strides, strict=True):
            if step % s == 0 and (n - 1) * (step // s) < size:
                found.append(step // s * mine)
                break
        else:
            joined = _joined_axes(n, step, shape, strides, inner.strides)
            if joined is None:
                return None
            found.append(joined)
    if not _stays_inside(outer, shape, strides):
        return None
    return replace(inner, shape=outer.shape, strides=tuple(found), offset=offset)


def _joined_axes(
    n: int, step: int, shape: tuple[int, ...], strides: tuple[int, ...], mine: tuple[int, ...]
) -> int | None:
    """The stride of an axis over several neighbouring axes that lie one after another."""
    for last in range(len(shape)):
        if strides[last] != step:
            continue
        covered, at = shape[last], last
        while covered < n and at > 0 and mine[at - 1] == mine[at] * shape[at]:
            at -= 1
            covered *= shape[at]
        if covered >= n:
            return mine[last]
    return None


def _stays_inside(outer: Operand, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether no step of the reader carries from one axis of the tensor into the next."""
    used: dict[int, int] = {}
    offset = outer.offset
    places = []
    for size, s in zip(shape, strides, strict=True):
        places.append(offset // s % size)
        offset %= s
    for n, step in zip(outer.shape, outer.strides, strict=True):
        if n == 1 or step == 0:
            continue
        for i, (size, s) in enumerate(zip(shape, strides, strict=True)):
            if step % s == 0 and (n - 1) * (step // s) < size:
                used[i] = used.get(i, places[i]) + (n - 1) * (step // s)
                if used[i] >= size:
                    return False
                break
    return True
