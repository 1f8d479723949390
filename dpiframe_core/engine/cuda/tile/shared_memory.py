"""Shared memory of a kernel: what lies there, from which stage to which, and where."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dpiframe_core.engine.cuda.tile.product import Product
from dpiframe_core.engine.cuda.tile.stages import Stage, Stages, times_read
from dpiframe_core.engine.translation import Operation
from dpiframe_core.program.expression import Expression
from dpiframe_core.program.tensor_ops import Map, MatMul, Reduce, Take, TakeAlong
from dpiframe_core.program.views import View

NO_PARTS: Mapping[str, View] = {}
# Functions whose result jumps: a number that is a little off makes a wrong one.
JUMPS = frozenset(("mod", "floor", "ceil", "round"))
EQUAL = frozenset(("eq", "ne"))
# Functions whose result may be as small as an operand is.
KEEPING = frozenset(("add", "sub", "mul", "neg", "abs", "max", "min", "where"))
LEAST_HALF = 2.0**-24  # numbers up to half of it become 0 in float16


class UnsuitableError(Exception):
    """A group that has no such kernel; the message says why."""


@dataclass
class Region:
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
class Matrix:
    """A product's constant operand in shared memory: `whole`, on its way since the stage before,
    or a ring of chunks.
    """

    size: int
    whole: bool
    begin: int
    last: int
    offset: int = 0

    def bytes(self, samples: int) -> int:
        del samples
        return self.size


class SharedMemory:
    """`regions` by buffer, and what of them is `staged` from device memory first; `inputs`: first
    columns and ends of buffers that no stage writes; `matrices` by the ids of their stages, `whole`
    ones if allowed; `bytes` of all. `element`: the activation type.
    """

    def __init__(
        self,
        stages: Stages,
        floats: frozenset[str],
        element: str,
        whole: bool = True,
        parts: Mapping[str, View] = NO_PARTS,
    ) -> None:
        self.stages, self.samples, self.type = stages, stages.samples, element
        self.floats, self.parts = floats, parts
        self.regions: dict[str, Region] = {}
        self.staged: dict[str, View] = {}
        self.inputs: dict[str, tuple[int, int]] = {}
        self.matrices: dict[int, Matrix] = {}
        self.ring_rows: list[int] = []  # of the products that have rings
        operations = stages.operations
        self._exact = _exact(operations) | _guards(operations) | _partial_sums(operations)
        self._make_regions()
        self._place_matrices(whole)
        self._place_regions()

    def _make_regions(self) -> None:
        """Regions of what stages read, and of inputs that are read more than once, or beside what
        stages write, as the fields beside a dense vector in DLRM's interaction.
        """
        self.reads_of: dict[int, set[str]] = {i: set() for i in range(len(self.stages.all))}
        reads: dict[str, list[tuple[int, int, int, float, bool]]] = {}
        widths: dict[str, list[int]] = {}
        seen: set[tuple[object, ...]] = set()  # what a stage reads at the same places, counted once

        def add(
            stage: int, operation: Operation, k: int, times: float, product: bool, moved: bool
        ) -> None:
            source, operand = operation.sources[k], operation.operands[k]
            if not isinstance(source, View):
                return
            first, end = source.start + operand.offset, source.start + operand.end
            inner = self.stages.inlined_writer(source.buffer, first, end)
            if inner is not None:
                share = times * operand.size / inner.out.width
                moved = moved or not operand.is_whole or isinstance(inner.op, Take)
                for j in range(len(inner.sources)):
                    add(stage, inner, j, share, product, moved)
                return
            self.reads_of[stage].add(source.buffer)
            read = (stage, source, operand)
            if read in seen and not product and not moved:
                return
            seen.add(read)
            reads.setdefault(source.buffer, []).append(
                (stage, first, end, times * operand.size, product)
            )
            if operand.shape:
                widths.setdefault(source.buffer, []).append(
                    operand.shape[-1] if operand.strides[-1] == 1 else 0
                )

        for number, stage in enumerate(self.stages.all):
            for operation, k in stage.reads():
                product = isinstance(operation.op, MatMul)
                add(number, operation, k, times_read(operation, k), product, False)
        for buffer, found in reads.items():
            first, end = min(f for _, f, _, _, _ in found), max(e for _, _, e, _, _ in found)
            begins = [
                i
                for i, s in enumerate(self.stages.all)
                if s.out.overlaps(View(buffer, first, end - first))
            ]
            outs = [self.stages.all[i].out for i in begins]
            if outs:
                first = min(first, *(out.start for out in outs))
                end = max(end, *(out.start + out.width for out in outs))
            staged = _from_outside([View(buffer, f, e - f) for _, f, e, _, _ in found], outs)
            if not begins:
                self.inputs[buffer] = first, end
            if staged is not None:
                total = sum(size for _, _, _, size, _ in found)
                costly = total > 1.5 * (end - first) or any(p for _, _, _, _, p in found)
                several = not begins and len({stage for stage, _, _, _, _ in found}) > 1
                if not (costly or several) or end - first == 1 or buffer in self.parts:
                    continue
            element = self.element(buffer)
            region = Region(first, end, element)
            region.begin = -1 if staged else min(begins)
            # Columns between those that are read may be written later, by stages of their own.
            region.last = max([*begins, *(stage for stage, _, _, _, _ in found)])
            made_rows = [self._made_row(self.stages.all[i]) for i in begins]
            rows = [row for row in made_rows if row] or widths.get(buffer, [])
            self._pad_rows(region, rows)
            self.regions[buffer] = region
            if staged:
                self.staged[buffer] = staged
        for stage in self.stages.all:
            if stage.out.buffer not in self.regions and stage.out.buffer in self.stages.own:
                raise UnsuitableError(f"{stage.out} would be partly in shared memory")

    def _made_row(self, stage: Stage) -> int:
        """Columns that a product writes side by side."""
        op = stage.operation.op
        if not isinstance(op, MatMul) or stage.post is not None:
            return 0
        return Product.of(stage.operation, op, self.samples).columns

    def _pad_rows(self, region: Region, rows: list[int]) -> None:
        """Rows a multiple of 64 bytes long would lie in the same banks: they get 16 bytes more."""
        if region.element == "float" and self.type != "float":
            return
        row = max(rows, default=0)
        size = 4 if region.element == "float" else 2
        width = region.end - region.first
        if row and row * size % 64 == 0 and width % row == region.first % row == 0 and width > row:
            region.row = row

    def element(self, buffer: str) -> str:
        """The type of a buffer's elements."""
        buffer = self.stages.copied.get(buffer, buffer)
        if self.outside(View(buffer, 0, 0)).buffer in self.floats and buffer not in self.stages.own:
            return "float"
        return "float" if buffer in self._exact and buffer in self.stages.own else self.type

    def _place_matrices(self, whole: bool) -> None:
        for number, stage in enumerate(self.stages.all):
            made = stage.multiplying
            op = made.operation.op
            if not isinstance(op, MatMul) or made.scores is not None:
                continue
            product = Product.of(made.operation, op, self.samples)
            if size := product.ring_bytes(self.type):
                self.matrices[id(made)] = Matrix(size, False, number, number)
                self.ring_rows.append(product.rows)
            elif whole and (size := product.resident_bytes(self.type)):
                self.matrices[id(made)] = Matrix(size, True, number - 1, number)

    def _place_regions(self) -> None:
        """First fit by the stages in which a region is needed. Of turns, which are many and short,
        each has the same places, and stages that could run side by side do not wait for one
        another's memory.
        """
        apart = 1 if self.parts else 0

        def rank(region: Region | Matrix) -> int:
            return region.begin if self.parts else -region.bytes(self.samples)

        placed: list[Region | Matrix] = []
        total = 0
        regions: list[Region | Matrix] = [*self.regions.values(), *self.matrices.values()]
        for region in sorted(regions, key=rank):
            size = region.bytes(self.samples)
            busy = sorted(
                (r.offset, r.offset + r.bytes(self.samples))
                for r in placed
                if r.begin - apart <= region.last and region.begin - apart <= r.last
            )
            offset = 0
            for begin, end in busy:
                if offset + size <= begin:
                    break
                offset = max(offset, end)
            region.offset = offset
            placed.append(region)
            total = max(total, offset + size)
        self.bytes = total

    def pointers(self) -> dict[str, str]:
        """Names of the pointers to regions by buffer; regions that begin in one place share one."""
        names: dict[tuple[int, str], str] = {}
        return {
            buffer: names.setdefault(
                (region.offset, region.element), f"s{len(names)}_{name_of(buffer)}"
            )
            for buffer, region in self.regions.items()
        }

    def outside(self, view: View) -> View:
        """Where a view is in device memory."""
        part = self.parts.get(view.buffer)
        return part.columns(view.start, view.width) if part else view

    def holds(self, out: View) -> bool:
        """Whether a result lies in a region."""
        region = self.regions.get(out.buffer)
        return (
            region is not None
            and region.first <= out.start
            and (out.start + out.width <= region.end)
        )

    @property
    def fills_warpgroup(self) -> bool:
        """Whether a ring product has a warpgroup's 64 rows, and half of the samples had not."""
        return any(64 <= rows < 128 for rows in self.ring_rows)

    @property
    def has_whole(self) -> bool:
        """Whether it holds a whole matrix."""
        return any(matrix.whole for matrix in self.matrices.values())

    def coming(self, number: int) -> Matrix | None:
        """The whole matrix that a stage multiplies with."""
        if number == len(self.stages.all):
            return None
        matrix = self.matrices.get(id(self.stages.all[number].multiplying))
        return matrix if matrix and matrix.whole else None

    def touched(self, number: int, stage: Stage) -> Touched:
        """What a stage reads and writes that others may touch."""
        out = stage.out.buffer
        own = self.matrices.get(id(stage.multiplying))
        coming = self.coming(number + 1)
        return Touched(
            [
                *(r for b, r in self.regions.items() if b in self.reads_of[number]),
                *([own] if own and own.whole else []),
            ],
            [
                *([own] if own and not own.whole else []),
                *([coming] if coming else []),
                *([self.regions[out]] if out in self.regions else []),
            ],
            {b for b in self.reads_of[number] if b not in self.regions},
            {out} if out not in self.regions else set(),
        )


