"""The source of one kernel that runs a group of operations over tiles of samples.

What stages hand to one another lies in shared memory, in the activation type, or float32 for
single numbers. Operations that only change how an element is found or are cheap (`Map`, `Take`)
are computed where they are read, unless that would repeat costly work; a `Map` that alone reads a
result is applied as the result is written.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpiframe_core.engine.cuda.tile.index import Index, Scope, VaryingError, size_of, variable
from dpiframe_core.engine.cuda.tile.merge import merge_products
from dpiframe_core.engine.translation import Operation, Source
from dpiframe_core.program.expression import Expression, operands
from dpiframe_core.program.tensor_ops import (
    Join,
    LayerNorm,
    Map,
    MatMul,
    Operand,
    Reduce,
    Softmax,
    Take,
)
from dpiframe_core.program.views import View

THREADS = 256
WARPS = THREADS // 32
MOST_SHARED = 227 * 1024 - 1024  # bytes of a CTA
GOOD_SHARED = 112 * 1024  # two CTAs on a multiprocessor
SAMPLES = (32, 16, 8, 4, 2, 1)  # a tile, tried in this order
STAGES = 4  # chunks of a ring
MOST_REGISTERS = 96  # of a thread, for sums and operands
MOST_FIXED = 32  # inner places that lanes hold in registers
MOST_ROW = 1024  # elements of a row that a softmax or a norm holds in registers
TYPES = {"fp16": "Half", "bf16": "Bf16", "fp32": "float", "tf32": "float"}
COSTLY = {"div", "pow", "exp", "expm1", "log", "log1p", "sigmoid", "tanh", "erf", "sin", "cos",
          "tan", "asin", "acos", "atan", "sinh", "cosh", "atan2", "mod", "rsqrt", "sqrt",
          "reciprocal"}  # fmt: skip
RENAMED = {"not": "not_", "and": "and_", "or": "or_"}


class UnsuitableError(Exception):
    """A group that has no such kernel; the message says why."""


@dataclass(frozen=True)
class TileKernel:
    """A kernel's source, and what it is launched with: buffers and weights in the order of its
    parameters.
    """

    source: str
    name: str
    samples: int
    shared_bytes: int
    buffers: tuple[str, ...]
    weights: tuple[np.ndarray, ...] = field(repr=False)


@dataclass
class _Stage:
    """An operation that writes its result, with the Map that is applied as it is written."""

    operation: Operation
    shape: tuple[int, ...]  # of the operation's own result
    post: Operation | None = None
    replaced: int = 0  # the post's operand that is the result

    @property
    def out(self) -> View:
        return self.post.out if self.post else self.operation.out


@dataclass
class _Region:
    """A buffer's columns first .. end in shared memory."""

    first: int
    end: int
    element: str
    row: int = 0  # columns of a row that is padded; 0: none is
    begin: int = 0  # first stage that writes it
    last: int = 0  # last stage that reads it
    offset: int = 0

    @property
    def padding(self) -> int:
        return 8 if self.row else 0

    @property
    def pitch(self) -> int:
        """Elements from one sample to the next."""
        width = self.end - self.first
        if self.row:
            width = -(-width // self.row) * (self.row + self.padding)
        return -(-width // 8) * 8 + (8 if width > 8 else 0)

    def bytes(self, samples: int) -> int:
        size = 4 if self.element == "float" else 2
        return -(-samples * self.pitch * size // 16) * 16


@dataclass
class _Ring:
    """Chunks of a product's constant operand in shared memory, in one stage."""

    size: int
    begin: int
    last: int
    offset: int = 0

    def bytes(self, samples: int) -> int:
        del samples
        return self.size


def tile_kernel(
    operations: Sequence[Operation],
    own: frozenset[str],
    floats: frozenset[str],
    precision: str,
    name: str = "tile_kernel",
    host: bool = False,
) -> TileKernel:
    """The kernel of operations in order. `own`: buffers that nothing else reads; `floats`: those of
    float32 in device memory; `host`: as a function for tests. UnsuitableError: there is none.
    """
    for samples in SAMPLES:
        writer = _Writer(operations, own, floats, precision, samples)
        used = writer.shared_bytes
        small_enough = used <= GOOD_SHARED or (used <= MOST_SHARED and samples == 1)
        if small_enough:
            return writer.kernel(name, host)
    raise UnsuitableError(f"a sample takes {used:,} bytes of shared memory")


class _Writer:
    def __init__(
        self,
        operations: Sequence[Operation],
        own: frozenset[str],
        floats: frozenset[str],
        precision: str,
        samples: int,
    ) -> None:
        self.own, self.floats, self.samples = own, floats, samples
        self.type = TYPES[precision]
        self.tf32 = precision == "tf32"
        self.buffers: list[str] = []  # of the parameters
        self.weights: list[np.ndarray] = []
        self._weight_numbers: dict[tuple[str, int], int] = {}
        self._kept: list[np.ndarray] = []  # so that ids of arrays stay theirs
        self.tables: list[tuple[int, ...]] = []
        self.operations = merge_products(operations, own)
        self.stages: list[_Stage] = []
        self.inlined: set[int] = set()  # numbers of operations
        self.regions: dict[str, _Region] = {}
        self.staged: dict[str, _Region] = {}
        self.rings: dict[int, _Ring] = {}
        self._choose_inlined()
        self.operations = [self._finer(o) for o in self.operations]
        self._make_stages()
        self._make_regions()
        self._place_regions()

    # What is computed where.

    def _writers(self, buffer: str, first: int, end: int) -> list[int]:
        """Numbers of the operations that write any of the columns."""
        view = View(buffer, first, end - first)
        return [i for i, o in enumerate(self.operations) if o.out.overlaps(view)]

    def _reads(self) -> Iterable[tuple[int, int, View, Operand, float]]:
        """Every read of a view: reader, operand's number, view, operand, times each element is
        read.
        """
        for i, operation in enumerate(self.operations):
            for k, (source, operand) in enumerate(
                zip(operation.sources, operation.operands, strict=True)
            ):
                if isinstance(source, View):
                    yield i, k, source, operand, _times_read(operation, k)

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
        for number, operation in enumerate(self.operations):
            if not isinstance(operation.op, (Map, Take)):
                continue
            used = readers.get(number, [])
            if not self._is_own(operation.out.buffer) or not used or number in apart:
                continue
            size = operation.out.width
            total = 0.0
            for i, k, times in used:
                total += times * self.operations[i].operands[k].size / size
            cost = 1 if isinstance(operation.op, Take) else _cost(operation.op.expression)
            products = sum(isinstance(self.operations[i].op, MatMul) for i, _, _ in used)
            if products > 1 and size * self.samples * 2 <= GOOD_SHARED // 4:
                continue  # pairs of elements are read at once where they are stored
            # It is computed anew at each read, where else it is computed, written and read once.
            if cost * total <= cost + 6 or size * self.samples * 2 > GOOD_SHARED:
                self.inlined.add(number)

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
            made = self._inlined_writer(source.buffer, first, end)
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

    def _is_own(self, buffer: str) -> bool:
        return buffer in self.own

    def _make_stages(self) -> None:
        """Operations that are not inlined, each with the Map that alone reads its result."""
        taken: set[int] = set()
        for number, operation in enumerate(self.operations):
            if number in self.inlined or number in taken:
                continue
            shape = tuple(operation.op.shape(operation.operands))
            stage = _Stage(operation, shape)
            if isinstance(operation.op, (MatMul, Reduce, Softmax, LayerNorm)):
                post = self._post(operation)
                if post is not None:
                    stage.post, stage.replaced = self.operations[post[0]], post[1]
                    taken.add(post[0])
                    self.inlined.discard(post[0])
            self.stages.append(stage)

    def _post(self, operation: Operation) -> tuple[int, int] | None:
        """The Map that alone reads the result, and its operand that does. It runs where the
        operation ran: what else it reads must be there by then.
        """
        if not self._is_own(operation.out.buffer):
            return None
        users = {i for i, _, source, _, _ in self._reads() if source.overlaps(operation.out)}
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
        if not operand.is_whole or source.start + operand.offset != operation.out.start:
            return None
        for k, (s, o) in enumerate(zip(reader.sources, reader.operands, strict=True)):
            if k == found[0] or not isinstance(s, View):
                continue
            first, end = s.start + o.offset, s.start + o.end
            if any(w >= number for w in self._all_sources(s.buffer, first, end)):
                return None
        return user, found[0]

    def _all_sources(self, buffer: str, first: int, end: int) -> list[int]:
        """Numbers of the operations that the columns are made of, those inlined followed."""
        found: list[int] = []
        for number in self._writers(buffer, first, end):
            found.append(number)
            if number in self.inlined:
                operation = self.operations[number]
                for s, o in zip(operation.sources, operation.operands, strict=True):
                    if isinstance(s, View):
                        found += self._all_sources(s.buffer, s.start + o.offset, s.start + o.end)
        return found

    # Shared memory.

    def _inlined_writer(self, buffer: str, first: int, end: int) -> Operation | None:
        found = self._writers(buffer, first, end)
        if len(found) == 1 and found[0] in self.inlined:
            return self.operations[found[0]]
        return None

    def _make_regions(self) -> None:
        """Regions of what stages read, and of inputs that are read more than once."""
        self.stage_reads: dict[int, set[str]] = {i: set() for i in range(len(self.stages))}
        reads: dict[str, list[tuple[int, int, int, float, bool]]] = {}
        widths: dict[str, list[int]] = {}

        def add(stage: int, operation: Operation, k: int, times: float, product: bool) -> None:
            source, operand = operation.sources[k], operation.operands[k]
            if not isinstance(source, View):
                return
            first, end = source.start + operand.offset, source.start + operand.end
            inner = self._inlined_writer(source.buffer, first, end)
            if inner is not None:
                share = times * operand.size / inner.out.width
                for j in range(len(inner.sources)):
                    add(stage, inner, j, share, product)
                return
            self.stage_reads[stage].add(source.buffer)
            reads.setdefault(source.buffer, []).append(
                (stage, first, end, times * operand.size, product)
            )
            if operand.shape:
                widths.setdefault(source.buffer, []).append(
                    operand.shape[-1] if operand.strides[-1] == 1 else 0
                )

        for number, stage in enumerate(self.stages):
            operation = stage.operation
            product = isinstance(operation.op, MatMul)
            for k in range(len(operation.operands)):
                add(number, operation, k, _times_read(operation, k), product)
            if stage.post is not None:
                for k in range(len(stage.post.operands)):
                    if k != stage.replaced:
                        add(number, stage.post, k, 1, False)
        for buffer, found in reads.items():
            first, end = min(f for _, f, _, _, _ in found), max(e for _, _, e, _, _ in found)
            begins = [
                i
                for i, s in enumerate(self.stages)
                if s.out.overlaps(View(buffer, first, end - first))
            ]
            made = sum(self.stages[i].out.width for i in begins)
            total = sum(size for _, _, _, size, _ in found)
            element = self._element(buffer)
            if not begins:
                several = len({stage for stage, _, _, _, _ in found}) > 1
                costly = total > 1.5 * (end - first) or any(p for _, _, _, _, p in found)
                costly = costly or several
                if not costly or end - first == 1:
                    continue
            elif made < end - first or not all(
                first <= self.stages[i].out.start
                and self.stages[i].out.start + self.stages[i].out.width <= end
                for i in begins
            ):
                begun = {self.stages[i].out for i in begins}
                first = min([first, *(v.start for v in begun)])
                end = max([end, *(v.start + v.width for v in begun)])
                if made < end - first:  # partly an input: it is read from device memory
                    continue
            region = _Region(first, end, element)
            region.begin = min(begins, default=-1)
            # Columns between those that are read may be written later, by stages of their own.
            region.last = max([*begins, *(stage for stage, _, _, _, _ in found)])
            made_rows = [self._made_row(self.stages[i]) for i in begins]
            rows = [row for row in made_rows if row] or widths.get(buffer, [])
            self._pad_rows(region, rows)
            self.regions[buffer] = region
            if not begins:
                self.staged[buffer] = region
        for stage in self.stages:
            if stage.out.buffer not in self.regions and self._is_own(stage.out.buffer):
                raise UnsuitableError(f"{stage.out} would be partly in shared memory")

    def _made_row(self, stage: _Stage) -> int:
        """Columns that a product writes side by side."""
        op = stage.operation.op
        if not isinstance(op, MatMul) or stage.post is not None:
            return 0
        return _Product.of(stage.operation, op, self.samples).columns

    def _pad_rows(self, region: _Region, rows: list[int]) -> None:
        """Rows a multiple of 64 bytes long would lie in the same banks: they get 16 bytes more."""
        if region.element == "float" and self.type != "float":
            return
        row = max(rows, default=0)
        size = 4 if region.element == "float" else 2
        width = region.end - region.first
        if row and row * size % 64 == 0 and width % row == region.first % row == 0 and width > row:
            region.row = row

    def _element(self, buffer: str) -> str:
        if buffer in self.floats and not self._is_own(buffer):
            return "float"
        return self.type

    def _place_regions(self) -> None:
        """First fit by the stages in which a region is needed."""
        for number, stage in enumerate(self.stages):
            op = stage.operation.op
            if isinstance(op, MatMul):
                size = _Product.of(stage.operation, op, self.samples).ring_bytes(self.type)
                if size:
                    self.rings[id(stage)] = _Ring(size, number, number)
        placed: list[_Region | _Ring] = []
        total = 0
        regions: list[_Region | _Ring] = [*self.regions.values(), *self.rings.values()]
        for region in sorted(regions, key=lambda r: -r.bytes(self.samples)):
            size = region.bytes(self.samples)
            busy = sorted(
                (r.offset, r.offset + r.bytes(self.samples))
                for r in placed
                if r.begin <= region.last and region.begin <= r.last
            )
            offset = 0
            for begin, end in busy:
                if offset + size <= begin:
                    break
                offset = max(offset, end)
            region.offset = offset
            placed.append(region)
            total = max(total, offset + size)
        self.shared_bytes = total

    # Elements.

    def _in_region(self, out: View) -> bool:
        region = self.regions.get(out.buffer)
        return (
            region is not None
            and region.first <= out.start
            and (out.start + out.width <= region.end)
        )

    def _buffer(self, buffer: str) -> int:
        if buffer not in self.buffers:
            self.buffers.append(buffer)
        return self.buffers.index(buffer)

    def _weight(self, numbers: np.ndarray, kind: str) -> int:
        key = (kind, id(numbers))
        if key not in self._weight_numbers:
            self._weight_numbers[key] = len(self.weights)
            self.weights.append(numbers)
            self._kept.append(numbers)
        return self._weight_numbers[key]

    def address(self, scope: Scope, buffer: str, column: Index, sample: Index) -> tuple[str, Index]:
        """A pointer's name with its type's elements, and the index behind it."""
        region = self.regions.get(buffer)
        if region is None:
            return f"g{self._buffer(buffer)}(at({sample}))", column
        place = column.plus(-region.first)
        if region.row:
            row, place = scope.divided(place, region.row)
            place = row.times(region.row + region.padding).plus(place)
        return f"s_{_c(buffer)}", sample.times(region.pitch).plus(place)

    def element(
        self, scope: Scope, source: Source, operand: Operand, places: Sequence[Index], sample: Index
    ) -> str:
        """An expression for an element of an operand."""
        column = Index(operand.offset)
        for place, stride in zip(places, operand.strides, strict=True):
            column = column.plus(place.times(stride))
        if isinstance(source, np.ndarray):
            if source.size == 1:
                return _literal(float(source.reshape(-1)[0]))
            return self.leaf(scope, f"w{self._weight(source, 'numbers')}", column, 4, True)
        column = column.plus(source.start)
        made = self._inlined_writer(source.buffer, column.constant, scope.largest(column) + 1)
        if made is None:
            found = self._inlined_writer(
                source.buffer, source.start + operand.offset, source.start + operand.end
            )
            made = found
        if made is not None:
            local = column.plus(-made.out.start)
            shape = tuple(made.op.shape(made.operands))
            return self.value(scope, made, scope.split(local, shape), sample)
        pointer, place = self.address(scope, source.buffer, column, sample)
        region = self.regions.get(source.buffer)
        element = region.element if region else self._element(source.buffer)
        return self.leaf(scope, pointer, place, 4 if element == "float" else 2, region is None)

    def leaf(self, scope: Scope, pointer: str, place: Index, size: int, is_global: bool) -> str:
        """A load; in a block over neighbours `u` one load for all of them where that can be."""
        del size, is_global
        if "u" not in scope.varying:
            return f"load({pointer} + {place})"
        width = scope.extents["u"]
        factor = place.factors.get("u", 0)
        base = Index(place.constant, {n: f for n, f in place.factors.items() if n != "u"})
        name = f"a{len(scope.lines)}"
        if factor == 0:
            scope.lines.append(f"const float {name} = load({pointer} + {base});")
            return name
        aligned = base.constant % width == 0 and all(f % width == 0 for f in base.factors.values())
        if factor == 1 and aligned and not pointer.startswith("w"):
            scope.lines.append(
                f"float {name}[{width}]; load_pack<{width}>({pointer} + {base}, {name});"
            )
            return f"{name}[u]"
        return f"load({pointer} + {place})"

    def value(
        self, scope: Scope, operation: Operation, places: Sequence[Index], sample: Index
    ) -> str:
        """An expression for an element of a result that is computed where it is read."""
        op = operation.op
        if isinstance(op, Take):
            axis = len(places) - 1 - op.behind
            if op.index not in self.tables:
                self.tables.append(op.index)
            table = self.tables.index(op.index)
            taken = scope.let(f"t{table}[{places[axis]}]", max(op.index) + 1, places[axis])
            moved = [*places[:axis], taken, *places[axis + 1 :]]
            return self.element(scope, operation.sources[0], operation.operands[0], moved, sample)
        assert isinstance(op, Map)
        return self.expression(scope, operation, places, sample, {})

    def expression(
        self,
        scope: Scope,
        operation: Operation,
        places: Sequence[Index],
        sample: Index,
        known: Mapping[int, str],
    ) -> str:
        """A Map's expression; `known`: operands that are there already."""
        assert isinstance(operation.op, Map)
        made = dict(known)
        for name in set(operands(operation.op.expression)):
            number = int(name[1:])
            if number not in made:
                made[number] = self.element(
                    scope, operation.sources[number], operation.operands[number], places, sample
                )

        def text(part: Expression) -> str:
            if isinstance(part, float):
                return _literal(part)
            if isinstance(part, str):
                return made[int(part[1:])]
            function, *parts = part
            inside = ", ".join(text(p) for p in parts)
            return f"fn::{RENAMED.get(function, function)}({inside})"

        return text(operation.op.expression)

    # Stages.

    def stored(self, scope: Scope, out: View, place: Index, sample: Index, value: str) -> str:
        """Statements that store an element of a result."""
        column = place.plus(out.start)
        lines = []
        if self._in_region(out):
            pointer, at = self.address(scope, out.buffer, column, sample)
            lines.append(f"store({pointer} + {at}, value);")
        if not self._is_own(out.buffer):
            number = self._buffer(out.buffer)
            lines.append(
                f"if (first + {sample} < p.rows) store(g{number}(first + {sample}) + {column}, "
                "value);"
            )
        return f"const float value = {value}; {' '.join(lines)}"

    def finished(self, scope: Scope, stage: _Stage, place: Index, sample: Index, value: str) -> str:
        """The same for a stage's result, with its post."""
        if stage.post is not None:
            shape = tuple(stage.post.op.shape(stage.post.operands))
            scope.lines.append(f"const float made = {value};")
            value = self.expression(
                scope, stage.post, scope.split(place, shape), sample, {stage.replaced: "made"}
            )
        return self.stored(scope, stage.out, place, sample, value)

    def stage(self, stage: _Stage) -> str:
        """A stage's code."""
        op = stage.operation.op
        if isinstance(op, (Map, Take)):
            return self._each(stage.operation, stage.operation.out, stage.shape)
        if isinstance(op, Join):
            return self._join(stage)
        if isinstance(op, Reduce):
            return self._reduce(stage, op)
        if isinstance(op, Softmax):
            return self._softmax(stage, op)
        if isinstance(op, LayerNorm):
            return self._layer_norm(stage, op)
        if isinstance(op, MatMul):
            return self._multiply(stage, op)
        raise UnsuitableError(f"no stage computes {type(op).__name__}")

    def _each(self, operation: Operation, out: View, shape: tuple[int, ...]) -> str:
        return self._elements(
            out, shape, lambda scope, places, sample: self.value(scope, operation, places, sample)
        )

    def _elements(
        self,
        out: View,
        shape: tuple[int, ...],
        value: Callable[[Scope, Sequence[Index], Index], str],
        pitch: tuple[int, int] | None = None,
    ) -> str:
        """A loop over the elements of a shape; `pitch`: a row's columns in `out` and its first."""
        size = size_of(shape)
        last = shape[-1] if shape else 1
        for width in (8, 4, 2, 1):
            if last % width or (pitch and (pitch[0] % width or pitch[1] % width)):
                continue
            if out.start % width and width > 1:
                continue
            try:
                return self._elements_by(width, out, shape, size, value, pitch)
            except VaryingError:
                continue
        raise AssertionError

    def _elements_by(
        self,
        width: int,
        out: View,
        shape: tuple[int, ...],
        size: int,
        value: Callable[[Scope, Sequence[Index], Index], str],
        pitch: tuple[int, int] | None,
    ) -> str:
        per_sample = size // width
        count = self.samples * per_sample
        scope = Scope({"i": count, "u": width}, frozenset({"u"}) if width > 1 else frozenset())
        sample, place = scope.divided(variable("i"), per_sample)
        if width > 1:
            places = scope.split(place, (*shape[:-1], shape[-1] // width))
            places = [*places[:-1], places[-1].times(width).plus(variable("u"))]
        else:
            places = scope.split(place, shape)
        place = place.times(width)
        if pitch is not None:
            row, column = scope.divided(place, shape[-1])
            place = row.times(pitch[0]).plus(column).plus(pitch[1])
        text = value(scope, places, sample)
        if width == 1:
            body = self.stored(scope, out, place, sample, text)
            return f"each<{count}>([&](int i) {{ {' '.join(scope.lines)} {body} }});"
        column = place.plus(out.start)
        stores = []
        fixed = Scope(scope.extents)
        fixed._known, fixed.lines = dict(scope._known), []
        if self._in_region(out):
            pointer, at = self.address(fixed, out.buffer, column, sample)
            if any(f % width for f in at.factors.values()) or at.constant % width:
                raise VaryingError
            stores.append(f"store_pack<{width}>({pointer} + {at}, values);")
        if not self._is_own(out.buffer):
            number = self._buffer(out.buffer)
            if any(f % width for f in column.factors.values()) or column.constant % width:
                raise VaryingError
            stores.append(
                f"if (first + {sample} < p.rows) "
                f"store_pack<{width}>(g{number}(first + {sample}) + {column}, values);"
            )
        lines = [*scope.lines, f"float values[{width}];"]
        lines.append(f"DPIF_UNROLL for (int u = 0; u < {width}; ++u) values[u] = {text};")
        lines += fixed.lines + stores
        return f"each<{count}>([&](int i) {{ {' '.join(lines)} }});"

    def _join(self, stage: _Stage) -> str:
        operation = stage.operation
        op = operation.op
        assert isinstance(op, Join)
        parts, begin = [], 0
        row = sum(x.size for x in operation.operands) // op.outer
        for source, operand in zip(operation.sources, operation.operands, strict=True):
            columns = operand.size // op.outer

            def value(
                scope: Scope,
                places: Sequence[Index],
                sample: Index,
                source: Source = source,
                operand: Operand = operand,
            ) -> str:
                return self.element(scope, source, operand, places, sample)

            if op.outer == 1:
                out = operation.out.columns(begin, columns)
                parts.append(self._elements(out, operand.shape, value))
            else:
                parts.append(
                    self._joined_rows(operation.out, operand, source, op.outer, row, begin)
                )
            begin += columns
        return "\n  ".join(parts)

    def _joined_rows(
        self, out: View, operand: Operand, source: Source, outer: int, row: int, begin: int
    ) -> str:
        columns = operand.size // outer

        def value(scope: Scope, places: Sequence[Index], sample: Index) -> str:
            flat = places[0].times(columns).plus(places[1])
            return self.element(scope, source, operand, scope.split(flat, operand.shape), sample)

        return self._elements(out, (outer, columns), value, (row, begin))

    def _rows(
        self, stage: _Stage, axes: Sequence[int]
    ) -> tuple[int, int, list[int], list[int], int]:
        """Of a reduction: rows and elements of one, kept and reduced axes, lanes."""
        shape = stage.operation.operands[0].shape
        kept = [i for i in range(len(shape)) if i not in axes]
        gone = sorted(axes)
        size = size_of([shape[i] for i in gone])
        rows = self.samples * size_of([shape[i] for i in kept])
        return rows, size, kept, gone, _lanes(rows, size)

    def _row_scope(
        self, stage: _Stage, kept: Sequence[int], gone: Sequence[int], rows: int, size: int
    ) -> tuple[Scope, Index, list[Index], Index]:
        """Scope over (r, i), the sample, the places, and the row within the sample."""
        shape = stage.operation.operands[0].shape
        scope = Scope({"r": rows, "i": size})
        sample, row = scope.divided(variable("r"), rows // self.samples)
        places = [Index()] * len(shape)
        for axis, place in zip(kept, scope.split(row, [shape[a] for a in kept]), strict=True):
            places[axis] = place
        for axis, place in zip(
            gone, scope.split(variable("i"), [shape[a] for a in gone]), strict=True
        ):
            places[axis] = place
        return scope, sample, places, row

    def _reader(self, stage: _Stage, parts: tuple[Scope, Index, list[Index], Index]) -> str:
        scope, sample, places, _ = parts
        operation = stage.operation
        text = self.element(scope, operation.sources[0], operation.operands[0], places, sample)
        return f"[&](int r, int i) {{ {' '.join(scope.lines)} return {text}; }}"

    def _reduce(self, stage: _Stage, op: Reduce) -> str:
        rows, size, kept, gone, lanes = self._rows(stage, op.axes)
        read = self._reader(stage, self._row_scope(stage, kept, gone, rows, size))
        function = {"sum": "Sum", "mean": "Sum", "prod": "Prod", "max": "Max", "min": "Min"}
        scope = Scope({"r": rows})
        sample, row = scope.divided(variable("r"), rows // self.samples)
        value = f"x * {_literal(1.0 / size)}" if op.function == "mean" else "x"
        body = self.finished(scope, stage, row, sample, value)
        write = f"[&](int r, float x) {{ {' '.join(scope.lines)} {body} }}"
        return f"reduce<{function[op.function]}, {lanes}, {rows}, {size}>({read},\n    {write});"

    def _softmax(self, stage: _Stage, op: Softmax) -> str:
        rows, size, kept, gone, lanes = self._rows(stage, op.axes)
        if size > MOST_ROW:
            raise UnsuitableError(f"a softmax over {size} elements")
        read = self._reader(stage, self._row_scope(stage, kept, gone, rows, size))
        write = self._writer(stage, kept, gone, rows, size, "x")
        return f"softmax<{lanes}, {rows}, {size}>({read},\n    {write});"

    def _writer(
        self,
        stage: _Stage,
        kept: Sequence[int],
        gone: Sequence[int],
        rows: int,
        size: int,
        value: str,
        affine: bool = False,
    ) -> str:
        scope, sample, places, _ = self._row_scope(stage, kept, gone, rows, size)
        shape = stage.operation.operands[0].shape
        operation = stage.operation
        if affine:
            parts = []
            for source, operand in zip(operation.sources[1:], operation.operands[1:], strict=True):
                behind = places[len(places) - len(operand.shape) :]
                parts.append(self.element(scope, source, operand, behind, sample))
            if parts:
                value = f"{value} * {parts[0]}"
            if len(parts) > 1:
                value = f"{value} + {parts[1]}"
        place = Index()
        for axis, step in enumerate(_row_major(shape)):
            place = place.plus(places[axis].times(step))
        body = self.finished(scope, stage, place, sample, value)
        return f"[&](int r, int i, float x) {{ {' '.join(scope.lines)} {body} }}"

    def _layer_norm(self, stage: _Stage, op: LayerNorm) -> str:
        count = len(stage.operation.operands[0].shape)
        rows, size, kept, gone, lanes = self._rows(stage, range(count - op.axes, count))
        if size > MOST_ROW:
            raise UnsuitableError(f"a norm over {size} elements")
        read = self._reader(stage, self._row_scope(stage, kept, gone, rows, size))
        write = self._writer(stage, kept, gone, rows, size, "x", affine=True)
        eps = _literal(op.eps)
        return f"layer_norm<{lanes}, {rows}, {size}>({eps}, {read},\n    {write});"

    def _multiply(self, stage: _Stage, op: MatMul) -> str:
        product = _Product.of(stage.operation, op, self.samples)
        if min(product.rows, product.columns, product.outer * product.inner) < 8:
            return self._dots(stage, op)
        a = self._product_operand(stage, product, 0)
        if product.constant is not None:
            number = self._weight_packed(product)
            sizes = f"{self.type}, {product.outer}, {product.inner}, {product.columns}"
            b = f"Packed<{sizes}>{{w{number}}}"
        else:
            b = self._product_operand(stage, product, 1)
        write = self._results(stage, product)
        ring = self.rings.get(id(stage))
        row_tiles, column_tiles = product.tiles(
            "load_pair" in a, a.startswith("separable"), ring is not None
        )
        sizes = (
            f"{self.type}, {product.products}, {product.rows}, {product.outer}, "
            f"{product.inner}, {product.columns}, {row_tiles}, {column_tiles}"
        )
        if ring is None:
            return f"multiply<{sizes}>(\n    {a},\n    {b},\n    {write});"
        return (
            f"multiply_staged<{sizes}, {STAGES}>(shared + {ring.offset},\n    {a},\n    {b},\n"
            f"    {write});"
        )

    def _results(self, stage: _Stage, product: _Product) -> str:
        """The functions that store one result of a product, or two of neighbouring columns."""

        def placed() -> tuple[Scope, Index, Index]:
            scope = Scope({"q": product.products, "r": product.rows, "c": product.columns})
            sample, batch, row = product.places(scope)
            place = batch.times(product.rows_a_sample * product.columns)
            return scope, sample, place.plus(row.times(product.columns)).plus(variable("c"))

        scope, sample, place = placed()
        value = "x"
        if stage.post is not None:
            shape = tuple(stage.post.op.shape(stage.post.operands))
            value = self.expression(
                scope, stage.post, scope.split(place, shape), sample, {stage.replaced: "x"}
            )
        column = place.plus(stage.out.start)
        single, double = [], []
        even = True
        if self._in_region(stage.out):
            pointer, at = self.address(scope, stage.out.buffer, column, sample)
            even = even and _is_even(at)
            single.append(f"store({pointer} + {at}, value);")
            double.append(f"store_pack<2>({pointer} + {at}, values);")
        if not self._is_own(stage.out.buffer):
            number = self._buffer(stage.out.buffer)
            even = even and _is_even(column)
            there = f"g{number}(first + {sample}) + {column}"
            single.append(f"if (first + {sample} < p.rows) store({there}, value);")
            double.append(f"if (first + {sample} < p.rows) store_pack<2>({there}, values);")
        before, within = scope.split_lines("c")
        inside = " ".join(within)
        stores = " ".join(single)
        one = f"[=, &p](int c, float x) {{ {inside} const float value = {value}; {stores} }}"
        two = "[=](int c, float x, float y) { one(c, x); one(c + 1, y); }"
        if even:
            two = (
                "[=, &p](int c, float x, float y) { "
                f"const auto value = [=](int c, float x) {{ {inside} return {value}; }}; "
                f"const float values[2] = {{value(c, x), value(c + 1, y)}}; {inside} "
                f"{' '.join(double)} }}"
            )
        return (
            f"[&](int q, int r) {{ {' '.join(before)}\n      const auto one = {one};\n"
            f"      const auto two = {two};\n      return results(one, two); }}"
        )

    def _product_operand(self, stage: _Stage, product: _Product, k: int) -> str:
        """An operand's functions of (product, row or column, outer, inner)."""
        operation = stage.operation
        side = "r" if k == 0 else "c"

        def one() -> tuple[Scope, str]:
            scope = Scope(
                {
                    "q": product.products,
                    side: product.rows if k == 0 else product.columns,
                    "o": product.outer,
                    "i": product.inner,
                }
            )
            places, sample = product.operand_places(scope, k)
            text = self.element(scope, operation.sources[k], operation.operands[k], places, sample)
            return scope, text

        scope, text = one()
        single = f"{' '.join(scope.lines)} return {text};"
        two = f"return pair<{self.type}>(one(q, {side}, o, i), one(q, {side}, o, i + 1));"
        simple = text.startswith("load(s_") and text.count("load(") == 1 and text.endswith(")")
        if simple and self.type != "float" and self._pairs(stage, product, k):
            two = f"{' '.join(scope.lines)} return load_pair{text[4:]};"
        factors = self._factors(stage, product, k)
        if factors is not None:
            return factors
        head = f"(int q, int {side}, int o, int i)"
        if self.type == "float":
            two = "return 0u;"
        return (
            f"operand([&]{head} {{ {single} }},\n      "
            f"[&](const auto& one, int q, int {side}, int o, int i) {{ {two} }})"
        )

    def _factors(self, stage: _Stage, product: _Product, k: int) -> str | None:
        """An operand that is a product of a factor that is the same at every outer place, and one
        that is the same at every inner place: an outer product of fields, as CIN has it.
        """
        operation = stage.operation
        source, operand = operation.sources[k], operation.operands[k]
        if not isinstance(source, View) or k == 1 or not 1 <= product.inner <= MOST_FIXED:
            return None
        made = self._inlined_writer(
            source.buffer, source.start + operand.offset, source.start + operand.end
        )
        if made is None or not isinstance(made.op, Map):
            return None
        if made.op.expression not in (("mul", "x0", "x1"), ("mul", "x1", "x0")):
            return None
        scope = Scope(
            {"q": product.products, "r": product.rows, "o": product.outer, "i": product.inner}
        )
        places, sample = product.operand_places(scope, k)
        column = Index(operand.offset + source.start - made.out.start)
        for place, stride in zip(places, operand.strides, strict=True):
            column = column.plus(place.times(stride))
        inside = scope.split(column, tuple(made.op.shape(made.operands)))
        fixed = scale = None
        for factor, read in zip(made.sources, made.operands, strict=True):
            if not isinstance(factor, View) or factor.buffer not in self.regions:
                return None
            if self.regions[factor.buffer].element != self.type:
                return None
            begin, stop = factor.start + read.offset, factor.start + read.end
            if self._inlined_writer(factor.buffer, begin, stop) is not None:
                return None
            at = Index(factor.start + read.offset)
            for place, stride in zip(inside, read.strides, strict=True):
                at = at.plus(place.times(stride))
            pointer, at = self.address(scope, factor.buffer, at, sample)
            depends = scope.depends_on(at)
            if "i" not in depends:
                scale = f"{pointer} + {at}"
            elif "o" not in depends and "i" in at.factors:
                fixed = f"{pointer} + {at}", f"{pointer} + {at.plus(at.factors['i'])}"
        if fixed is None or scale is None:
            return None
        lines = [line for line in scope.lines if not _names(line) & {"o", "i"}]
        if len(lines) != len(scope.lines):
            return None
        before = " ".join(lines)
        two = self.type != "float"
        return (
            f"separable([&](int q, int r, int i) {{ {before} return load({fixed[0]}); }},\n"
            f"      [&](int q, int r, int i) {{ {before} return "
            + (f"joined({fixed[0]}, {fixed[1]})" if two else "0u")
            + f"; }},\n      [&](int q, int r, int o) {{ {before} return load({scale}); }},\n"
            f"      [&](int q, int r, int o) {{ {before} return "
            + (f"twice({scale})" if two else "0u")
            + "; })"
        )

    def _pairs(self, stage: _Stage, product: _Product, k: int) -> bool:
        """Whether the elements at an even inner place and behind lie in one aligned word."""
        operation = stage.operation
        side = "r" if k == 0 else "c"
        scope = Scope(
            {
                "q": product.products,
                side: product.rows if k == 0 else product.columns,
                "o": product.outer,
                "i": product.inner,
            }
        )
        places, sample = product.operand_places(scope, k)
        source, operand = operation.sources[k], operation.operands[k]
        if not isinstance(source, View) or source.buffer not in self.regions:
            return False
        if self.regions[source.buffer].element != self.type:
            return False
        column = Index(operand.offset + source.start)
        for place, stride in zip(places, operand.strides, strict=True):
            column = column.plus(place.times(stride))
        _, at = self.address(scope, source.buffer, column, sample)
        even = all(f % 2 == 0 for n, f in at.factors.items() if n != "i")
        return even and at.constant % 2 == 0 and at.factors.get("i") == 1

    def _dots(self, stage: _Stage, op: MatMul) -> str:
        """A small product: a few lanes a number."""
        operation = stage.operation
        product = _Product.of(operation, op, self.samples)
        size = product.outer * product.inner
        count = self.samples * product.batches * product.rows_a_sample * product.columns
        per_sample = count // self.samples
        lanes = _lanes(count, size)

        def scoped() -> tuple[Scope, Index, Index, list[Index]]:
            scope = Scope({"r": count, "i": size})
            sample, place = scope.divided(variable("r"), per_sample)
            parts = scope.split(place, (product.batches, product.rows_a_sample, product.columns))
            return scope, sample, place, parts

        scope, sample, _, (batch, row, column) = scoped()
        a, b = operation.operands
        inner = scope.split(variable("i"), b.shape[op.batch : op.batch + op.inner])
        batches = scope.split(batch, a.shape[: op.batch])
        rows = scope.split(row, a.shape[op.batch : op.batch + op.rows])
        columns = scope.split(column, b.shape[op.batch + op.inner :])
        left = self.element(scope, operation.sources[0], a, [*batches, *rows, *inner], sample)
        right = self.element(scope, operation.sources[1], b, [*batches, *inner, *columns], sample)
        read = f"[&](int r, int i) {{ {' '.join(scope.lines)} return {left} * {right}; }}"
        scope, sample, place, _ = scoped()
        body = self.finished(scope, stage, place, sample, "x")
        write = f"[&](int r, float x) {{ {' '.join(scope.lines)} {body} }}"
        return f"reduce<Sum, {lanes}, {count}, {size}>({read},\n    {write});"

    def _weight_packed(self, product: _Product) -> int:
        assert product.constant is not None
        key = ("packed", id(product.constant))
        if key not in self._weight_numbers:
            self._weight_numbers[key] = len(self.weights)
            self.weights.append(packed(product.matrices(), self.type))
            self._kept.append(product.constant)
        return self._weight_numbers[key]

    # The kernel.

    def kernel(self, name: str, host: bool) -> TileKernel:
        """The whole source."""
        body = [self._load(buffer, region) for buffer, region in self.staged.items()]
        since: list[_Region | _Ring] = [
            *self.staged.values()
        ]  # what was touched since all threads met
        outside: set[str] = set()
        for number, stage in enumerate(self.stages):
            touched, others = self._touched(number, stage)
            if any(_overlap(a, b, self.samples) for a in touched for b in since) or (
                others & outside
            ):
                body.append("meet();")
                since, outside = [], set()
            since += touched
            outside |= others
            body += [f"// {stage.operation.op} -> {stage.out}", self.stage(stage)]
        lines = [
            *(["#define DPIF_TILE_HOST"] if host else [f"#define DPIF_TILE_THREADS {THREADS}"]),
            *(["#define DPIF_TILE_TF32"] if self.tf32 else []),
            '#include "kernels/tile/tile.cuh"',
            "#define DPIF_UNROLL" + ("" if host else ' _Pragma("unroll")'),
            "using namespace tile;",
            *(
                f"{'static' if host else '__device__'} const short t{n}[] = "
                f"{{{', '.join(map(str, t))}}};"
                for n, t in enumerate(self.tables)
            ),
        ]
        if host:
            lines += [
                f'extern "C" void {name}(const Params* params, long long block) {{',
                "  const Params& p = *params;",
                f"  alignas(16) static unsigned char shared[{max(self.shared_bytes, 16)}];",
                f"  const long long first = block * {self.samples};",
            ]
        else:
            products = any(isinstance(stage.operation.op, MatMul) for stage in self.stages)
            fit = (MOST_SHARED + 1024) // (self.shared_bytes + 1024)
            ctas = max(1, min(2 if products else 4, fit))
            lines += [
                f'extern "C" __global__ void __launch_bounds__({THREADS}, {ctas})',
                f"    {name}(const __grid_constant__ Params p) {{",
                "  extern __shared__ __align__(16) unsigned char shared[];",
                f"  const long long first = blockIdx.x * {self.samples}ll;",
            ]
        lines += [
            "  const auto at = [&](int s) { return first + s < p.rows ? first + s : p.rows - 1; };",
            "  (void)at;",
        ]
        lines.append("  begin();")
        for number, buffer in enumerate(self.buffers):
            element = "float" if buffer in self.floats else self.type
            lines.append(
                f"  const auto g{number} = [&](long long row) {{ return "
                f"static_cast<{element}*>(p.views[{number}].data) + "
                f"row * p.views[{number}].stride; }};"
            )
        for number, weight in enumerate(self.weights):
            kind = "void" if weight.dtype == np.uint8 else "float"
            lines.append(
                f"  const auto* w{number} = static_cast<const {kind}*>(p.weights[{number}]);"
            )
        for buffer, region in self.regions.items():
            lines.append(
                f"  auto* s_{_c(buffer)} = reinterpret_cast<{region.element}*>"
                f"(shared + {region.offset});"
            )
        lines += [f"  {line}" for line in body]
        lines.append("}")
        return TileKernel(
            "\n".join(lines) + "\n",
            name,
            self.samples,
            self.shared_bytes,
            tuple(self.buffers),
            tuple(self.weights),
        )

    def _touched(self, number: int, stage: _Stage) -> tuple[list[_Region | _Ring], set[str]]:
        """Shared memory that a stage reads or writes; buffers in device memory that it writes and
        others read, or the other way round.
        """
        found: list[_Region | _Ring] = [
            r for b, r in self.regions.items() if b in self.stage_reads[number]
        ]
        out = stage.out.buffer
        if out in self.regions:
            found.append(self.regions[out])
        if id(stage) in self.rings:
            found.append(self.rings[id(stage)])
        written = {s.out.buffer for s in self.stages}
        outside = {b for b in self.stage_reads[number] if b not in self.regions and b in written}
        if out not in self.regions:
            read = set().union(*self.stage_reads.values())
            outside |= {out} & read
        return found, outside

    def _load(self, buffer: str, region: _Region) -> str:
        """An input to shared memory."""
        number = self._buffer(buffer)

        def value(scope: Scope, places: Sequence[Index], sample: Index) -> str:
            column = places[0].plus(region.first)
            return self.leaf(scope, f"g{number}(at({sample}))", column, 0, True)

        width = region.end - region.first
        out = View(buffer, region.first, width)
        mine = self.own
        self.own = self.own | {buffer}  # it is stored to shared memory alone
        try:
            return self._elements(out, (width,), value)
        finally:
            self.own = mine


@dataclass(frozen=True)
class _Product:
    """A MatMul as products [rows, outer x inner] x [outer x inner, columns] of a tile.

    Where b is constant, rows are those of all samples and products those of the batch axes; else a
    product is one of a sample.
    """

    op: MatMul
    a: Operand
    b: Operand
    constant: np.ndarray | None
    samples: int
    batches: int
    rows_a_sample: int
    columns: int
    outer: int
    inner: int

    @classmethod
    def of(cls, operation: Operation, op: MatMul, samples: int) -> _Product:
        a, b = operation.operands
        source = operation.sources[1]
        shape = b.shape[op.batch : op.batch + op.inner]
        inner = shape[-1] if shape else 1
        outer = size_of(shape) // inner
        if outer > 1 and -(-inner // 16) * 16 > 1.5 * inner:
            inner, outer = inner * outer, 1
        if outer == 1 and inner >= 512 and inner % 64 == 0:
            inner, outer = 64, inner // 64  # chunks
        return cls(
            op,
            a,
            b,
            source if isinstance(source, np.ndarray) else None,
            samples,
            size_of(a.shape[: op.batch]),
            size_of(a.shape[op.batch : op.batch + op.rows]),
            size_of(b.shape[op.batch + op.inner :]),
            outer,
            inner,
        )

    @property
    def products(self) -> int:
        return self.batches if self.constant is not None else self.batches * self.samples

    @property
    def rows(self) -> int:
        return self.rows_a_sample * (self.samples if self.constant is not None else 1)

    def places(self, scope: Scope) -> tuple[Index, Index, Index]:
        """Sample, place in the batch axes, and row of (q, r)."""
        if self.constant is not None:
            sample, row = scope.divided(variable("r"), self.rows_a_sample)
            return sample, variable("q"), row
        sample, batch = scope.divided(variable("q"), self.batches)
        return sample, batch, variable("r") if "r" in scope.extents else Index()

    def operand_places(self, scope: Scope, k: int) -> tuple[list[Index], Index]:
        """Places along the axes of a or b, and the sample."""
        op = self.op
        sample, batch, row = self.places(scope)
        batches = scope.split(batch, self.a.shape[: op.batch])
        shape = self.b.shape[op.batch : op.batch + op.inner]
        if shape and shape[-1] == self.inner:
            inner = [*scope.split(variable("o"), shape[:-1]), variable("i")]
        else:
            place = variable("o").times(self.inner).plus(variable("i"))
            inner = scope.split(place if self.outer > 1 else variable("i"), shape)
        if k == 0:
            rows = scope.split(row, self.a.shape[op.batch : op.batch + op.rows])
            return [*batches, *rows, *inner], sample
        columns = scope.split(variable("c"), self.b.shape[op.batch + op.inner :])
        return [*batches, *inner, *columns], sample

    def matrices(self) -> np.ndarray:
        """The constant operand [products, outer, inner, columns]."""
        assert self.constant is not None
        flat = self.constant.reshape(-1)[self.b.offset :]
        strides = [s * flat.itemsize for s in self.b.strides]
        read = np.lib.stride_tricks.as_strided(flat, self.b.shape, strides, writeable=False)
        return np.ascontiguousarray(read).reshape(
            self.batches, self.outer, self.inner, self.columns
        )

    def ring_bytes(self, element: str) -> int:
        """Bytes of the ring through which the constant operand goes; 0: lanes read it directly,
        since it is small or no more than one block of rows needs it.
        """
        if self.constant is None or self.outer < 2 * STAGES:
            return 0
        if min(self.rows, self.columns, self.outer * self.inner) < 16:
            return 0
        steps, tiles = -(-self.inner // 16), -(-self.columns // 16)
        chunk = steps * tiles * (512 if element != "float" else 1024)
        return STAGES * chunk if chunk <= 16 * 1024 else 0

    def tiles(self, pairs: bool, is_separable: bool, is_staged: bool) -> tuple[int, int]:
        """Row and column tiles of 16 that a warp owns: the least time by a model of it, in cycles
        of a multiprocessor a step of 16. `pairs`: two elements of a are read at once.
        """
        rows, columns = -(-self.rows // 16), -(-self.columns // 16)
        best = (math.inf, 1, 1)
        of_a = 1.0 if is_separable else 4.0 if pairs else 16.0
        of_b = 4.0 if self.constant is not None else 16.0
        for i, j in itertools.product((1, 2, 4), (1, 2, 4, 8)):
            fixed = 4 * i * -(-self.inner // 16) if is_separable else 0
            if 8 * i * j + 4 * i + fixed > MOST_REGISTERS or i > rows or j > columns:
                continue
            blocks = self.products * -(-rows // i) * -(-columns // j)
            if is_staged:
                blocks = -(-rows // i) * -(-columns // j)
            rounds = -(-blocks // WARPS)
            busy = min(1.0, blocks / WARPS)
            step = max(1.6 * i * j, of_a * i + of_b * j) + 0.2 * (of_a * i + of_b * j)
            best = min(best, (rounds * (step + 6) * WARPS * (0.3 + 0.7 * busy), i, j))
        return best[1], best[2]


def packed(matrices: np.ndarray, element: str) -> np.ndarray:
    """Matrices [products, outer, inner, columns] in the order in which lanes read them: bytes."""
    products, outer, inner, columns = matrices.shape
    k, n = -(-inner // 16) * 16, -(-columns // 16) * 16
    full = np.zeros((products, outer, k, n), np.float32)
    full[:, :, :inner, :columns] = matrices
    if element == "float":
        parts = full.reshape(products, outer, k // 16, 2, 2, 4, n // 16, 2, 8)
        ordered = parts.transpose(0, 1, 2, 3, 6, 8, 5, 7, 4)
        return np.ascontiguousarray(ordered).view(np.uint8).reshape(-1)
    parts = full.reshape(products, outer, k // 16, 2, 4, 2, n // 16, 2, 8)
    ordered = np.ascontiguousarray(parts.transpose(0, 1, 2, 6, 8, 4, 7, 3, 5))
    if element == "Half":
        return ordered.astype(np.float16).view(np.uint8).reshape(-1)
    bits = ordered.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype(np.uint16).view(np.uint8).reshape(-1)


def _overlap(a: _Region | _Ring, b: _Region | _Ring, samples: int) -> bool:
    return a.offset < b.offset + b.bytes(samples) and b.offset < a.offset + a.bytes(samples)


def _names(text: str) -> set[str]:
    """The names in a statement."""
    return set(re.findall(r"[A-Za-z_]\w*", text))


def _is_even(index: Index) -> bool:
    """Whether columns c and c + 1, where c is even, lie in one aligned pair."""
    others = all(f % 2 == 0 for n, f in index.factors.items() if n != "c")
    return others and index.constant % 2 == 0 and index.factors.get("c") == 1


def _inner_axes(shape: Sequence[int], size: int, stride: int) -> tuple[int, ...] | None:
    """The axes of a row-major shape that an axis of this size and stride walks through."""
    steps = _row_major(shape)
    for last in range(len(shape)):
        if steps[last] != stride or shape[last] == 1:
            continue
        for first in range(last - 1, -1, -1):
            if size_of(shape[first : last + 1]) == size:
                return tuple(shape[first : last + 1])
    return None


def _with_axes(operand: Operand, axis: int, sizes: Sequence[int]) -> Operand:
    """The operand with one axis taken apart."""
    strides = [operand.strides[axis] * step for step in _row_major(sizes)]
    return Operand(
        (*operand.shape[:axis], *sizes, *operand.shape[axis + 1 :]),
        (*operand.strides[:axis], *strides, *operand.strides[axis + 1 :]),
        operand.offset,
    )


def _times_read(operation: Operation, k: int) -> float:
    """How often each element of an operand is read."""
    op = operation.op
    if isinstance(op, MatMul):
        other = operation.operands[1 - k]
        begin = op.batch + (op.inner if k == 0 else 0)
        sides = other.shape[begin:] if k == 0 else other.shape[op.batch : op.batch + op.rows]
        return max(1.0, size_of(sides) / 128)
    return 1.0


def _cost(expression: Expression) -> int:
    """What computing an expression takes, beside one operation."""
    if not isinstance(expression, tuple):
        return 0
    own = 8 if expression[0] in COSTLY else 1
    return own + sum(_cost(part) for part in expression[1:])


def _lanes(rows: int, size: int) -> int:
    """Threads that share a row."""
    lanes = 1
    while lanes < 32 and lanes * 4 < size and (rows * lanes < THREADS or size > lanes * 8):
        lanes *= 2
    return lanes


def _row_major(shape: Sequence[int]) -> list[int]:
    return [size_of(shape[i + 1 :]) for i in range(len(shape))]


def _c(buffer: str) -> str:
    """A buffer's name in C++."""
    return "".join(c if c.isalnum() else "_" for c in buffer)


def _literal(value: float) -> str:
    if math.isinf(value) or math.isnan(value):
        bits = int(np.float32(value).view(np.uint32))
        return f"bits_to_float({bits}u)"
    text = repr(float(np.float32(value)))
    return text + ("f" if "." in text or "e" in text else ".0f")
