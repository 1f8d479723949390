"""How a kernel's code reads elements of operands and stores those of results."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dpiframe_core.engine.cuda.tile.index import Index, Load, Scope, VaryingError
from dpiframe_core.engine.cuda.tile.product import Order, Product, packed
from dpiframe_core.engine.cuda.tile.shared_memory import SharedMemory
from dpiframe_core.engine.cuda.tile.stages import Stage
from dpiframe_core.engine.translation import Operation, Source
from dpiframe_core.program.expression import Expression, operands
from dpiframe_core.program.tensor_ops import Map, Operand, Take, TakeAlong
from dpiframe_core.program.views import View

# Of pairs of 16 bits: functions that are exact, and those that round once.
EXACT_PAIRS = {"relu", "neg", "abs", "min", "max"}
ROUNDED_PAIRS = {"add", "sub", "mul"}
MOST_KNOWN = 2**20  # numbers of an array that is told from others by what it holds
RENAMED = {"not": "not_", "and": "and_", "or": "or_"}


class Elements:
    """Expressions and statements of C++, and what they need of a kernel: `buffers` and `weights` in
    the order of its parameters, and `tables` of indices.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self.memory, self.stages, self.samples = memory, memory.stages, memory.samples
        self.type, self.own = memory.type, memory.stages.own
        self._pointers = memory.pointers()
        self.buffers: list[str] = []
        self.weights: list[np.ndarray] = []
        self.tables: list[tuple[int, ...]] = []
        self._weight_numbers: dict[tuple[object, ...], int] = {}
        self._kept: list[np.ndarray] = []  # so that ids of arrays stay theirs
        self._first: dict[bytes, int] = {}  # ids of arrays by what they hold

    def buffer(self, buffer: str) -> int:
        """A buffer's number among the parameters."""
        if buffer not in self.buffers:
            self.buffers.append(buffer)
        return self.buffers.index(buffer)

    def numbers(self, numbers: np.ndarray) -> int:
        """The number among the parameters of a constant's numbers."""
        return self._weight((self._known(numbers),), numbers, lambda: numbers)

    def _known(self, numbers: np.ndarray) -> int:
        """The id of the first array of these numbers: steps of a recurrence have a copy each, but
        not of large tables.
        """
        if numbers.size > MOST_KNOWN:
            return id(numbers)
        held = f"{numbers.dtype}{numbers.shape}".encode() + np.ascontiguousarray(numbers).tobytes()
        held = hashlib.sha256(held).digest()
        first = self._first.setdefault(held, id(numbers))
        if first == id(numbers):
            self._kept.append(numbers)
        return first

    def packed(self, product: Product, order: Order) -> int:
        """The same of a product's constant operand, packed."""
        assert product.constant is not None
        key = (self._known(product.constant), product.b, product.outer, product.inner, order)
        return self._weight(
            key, product.constant, lambda: packed(product.matrices(), self.type, order)
        )

    def _weight(
        self, key: tuple[object, ...], source: np.ndarray, made: Callable[[], np.ndarray]
    ) -> int:
        if key not in self._weight_numbers:
            self._weight_numbers[key] = len(self.weights)
            self.weights.append(made())
            self._kept.append(source)
        return self._weight_numbers[key]

    def address(self, scope: Scope, buffer: str, column: Index, sample: Index) -> tuple[str, Index]:
        """A pointer's name with its type's elements, and the index behind it."""
        region = self.memory.regions.get(buffer)
        if region is None:
            view = self.memory.outside(View(buffer, 0, 0))
            return f"g{self.buffer(view.buffer)}(at({sample}))", column.plus(view.start)
        place = column.plus(-region.first)
        if region.row:
            row, place = scope.divided(place, region.row)
            place = row.times(region.row + region.padding).plus(place)
        return self._pointers[buffer], sample.times(region.pitch).plus(place)

    def of(
        self,
        scope: Scope,
        operation: Operation,
        k: int,
        places: Sequence[Index],
        sample: Index,
    ) -> str:
        """An expression for an element of an operation's operand."""
        return self.element(scope, operation.sources[k], operation.operands[k], places, sample)

    def element(
        self, scope: Scope, source: Source, operand: Operand, places: Sequence[Index], sample: Index
    ) -> str:
        """An expression for an element of an operand."""
        column = Index(operand.offset)
        for place, stride in zip(places, operand.strides, strict=True):
            column = column.plus(place.times(stride))
        if isinstance(source, np.ndarray):
            if scope.packed:
                raise VaryingError
            if source.size == 1:
                return literal(float(source.reshape(-1)[0]))
            return self.leaf(scope, f"w{self.numbers(source)}", column)
        column = column.plus(source.start)
        made = self.stages.inlined_writer(source.buffer, column.constant, scope.largest(column) + 1)
        if made is None:
            found = self.stages.inlined_writer(
                source.buffer, source.start + operand.offset, source.start + operand.end
            )
            made = found
        if made is not None:
            local = column.plus(-made.out.start)
            shape = tuple(made.op.shape(made.operands))
            return self.value(scope, made, scope.split(local, shape), sample)
        pointer, place = self.address(scope, source.buffer, column, sample)
        return self.loaded(scope, source.buffer, pointer, place)

    def loaded(self, scope: Scope, buffer: str, pointer: str, place: Index) -> str:
        """A load of a buffer's element."""
        element = self.memory.element(buffer)
        is_ahead = scope.ahead is not None and pointer.startswith("g")
        if not scope.packed:
            return self.leaf(scope, pointer, place, element if is_ahead else None)
        if element != self.type:
            raise VaryingError
        return self._pairs(scope, pointer, place, is_ahead)

    def _pairs(self, scope: Scope, pointer: str, place: Index, is_ahead: bool) -> str:
        """A pair of neighbours, of a load of all."""
        width = scope.extents["u"]
        base = Index(place.constant, {n: f for n, f in place.factors.items() if n != "u"})
        factor = place.factors.get("u", 0)
        aligned = base.constant % width == 0 and all(f % width == 0 for f in base.factors.values())
        name = f"a{len(scope.lines)}"
        if factor > 1 or (factor == 1 and not aligned):
            raise VaryingError
        if factor == 0:
            text = f"twice({pointer} + {base})"
            if is_ahead:
                return scope.load_ahead(Load(text, "u32", 1))
            scope.lines.append(f"const u32 {name} = {text};")
            return name
        text = f"load_pairs<{width}>({pointer} + {base})"
        if is_ahead:
            return scope.load_ahead(Load(text, f"Words<{width // 2}>", width // 2)) + ".of[u]"
        scope.lines.append(f"const auto {name} = {text};")
        return f"{name}.of[u]"

    def leaf(self, scope: Scope, pointer: str, place: Index, ahead: str | None = None) -> str:
        """A load; in a block over neighbours `u` one load for all of them where that can be.
        `ahead`: the element's type, of a load ahead of the block.
        """
        if "u" not in scope.varying:
            text = f"load({pointer} + {place})"
            return scope.load_ahead(Load(text, "float", 1)) if ahead else text
        if scope.varying & place.factors.keys() - {"u"}:  # neighbours lie anywhere
            if pointer.startswith("g"):
                raise VaryingError  # threads side by side read lines side by side
            return f"load({pointer} + {place})"
        width = scope.extents["u"]
        factor = place.factors.get("u", 0)
        base = Index(place.constant, {n: f for n, f in place.factors.items() if n != "u"})
        name = f"a{len(scope.lines)}"
        if factor == 0:
            text = f"load({pointer} + {base})"
            if ahead:
                return scope.load_ahead(Load(text, "float", 1))
            scope.lines.append(f"const float {name} = {text};")
            return name
        aligned = base.constant % width == 0 and all(f % width == 0 for f in base.factors.values())
        if factor == 1 and aligned and ahead:
            registers = width if ahead == "float" else width // 2
            load = Load(
                f"load_stored<{width}>({pointer} + {base})", f"Pack<{width}, {ahead}>", registers
            )
            scope.lines.append(
                f"float {name}[{width}]; unpacked({scope.load_ahead(load)}, {name});"
            )
            return f"{name}[u]"
        if factor == 1 and aligned:
            scope.lines.append(
                f"float {name}[{width}]; load_pack<{width}>({pointer} + {base}, {name});"
            )
            return f"{name}[u]"
        return f"load({pointer} + {place})"

    def value(
        self, scope: Scope, operation: Operation, places: Sequence[Index], sample: Index
    ) -> str:
        """An expression for an element of a result that is computed where it is read, or that only
        moves.
        """
        op = operation.op
        if isinstance(op, TakeAlong):
            return self._along(scope, operation, op, places, sample)
        if isinstance(op, Take):
            return self.of(scope, operation, 0, self.picked(scope, op, places), sample)
        assert isinstance(op, Map)
        return self.expression(scope, operation, places, sample, {})

    def picked(self, scope: Scope, op: Take, places: Sequence[Index]) -> list[Index]:
        """Where an element lies in what it is picked from."""
        axis = len(places) - 1 - op.behind
        if op.index not in self.tables:
            self.tables.append(op.index)
        table = self.tables.index(op.index)
        taken = scope.pick(f"t{table}", max(op.index) + 1, places[axis])
        return [*places[:axis], taken, *places[axis + 1 :]]

    def _along(
        self,
        scope: Scope,
        operation: Operation,
        op: TakeAlong,
        places: Sequence[Index],
        sample: Index,
    ) -> str:
        """An element of x at a place that is computed, one at a time: what is loaded ahead of a
        block cannot depend on it.
        """
        if scope.varying or scope.packed:
            raise VaryingError
        ahead, scope.ahead = scope.ahead, None
        size = operation.operands[op.picked].shape[-1]
        place = self.of(scope, operation, 1 - op.picked, places, sample)
        at = scope.let(f"nearest_place<{size}>({place})", size, sample.plus(_sum(places)))
        found = self.of(scope, operation, op.picked, [*places[:-1], at], sample)
        scope.ahead = ahead
        return f"at_place<{size}>({place}, {found})"

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
        for name in operands(operation.op.expression):
            number = int(name[1:])
            if number not in made:
                made[number] = self.element(
                    scope, operation.sources[number], operation.operands[number], places, sample
                )

        def text(part: Expression) -> str:
            if isinstance(part, float):
                if scope.packed:
                    raise VaryingError
                return literal(part)
            if isinstance(part, str):
                return made[int(part[1:])]
            function, *parts = part
            if scope.packed:
                scope.rounds += function in ROUNDED_PAIRS
                if scope.rounds > 1 or function not in EXACT_PAIRS | ROUNDED_PAIRS:
                    raise VaryingError
                return f"pairs::{function}<{self.type}>({', '.join(text(p) for p in parts)})"
            if function == "div" and self.type != "float" and _has_inverse(parts[1]):
                function, parts = "mul", [parts[0], 1.0 / parts[1]]
            inside = ", ".join(text(p) for p in parts)
            return f"fn::{RENAMED.get(function, function)}({inside})"

        return text(operation.op.expression)

    def stored(
        self, scope: Scope, out: View, place: Index, sample: Index, value: str, only: str = "true"
    ) -> str:
        """Statements that store an element of a result, `only` if this holds."""
        column = place.plus(out.start)
        lines = []
        if self.memory.holds(out):
            pointer, at = self.address(scope, out.buffer, column, sample)
            lines.append(f"if ({only}) store({pointer} + {at}, value);")
        if out.buffer not in self.own:
            view = self.memory.outside(out)
            there = f"g{self.buffer(view.buffer)}({sample}) + {place.plus(view.start)}"
            lines.append(f"if ({only} && {sample} < left) store({there}, value);")
        return f"const float value = {value}; {' '.join(lines)}"

    def stored_pack(
        self,
        scope: Scope,
        out: View,
        place: Index,
        sample: Index,
        width: int,
        store: str = "store_pack",
        only: str = "true",
    ) -> list[str]:
        """Statements that store `values`, neighbours of a result from `place` on, `only` if this
        holds; `place` may depend on u, the place among them, as its last summand. VaryingError:
        they cannot be stored at once.
        """
        first = Index(place.constant, {n: f for n, f in place.factors.items() if n != "u"})
        if place.factors.get("u", 1) != 1:
            raise VaryingError
        column, lines = first.plus(out.start), list[str]()
        fixed = scope.behind()
        if self.memory.holds(out):
            pointer, at = self.address(fixed, out.buffer, column, sample)
            if any(f % width for f in at.factors.values()) or at.constant % width:
                raise VaryingError
            lines.append(f"if ({only}) {store}<{width}>({pointer} + {at}, values);")
        if out.buffer not in self.own:
            view = self.memory.outside(out)
            column = first.plus(view.start)
            if any(f % width for f in column.factors.values()) or column.constant % width:
                raise VaryingError
            there = f"outside(g{self.buffer(view.buffer)}({sample}) + {column})"
            lines.append(f"if ({only} && {sample} < left) {store}<{width}>({there}, values);")
        return [*fixed.lines, *lines]

    def finished_pack(
        self, scope: Scope, stage: Stage, place: Index, sample: Index, value: str, width: int
    ) -> str:
        """The same for neighbours of a stage's result, with its post; `value` may depend on u."""
        made = "made"
        if stage.post is not None:
            places, place = stage.post_places(scope, place)
            made = self.expression(scope, stage.post, places, sample, {stage.replaced: "made"})
        stores = self.stored_pack(scope, stage.out, place, sample, width)
        return (
            f"float values[{width}]; DPIF_UNROLL for (int u = 0; u < {width}; ++u) "
            f"{{ const float made = {value}; values[u] = {made}; }} "
            f"{' '.join(stores)}"
        )

    def finished(self, scope: Scope, stage: Stage, place: Index, sample: Index, value: str) -> str:
        """The same for a stage's result, with its post."""
        if stage.post is not None:
            scope.lines.append(f"const float made = {value};")
            places, place = stage.post_places(scope, place)
            value = self.expression(scope, stage.post, places, sample, {stage.replaced: "made"})
        return self.stored(scope, stage.out, place, sample, value)


def _sum(places: Sequence[Index]) -> Index:
    total = Index()
    for place in places:
        total = total.plus(place)
    return total


def _has_inverse(part: Expression) -> bool:
    """Whether it is a number by whose inverse may be multiplied where results are of 16 bits."""
    return isinstance(part, float) and 1e-30 < abs(part) < 1e30


def literal(value: float) -> str:
    """A number in C++, as float32."""
    if math.isinf(value) or math.isnan(value):
        bits = int(np.float32(value).view(np.uint32))
        return f"bits_to_float({bits}u)"
    text = repr(float(np.float32(value)))
    return text + ("f" if "." in text or "e" in text else ".0f")