@dataclass
class Touched:
    """Parts of shared memory and buffers in device memory that stages read and write."""

    read: list[Region | Matrix] = field(default_factory=list)
    written: list[Region | Matrix] = field(default_factory=list)
    read_outside: set[str] = field(default_factory=set)
    written_outside: set[str] = field(default_factory=set)

    def meets(self, later: Touched, samples: int) -> bool:
        """Whether one writes what the other reads or writes; buffers in device memory are written
        by several stages in different columns.
        """
        pairs = [
            (self.written, later.read),
            (self.read, later.written),
            (self.written, later.written),
        ]
        return (
            any(overlap(a, b, samples) for some, others in pairs for a in some for b in others)
            or bool(self.written_outside & later.read_outside)
            or bool(self.read_outside & later.written_outside)
        )

    def add(self, later: Touched) -> None:
        """Adds what a later stage touches."""
        self.read += later.read
        self.written += later.written
        self.read_outside |= later.read_outside
        self.written_outside |= later.written_outside


def name_of(buffer: str) -> str:
    """A buffer's name in C++."""
    return "".join(c if c.isalnum() else "_" for c in buffer)


def overlap(a: Region | Matrix, b: Region | Matrix, samples: int) -> bool:
    """Whether two parts of a kernel's shared memory have bytes in common."""
    return a.offset < b.offset + b.bytes(samples) and b.offset < a.offset + a.bytes(samples)


