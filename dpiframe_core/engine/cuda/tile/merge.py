"""Operations of a group that become one, or two.

Products of one operand with several constant matrices are one product with all their columns: so
queries, keys, values and residuals of an attention are one stage of a kernel. A Map that alone
reads another's result in its order, maybe by other axes, is one with it. Norms of the fields'
vectors are one norm, each row with weights of its own. A sum over all of a product is one over its
columns, which is taken as they are made, and one over its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dpiframe_core.engine.cuda.tile.index import size_of
from dpiframe_core.engine.cuda.tile.product import MOST_SUMMED
from dpiframe_core.engine.translation import Operation, Source
from dpiframe_core.program.expression import Expression, count_functions, replaced
from dpiframe_core.program.tensor_ops import LayerNorm, Map, MatMul, Operand, Reduce
from dpiframe_core.program.views import View

MOST_FUNCTIONS = 40  # of a Map that is several


def merge_products(operations: Sequence[Operation], own: frozenset[str]) -> list[Operation]:
    """The operations with siblings merged, where all that reads their results can read them where
    they then lie.
    """
    found = list(operations)
    for first in operations:
        if not any(first is o for o in found) or not _is_product(first, own):
            continue
        siblings = [o for o in found if _is_sibling(first, o, own)]
        siblings = [o for o in siblings if _readers(found, o.out, _rows(first)) is not None]
        if len(siblings) > 1 and any(first is o for o in siblings):
            found = _merged(found, siblings)
    return found


def merge_maps(operations: Sequence[Operation], own: frozenset[str]) -> list[Operation]:
    """The operations with chains of maps merged, up to MOST_FUNCTIONS."""
    found = list(operations)
    number = 0
    while number < len(found):
        first = found[number]
        reader = _only_map(found, first) if first.out.buffer in own else None
        merged = _chained(first, reader) if reader else None
        if merged is None:
            number += 1
        else:
            found = [merged if o is reader else o for o in found if o is not first]
    return found


def merge_norms(
    operations: Sequence[Operation], own: frozenset[str]
) -> tuple[list[Operation], frozenset[str]]:
    """The operations with norms of neighbouring columns merged, and what they own then."""
    found, names = list(operations), set(own)
    number = 0
    while number < len(found):
        norms = [found[number]] if _norms_a_row(found[number]) else []
        for other in found[number + 1 :]:
            if norms and _follows(norms[-1], other) and not _is_made(found[number:], other):
                norms.append(other)
        if len(norms) > 1:
            buffer = f"{norms[0].out.buffer}.{norms[0].out.start}.norms"
            names.add(buffer)
            kept = [o for o in found[number:] if not any(o is n for n in norms)]
            found[number:] = [*_one_norm(norms, buffer), *kept]
        number += 1
    return found, frozenset(names)


def split_sums(
    operations: Sequence[Operation], own: frozenset[str]
) -> tuple[list[Operation], frozenset[str]]:
    """The operations with sums over columns and rows of products as two, and what they own then."""
    read = Counter(s.buffer for o in operations for s in o.sources if isinstance(s, View))
    made_by = {o.out: o for o in operations if o.out.buffer in own and read[o.out.buffer] == 1}
    found, names = list[Operation](), set(own)
    for operation in operations:
        kept = _rows_summed_too(operation, made_by)
        if kept is None:
            found.append(operation)
            continue
        op, shape = operation.op, operation.operands[0].shape
        assert isinstance(op, Reduce)
        rows = View(f"{operation.out.buffer}.{operation.out.start}.rows", 0, size_of(shape[:kept]))
        names.add(rows.buffer)
        columns = replace(op, axes=tuple(range(kept, len(shape))))
        others = replace(op, axes=tuple(axis for axis in op.axes if axis < kept))
        found.append(Operation(columns, operation.sources, operation.operands, rows))
        found.append(Operation(others, (rows,), (Operand.whole(*shape[:kept]),), operation.out))
    return found, frozenset(names)


def _rows_summed_too(operation: Operation, made_by: Mapping[View, Operation]) -> int | None:
    """The first axis of a product's columns, where they are summed and an axis before them, too."""
    op, x = operation.op, operation.operands[0]
    if not isinstance(op, Reduce) or op.function not in ("sum", "mean") or not x.is_whole:
        return None
    product = made_by.get(_read(operation)) if isinstance(operation.sources[0], View) else None
    if product is not None and isinstance(product.op, Map):
        sources = zip(product.sources, product.operands, strict=True)
        makers = [
            made_by.get(source.columns(operand.offset, operand.size))
            for source, operand in sources
            if isinstance(source, View) and operand.is_whole
        ]
        product = next((m for m in makers if m is not None and isinstance(m.op, MatMul)), None)
    if product is None or not isinstance(product.op, MatMul):
        return None
    width = size_of(product.operands[1].shape[product.op.batch + product.op.inner :])
    for first in range(1, len(x.shape) if width <= MOST_SUMMED else 0):
        if size_of(x.shape[first:]) == width > 1 and set(range(first, len(x.shape))) < set(op.axes):
            return first
    return None


