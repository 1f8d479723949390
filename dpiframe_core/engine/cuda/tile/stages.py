"""What a kernel computes in stages, and what is computed where it is read.

Operations that only change how an element is found or are cheap (`Map`, `Take`) are computed where
they are read, unless that would repeat costly work; a `Map` that alone reads a result is applied as
the result is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dpiframe_core.engine.cuda.tile.index import Index, Scope, size_of
from dpiframe_core.engine.cuda.tile.product import MOST_SUMMED, WARPS, Product, attention_row_tiles
from dpiframe_core.engine.translation import Operation
from dpiframe_core.program.expression import Expression
from dpiframe_core.program.tensor_ops import (
    Join,
    LayerNorm,
    Map,
    MatMul,
    Operand,
    Reduce,
    Softmax,
    Take,
    TakeAlong,
    row_major,
)
from dpiframe_core.program.views import View

GOOD_SHARED = 112 * 1024  # bytes of a CTA, of which two fit a multiprocessor
COSTLY = {"div", "pow", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid",
          "tanh", "erf", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "atan2",
          "mod", "rsqrt", "sqrt", "reciprocal"}  # fmt: skip


PACK = 8  # elements that are read at once, where they lie side by side

Weigh = Literal["Softmax", "Guarded", "Plain"]


@dataclass
class Stage:
    """An operation that writes its result, with the Map that is applied as it is written."""

    operation: Operation
    shape: tuple[int, ...]  # of the operation's own result
    post: Operation | None = None
    replaced: int = 0  # the post's operand that is the result
    scores: Stage | None = None  # of a product with their softmax, or with them: attention
    weigh: Weigh = "Softmax"  # what a score weighs; guarded: 0 where all of a row is -infinity
    summed: Stage | None = None  # of a sum over the columns of a product, or a dot with them: that

    @property
    def out(self) -> View:
        return self.post.out if self.post else self.operation.out

    @property
    def multiplying(self) -> Stage:
        """The stage of the product, where its rows are summed; else this one."""
        return self.summed or self

    @property
    def is_permuted(self) -> bool:
        """Whether the post has its axes in another order than the operation."""
        return self.post is not None and not self.post.operands[self.replaced].is_whole

    def post_places(self, scope: Scope, place: Index) -> tuple[list[Index], Index]:
        """Of a place in the operation's result: those along the post's axes, and in its result."""
        assert self.post is not None
        operand = self.post.operands[self.replaced]
        if not self.is_permuted:
            return scope.split(place, operand.shape), place
        order = _by_stride(operand)
        parts = scope.split(place, [operand.shape[axis] for axis in order])
        places = [part for _, part in sorted(zip(order, parts, strict=True), key=lambda p: p[0])]
        moved = Index()
        for part, stride in zip(places, row_major(operand.shape), strict=True):
            moved = moved.plus(part.times(stride))
        return places, moved

    def reads(self) -> Iterator[tuple[Operation, int]]:
        """What it reads: operations, and numbers of operands."""
        within = self.scores or self.summed
        if within is not None:
            yield from within.reads()
        for k in range(len(self.operation.operands)):
            if k > 0 or within is None:
                yield self.operation, k
        if self.post is not None:
            for k in range(len(self.post.operands)):
                if k != self.replaced:
                    yield self.post, k


class Stages:
    """The operations of a group, of which those in `inlined` (numbers) are computed where they are
    read and the others, in order, are `all`.
    """

    def __init__(self, operations: Sequence[Operation], own: frozenset[str], samples: int) -> None:
        self.operations, self.own, self.samples = list(operations), own, samples
        self.all: list[Stage] = []
        self.inlined: set[int] = set()
        self.copied: dict[str, str] = {}  # buffers that are copied to others, all of each
        # Numbers of the operations that write, and that read, a buffer.
        self._writing = defaultdict[str, list[int]](list)
        self._reading = defaultdict[str, list[int]](list)
        for number, operation in enumerate(self.operations):
            self._writing[operation.out.buffer].append(number)
            for buffer in dict.fromkeys(s.buffer for s in operation.sources if isinstance(s, View)):
                self._reading[buffer].append(number)
        self._choose_inlined()
        self.operations = [self._finer(o) for o in self.operations]
        self._make_stages()

    def _writers(self, buffer: str, first: int, end: int) -> list[int]:
        """Numbers of the operations that write any of the columns."""
        view = View(buffer, first, end - first)
        return [i for i in self._writing.get(buffer, ()) if self.operations[i].out.overlaps(view)]

    def _reads(self, buffer: str | None = None) -> Iterable[tuple[int, int, View, Operand, float]]:
        """Every read of a view, or those of a buffer's: reader, operand's number, view, operand,
        times each element is read.
        """
        numbers = range(len(self.operations)) if buffer is None else self._reading.get(buffer, ())
        for i in numbers:
            operation = self.operations[i]
            for k, (source, operand) in enumerate(
                zip(operation.sources, operation.operands, strict=True)
            ):
                if isinstance(source, View) and buffer in (None, source.buffer):
                    yield i, k, source, operand, times_read(operation, k)

    def _choose_inlined(self) -> None:
        readers: dict[int, list[tuple[int, int, float]]] = {}
        apart: set[int] = set()
        for i, k, source, operand, times in self._reads():
            first = source.start + operand.offset
            end = source.start + operand.end
            found = self._writers(source.buffer, first, end)
            for number in found:
                out = self.operations[number].out
                readers.setdefault(number, []).append((i, k, times))
                if len(found) > 1 or first < out.start or end > out.start + out.width:
                    apart.add(number)
        reads = dict[int, float]()  # of an element of what is computed where it is read
        for number, operation in reversed(list(enumerate(self.operations))):
            if not isinstance(operation.op, (Map, Take)):
                continue
            used = readers.get(number, [])
            if operation.out.buffer not in self.own or not used or number in apart:
                continue
            size = operation.out.width
            total = 0.0
            for i, k, times in used:
                read = self.operations[i].operands[k].size
                if i in reads:
                    read, times = self.operations[i].out.width, times * reads[i]
                total += times * read / size
            cost = _cost_of_reading(operation)
            products = sum(isinstance(self.operations[i].op, MatMul) for i, _, _ in used)
            if products and size * self.samples * 2 <= GOOD_SHARED // 4:
                continue  # pairs of elements are read at once where they are stored
            # It is computed anew at each read, where else it is computed, written and read once.
            if cost * total <= cost + 6 or size * self.samples * 2 > GOOD_SHARED:
                self.inlined.add(number)
                reads[number] = total

    def _finer(self, operation: Operation) -> Operation:
        """A product whose one inner axis is several of what makes its operand where it is read:
        with these, so that places along them are known without division.
        """
        op = operation.op
        if not isinstance(op, MatMul) or op.inner != 1:
            return operation
        a, b = operation.operands
        for k, (operand, axis) in enumerate(((a, len(a.shape) - 1), (b, op.batch))):
            source = operation.sources[k]
            if not isinstance(source, View):
                continue
            first, end = source.start + operand.offset, source.start + operand.end
            made = self.inlined_writer(source.buffer, first, end)
            if made is None:
                continue
            sizes = _inner_axes(
                made.op.shape(made.operands), operand.shape[axis], operand.strides[axis]
            )
            if sizes is None:
                continue
            finer = MatMul(op.batch, op.rows, len(sizes))
            parts = _with_axes(a, len(a.shape) - 1, sizes), _with_axes(b, op.batch, sizes)
            return Operation(finer, operation.sources, parts, operation.out)
        return operation

    def _make_stages(self) -> None:
        """Operations that are not inlined, each with the Map that alone reads its result."""
        taken: set[int] = set()
        for number, operation in enumerate(self.operations):
            if number in self.inlined or number in taken:
                continue
            shape = tuple(operation.op.shape(operation.operands))
            stage = Stage(operation, shape)
            if isinstance(operation.op, (MatMul, Reduce, Softmax, LayerNorm)):
                post = self._post(operation)
                if post is not None:
                    stage.post, stage.replaced = self.operations[post[0]], post[1]
                    taken.add(post[0])
                    self.inlined.discard(post[0])
            self.all.append(stage)
        self._join_attention()
        self._join_sums()

    def _join_attention(self) -> None:
        """Products with one that nothing else reads, or with its softmax, become one stage."""
        for stage in [s for s in self.all if isinstance(s.operation.op, MatMul)]:
            weights = self._whole_writer(stage.operation, 0)
            if weights is not None and self._weighs_plainly(weights, stage):
                stage.scores, stage.weigh = weights, "Plain"
                self.all = [s for s in self.all if s is not weights]
                continue
            scores = self._whole_writer(weights.operation, 0) if weights else None
            if weights is None or scores is None or weights.post or scores.scores:
                continue
            if scores.is_permuted:
                continue
            if isinstance(weights.operation.op, Softmax) and attends(
                scores.operation, weights.operation, stage.operation, self.samples
            ):
                stage.scores = scores
                stage.weigh = "Guarded" if weights.operation.op.guarded else "Softmax"
                self.all = [s for s in self.all if s is not scores and s is not weights]

    def _weighs_plainly(self, scores: Stage, stage: Stage) -> bool:
        """Whether scores are multiplied as they are, and take too much memory to be stored."""
        return (
            isinstance(scores.operation.op, MatMul)
            and scores.scores is None
            and not scores.is_permuted
            and scores.out.width * self.samples * 2 > GOOD_SHARED // 8
            and multiplies(scores.operation, stage.operation, self.samples)
        )

    def _join_sums(self) -> None:
        """Sums over the columns of a product that nothing else reads become one stage with it."""
        for stage in [s for s in self.all if isinstance(s.operation.op, (Reduce, MatMul))]:
            made = self._whole_writer(stage.operation, 0) if stage.scores is None else None
            if made is not None and sums_rows(made, stage.operation, self.samples):
                stage.summed = made
                self.all = [s for s in self.all if s is not made]
                if stage.out.buffer not in self.own and _is_scattered(made, self.samples):
                    self._copy_behind(stage)

    def _copy_behind(self, stage: Stage) -> None:
        """A result in shared memory first, then copied to where it belongs, side by side."""
        out = stage.out
        first = View(f"{out.buffer}.{out.start}.sums", 0, out.width)
        self.own |= {first.buffer}
        self.copied[first.buffer] = out.buffer
        if stage.post is not None:
            stage.post = replace(stage.post, out=first)
        else:
            stage.operation = replace(stage.operation, out=first)
        copy = Operation(Join(), (first,), (Operand.whole(out.width),), out)
        self.all.insert(self.all.index(stage) + 1, Stage(copy, (1, out.width)))

    def _whole_writer(self, operation: Operation, k: int) -> Stage | None:
        """The stage whose whole result is an operand, which alone reads it."""
        source, operand = operation.sources[k], operation.operands[k]
        if not isinstance(source, View) or source.buffer not in self.own or not operand.is_whole:
            return None
        read = View(source.buffer, source.start + operand.offset, operand.size)
        readers = [
            (i, j)
            for i, j, view, part, _ in self._reads(source.buffer)
            if View(view.buffer, view.start + part.offset, part.end - part.offset).overlaps(read)
        ]
        if len(readers) != 1:
            return None
        return next((stage for stage in self.all if stage.out == read), None)

    def _post(self, operation: Operation) -> tuple[int, int] | None:
        """The Map that alone reads the result, and its operand that does. It runs where the
        operation ran: what else it reads must be there by then.
        """
        if operation.out.buffer not in self.own:
            return None
        reads = self._reads(operation.out.buffer)
        users = {i for i, _, source, _, _ in reads if source.overlaps(operation.out)}
        if len(users) != 1:
            return None
        (user,) = users
        reader = self.operations[user]
        number = next(i for i, o in enumerate(self.operations) if o is operation)
        if not isinstance(reader.op, Map) or reader.out.width != operation.out.width:
            return None
        if user in self.inlined and _cost(reader.op.expression) == 0:
            return None
        found = [
            k
            for k, (s, o) in enumerate(zip(reader.sources, reader.operands, strict=True))
            if isinstance(s, View) and s.overlaps(operation.out)
        ]
        if len(found) != 1:
            return None
        source, operand = reader.sources[found[0]], reader.operands[found[0]]
        assert isinstance(source, View)
        if source.start + operand.offset != operation.out.start:
            return None
        if not operand.is_whole and not (
            isinstance(operation.op, MatMul) and _is_permutation(operand)
        ):
            return None
        for k, (s, o) in enumerate(zip(reader.sources, reader.operands, strict=True)):
            if k == found[0] or not isinstance(s, View):
                continue
            first, end = s.start + o.offset, s.start + o.end
            if any(w >= number for w in self._all_sources(s.buffer, first, end)):
                return None
        return user, found[0]

    def _all_sources(self, buffer: str, first: int, end: int) -> list[int]:
        """Numbers of the operations that must have run for the columns to be read: of one that is
        computed where it is read, those that it reads.
        """
        found: list[int] = []
        for number in self._writers(buffer, first, end):
            if number not in self.inlined:
                found.append(number)
            else:
                operation = self.operations[number]
                for s, o in zip(operation.sources, operation.operands, strict=True):
                    if isinstance(s, View):
                        found += self._all_sources(s.buffer, s.start + o.offset, s.start + o.end)
        return found

    def inlined_writer(self, buffer: str, first: int, end: int) -> Operation | None:
        """The operation that makes the columns, where it is computed where it is read."""
        found = self._writers(buffer, first, end)
        if len(found) == 1 and found[0] in self.inlined:
            return self.operations[found[0]]
        return None


def _by_stride(operand: Operand) -> list[int]:
    """Its axes, the widest strides first."""
    return sorted(range(len(operand.shape)), key=lambda axis: -operand.strides[axis])


def _is_permutation(operand: Operand) -> bool:
    """Whether it reads each column once, its axes in another order."""
    if 1 in operand.shape:
        return False
    order = _by_stride(operand)
    shape, strides = (tuple(of[axis] for axis in order) for of in (operand.shape, operand.strides))
    return strides == row_major(shape)


def _inner_axes(shape: Sequence[int], size: int, stride: int) -> tuple[int, ...] | None:
    """The axes of a row-major shape that an axis of this size and stride walks through."""
    steps = row_major(shape)
    for last in range(len(shape)):
        if steps[last] != stride or shape[last] == 1:
            continue
        for first in range(last - 1, -1, -1):
            if size_of(shape[first : last + 1]) == size:
                return tuple(shape[first : last + 1])
    return None


def _with_axes(operand: Operand, axis: int, sizes: Sequence[int]) -> Operand:
    """The operand with one axis taken apart."""
    strides = [operand.strides[axis] * step for step in row_major(sizes)]
    return Operand(
        (*operand.shape[:axis], *sizes, *operand.shape[axis + 1 :]),
        (*operand.strides[:axis], *strides, *operand.strides[axis + 1 :]),
        operand.offset,
    )


def attends(scores: Operation, softmax: Operation, product: Operation, samples: int) -> bool:
    """Whether a product's result, its softmax and the product with that fit a warp's registers."""
    shape = softmax.operands[0].shape
    return (
        isinstance(softmax.op, Softmax)
        and set(softmax.op.axes) == {len(shape) - 1}
        and multiplies(scores, product, samples, shape[-1])
    )


def multiplies(scores: Operation, product: Operation, samples: int, columns: int = 0) -> bool:
    """Whether a product's result, rows of `columns` if told, and the product with that fit a warp's
    registers.
    """
    if not isinstance(scores.op, MatMul):
        return False
    assert isinstance(product.op, MatMul)
    first = Product.of(scores, scores.op, samples)
    second = Product.of(product, product.op, samples)
    return (
        first.constant is None
        and second.constant is None
        and first.outer == second.outer == 1
        and first.batches == second.batches
        and first.rows_a_sample == second.rows_a_sample
        and first.columns == second.inner == (columns or first.columns)
        and min(first.rows, first.columns, first.inner, second.columns) >= 8
        and attention_row_tiles(first, second) > 0
    )


def sums_rows(made: Stage, operation: Operation, samples: int) -> bool:
    """Whether an operation sums each row of what a product makes, or multiplies it by a vector, and
    each warp has rows with all their columns in registers: not of a product with a matrix in a
    ring, for which that is not written.
    """
    op = operation.op
    if not isinstance(made.operation.op, MatMul) or made.scores or made.summed or made.is_permuted:
        return False
    product = Product.of(made.operation, made.operation.op, samples)
    shape = operation.operands[0].shape
    if isinstance(op, Reduce):
        kept = len(shape) - len(op.axes)
        sums = op.function in ("sum", "mean") and set(op.axes) == set(range(kept, len(shape)))
    else:
        assert isinstance(op, MatMul)
        kept = op.batch + op.rows
        sums = operation.operands[1].size == size_of(shape[: op.batch]) * size_of(shape[kept:])
    return (
        sums
        and size_of(shape[kept:]) == product.columns
        and product.fills_tiles
        and product.columns <= MOST_SUMMED
        and product.products * -(-product.rows // 16) >= WARPS
        and not product.ring_bytes("Half")
    )


def _is_scattered(made: Stage, samples: int) -> bool:
    """Whether what lanes side by side sum of a product's rows lies in different samples."""
    assert isinstance(made.operation.op, MatMul)
    product = Product.of(made.operation, made.operation.op, samples)
    return product.products > 1 and product.rows_a_sample < 8


def times_read(operation: Operation, k: int) -> float:
    """How often each element of an operand is read."""
    op = operation.op
    if isinstance(op, MatMul):
        other = operation.operands[1 - k]
        begin = op.batch + (op.inner if k == 0 else 0)
        sides = other.shape[begin:] if k == 0 else other.shape[op.batch : op.batch + op.rows]
        return max(1.0, size_of(sides) / 128)
    if isinstance(op, TakeAlong) and k == op.picked:
        return operation.operands[1 - k].size / operation.operands[k].size
    return 1.0


def _cost_of_reading(operation: Operation) -> float:
    """What finding or computing an element takes; of rows that are picked PACK share one place."""
    op = operation.op
    if isinstance(op, Take):
        x = operation.operands[0]
        first = len(x.shape) - op.behind
        row = Operand(x.shape[first:], x.strides[first:])
        return 1.0 / PACK if row.is_whole and row.size % PACK == 0 else 1.0
    assert isinstance(op, Map)
    return float(_cost(op.expression))


def _cost(expression: Expression) -> int:
    """What computing an expression takes, beside one operation."""
    if not isinstance(expression, tuple):
        return 0
    own = 8 if expression[0] in COSTLY else 1
    return own + sum(_cost(part) for part in expression[1:])