def _from_outside(reads: Sequence[View], outs: Sequence[View]) -> View | None:
    """The columns of the views that no result has, and those between them."""
    left = [(view.start, view.start + view.width) for view in reads]
    for out in outs:
        end = out.start + out.width
        left = [
            (a, b)
            for first, last in left
            for a, b in ((first, min(last, out.start)), (max(first, end), last))
            if a < b
        ]
    if not left:
        return None
    first, end = min(a for a, _ in left), max(b for _, b in left)
    return View(reads[0].buffer, first, end - first)


def _exact(operations: Sequence[Operation]) -> set[str]:
    """Buffers of numbers that must not be rounded to 16 bits, such as ids that are computed: what
    is compared for equality or made an integer, and what that is made of.
    """
    found: set[str] = set()
    for operation in reversed(operations):
        names: set[str] = set()
        if isinstance(operation.op, Map):
            names = _before_jumps(operation.op.expression)
        elif isinstance(operation.op, TakeAlong):
            names = {f"x{1 - operation.op.picked}"}
        whole = operation.out.buffer in found and not isinstance(operation.op, MatMul)
        for k, source in enumerate(operation.sources):
            if isinstance(source, View) and (whole or f"x{k}" in names):
                found.add(source.buffer)
    return found


def _partial_sums(operations: Sequence[Operation]) -> set[str]:
    """Buffers of sums that are summed again."""
    sums = {o.out for o in operations if isinstance(o.op, Reduce)}
    return {
        source.buffer
        for o in operations
        if isinstance(o.op, Reduce)
        for source in o.sources
        if isinstance(source, View) and source in sums
    }


def _guards(operations: Sequence[Operation]) -> set[str]:
    """Buffers of numbers that something of less than any float16 keeps from 0, as the norms of
    `F.normalize` are, before others are divided by them.
    """
    return {
        o.out.buffer for o in operations if isinstance(o.op, Map) and _is_guarded(o.op.expression)
    }


def _is_guarded(expression: Expression) -> bool:
    if isinstance(expression, float):
        return 0 < abs(expression) < LEAST_HALF
    if not isinstance(expression, tuple):
        return False
    name, *parts = expression
    kept = parts if name in KEEPING else parts[:1] if name == "div" else []
    return any(_is_guarded(part) for part in kept)


def _before_jumps(expression: Expression, inside: bool = False) -> set[str]:
    """Operands of an expression from which it makes integers or equality. Whether a number is 0,
    infinite or itself no rounding changes.
    """
    if isinstance(expression, str):
        return {expression} if inside else set()
    if not isinstance(expression, tuple):
        return set()
    name, *parts = expression
    jumps = name in JUMPS or (
        name in EQUAL
        and parts[0] != parts[1]
        and not any(part in (0.0, math.inf, -math.inf) for part in parts)
    )
    return set().union(*(_before_jumps(part, inside or jumps) for part in parts))