def _norms_a_row(operation: Operation) -> bool:
    return (
        isinstance(operation.op, LayerNorm)
        and isinstance(operation.sources[0], View)
        and operation.operands[0].strides == (1,)
        and all(isinstance(s, np.ndarray) for s in operation.sources[1:])
    )


def _follows(norm: Operation, other: Operation) -> bool:
    """Whether another norm reads and writes the columns behind those of a norm."""
    if not _norms_a_row(other) or other.op != norm.op or len(other.sources) != len(norm.sources):
        return False
    return (
        _read(other) == _behind(_read(norm), _read(other).width)
        and _read(other).width == _read(norm).width
        and other.out == _behind(norm.out, norm.out.width)
    )


def _is_made(operations: Sequence[Operation], norm: Operation) -> bool:
    """Whether one of these makes what a norm reads."""
    return any(operation.out.overlaps(_read(norm)) for operation in operations)


def _read(norm: Operation) -> View:
    """The columns of the first operand, which lie side by side."""
    source = norm.sources[0]
    assert isinstance(source, View)
    return source.columns(norm.operands[0].offset, norm.operands[0].size)


def _behind(view: View, width: int) -> View:
    return View(view.buffer, view.start + view.width, width)


def _one_norm(norms: list[Operation], buffer: str) -> list[Operation]:
    """A norm of rows, and a Map by their weights and biases."""
    rows, size = len(norms), norms[0].out.width
    read, out = (View(v.buffer, v.start, rows * size) for v in (_read(norms[0]), norms[0].out))
    whole = Operand.whole(rows, size)
    if len(norms[0].sources) == 1:
        return [replace(norms[0], sources=(read,), operands=(whole,), out=out)]
    made = View(buffer, 0, rows * size)
    affine = [
        np.concatenate([_numbers(norm, k) for norm in norms])
        for k in range(1, len(norms[0].sources))
    ]
    expression: Expression = ("mul", "x0", "x1")
    if len(affine) > 1:
        expression = ("add", expression, "x2")
    return [
        replace(norms[0], sources=(read,), operands=(whole,), out=made),
        Operation(Map(expression), (made, *affine), (whole,) * (1 + len(affine)), out),
    ]


def _numbers(operation: Operation, k: int) -> np.ndarray:
    """A constant operand's numbers, row-major."""
    source, operand = operation.sources[k], operation.operands[k]
    assert isinstance(source, np.ndarray)
    return operand.numbers(source).reshape(-1)


def _only_map(operations: Sequence[Operation], first: Operation) -> Operation | None:
    """The Map all of whose operands are the whole result of another one, which it alone reads."""
    if not isinstance(first.op, Map):
        return None
    readers = [o for o in operations if any(_overlaps(s, first.out) for s in o.sources)]
    writers = [o for o in operations if o.out.overlaps(first.out)]
    if len(readers) != 1 or len(writers) != 1 or not isinstance(readers[0].op, Map):
        return None
    for source, operand in zip(readers[0].sources, readers[0].operands, strict=True):
        if not isinstance(source, View) or not operand.is_whole:
            return None
        if View(source.buffer, source.start + operand.offset, operand.size) != first.out:
            return None
    return readers[0]


def _overlaps(source: Source, out: View) -> bool:
    return isinstance(source, View) and source.overlaps(out)


def _chained(first: Operation, reader: Operation) -> Operation | None:
    assert isinstance(first.op, Map)
    assert isinstance(reader.op, Map)
    inner = first.op.expression
    whole = replaced(reader.op.expression, lambda _: inner)
    if count_functions(whole) > MOST_FUNCTIONS:
        return None
    return replace(first, op=Map(whole), out=reader.out)


def _is_product(operation: Operation, own: frozenset[str]) -> bool:
    op = operation.op
    return (
        isinstance(op, MatMul)
        and op.batch == 0
        and op.inner == 1
        and isinstance(operation.sources[0], View)
        and isinstance(operation.sources[1], np.ndarray)
        and len(operation.operands[1].shape) == 2
        and operation.out.buffer in own
        and operation.out.start == 0
    )


def _is_sibling(first: Operation, other: Operation, own: frozenset[str]) -> bool:
    return (
        _is_product(other, own)
        and other.op == first.op
        and other.sources[0] == first.sources[0]
        and other.operands[0] == first.operands[0]
    )


def _rows(product: Operation) -> int:
    return product.operands[0].size // product.operands[0].shape[-1]


def _readers(operations: Sequence[Operation], out: View, rows: int) -> list[tuple[int, int]] | None:
    """Operations and operands that read a result; None where one does not go by its rows."""
    columns = out.width // rows
    found = []
    for i, operation in enumerate(operations):
        if operation.out.overlaps(out) and operation.out != out:
            return None
        for k, (source, operand) in enumerate(
            zip(operation.sources, operation.operands, strict=True)
        ):
            if not isinstance(source, View) or source.buffer != out.buffer:
                continue
            inside = operand.offset % columns
            for size, stride in zip(operand.shape, operand.strides, strict=True):
                if stride % columns:
                    inside += (size - 1) * stride
            if source.start or inside >= columns:
                return None
            found.append((i, k))
    return found


def _merged(operations: list[Operation], siblings: list[Operation]) -> list[Operation]:
    first = siblings[0]
    rows = _rows(first)
    widths = [o.out.width // rows for o in siblings]
    total = sum(widths)
    matrices = [_matrix(o) for o in siblings]
    weight = np.ascontiguousarray(np.concatenate(matrices, axis=1)).reshape(-1)
    inner = first.operands[0].shape[-1]
    out = View(first.out.buffer, 0, rows * total)
    merged = replace(
        first,
        sources=(first.sources[0], weight),
        operands=(first.operands[0], Operand((inner, total), (total, 1))),
        out=out,
    )
    found = list(operations)
    begin = 0
    for sibling, width in zip(siblings, widths, strict=True):
        for i, k in _readers(found, sibling.out, rows) or []:
            found[i] = _moved(found[i], k, width, total, begin, out)
        begin += width
    places = [i for i, o in enumerate(operations) if any(o is s for s in siblings)]
    found[places[0]] = merged
    return [o for i, o in enumerate(found) if i not in places[1:]]


def _matrix(product: Operation) -> np.ndarray:
    return _numbers(product, 1).reshape(product.operands[1].shape)


def _moved(
    operation: Operation, k: int, width: int, total: int, begin: int, out: View
) -> Operation:
    """The reader of rows of `width` columns where these lie in rows of `total`, from `begin`."""
    operand = operation.operands[k]
    strides = [
        stride // width * total if stride % width == 0 else stride for stride in operand.strides
    ]
    offset = operand.offset // width * total + operand.offset % width + begin
    operands = list(operation.operands)
    operands[k] = Operand(operand.shape, tuple(strides), offset)
    sources = list(operation.sources)
    sources[k] = out
    return replace(operation, sources=tuple(sources), operands=tuple(operands))
