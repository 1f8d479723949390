"""The code of stages that go through elements or rows: copies, joins, reductions, norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from dpiframe_core.engine.cuda.tile.elements import Elements, literal
from dpiframe_core.engine.cuda.tile.index import Index, Scope, VaryingError, size_of, variable
from dpiframe_core.engine.cuda.tile.stages import Stage
from dpiframe_core.engine.translation import Operation, Source
from dpiframe_core.program.tensor_ops import Join, LayerNorm, Operand, Reduce, Softmax, row_major
from dpiframe_core.program.views import View

THREADS = 256
WIDEST = 8  # neighbours at a time
LEAST_SPLIT = 64  # elements of a row whose last ones are a loop of their own
MOST_AHEAD = 16  # registers of a thread that loads ahead of their use go to
LEAST_COLUMNS = 8  # rows side by side that are read together
MOST_APART = 8  # threads that share such a row


class Loops:
    """Writes them."""

    def __init__(self, elements: Elements) -> None:
        self.elements, self._samples = elements, elements.samples
        self._next_thread = 0

    def each(self, operation: Operation, out: View, shape: tuple[int, ...]) -> str:
        return self._over(
            out,
            shape,
            lambda scope, places, sample: self.elements.value(scope, operation, places, sample),
        )

    def _over(
        self,
        out: View,
        shape: tuple[int, ...],
        value: Callable[[Scope, Sequence[Index], Index], str],
        pitch: tuple[int, int] | None = None,
    ) -> str:
        """A loop over the elements of a shape; `pitch`: a row's columns in `out` and its first.
        Of a long row all but the last elements are taken eight at a time.
        """
        size = size_of(shape)
        last = shape[-1] if shape else 1
        whole = size // WIDEST * WIDEST
        if len(shape) == 1 and pitch is None and whole >= LEAST_SPLIT and size % 4:

            def behind(scope: Scope, places: Sequence[Index], sample: Index) -> str:
                return value(scope, [places[0].plus(whole)], sample)

            parts = [
                self._over(out, (whole,), value),
                self._over(out, (size - whole,), behind, (0, whole)),
            ]
            return "\n  ".join(parts)
        for width in (WIDEST, 4, 2, 1):
            if last % width or (pitch and (pitch[0] % width or pitch[1] % width)):
                continue
            if out.start % width and width > 1:
                continue
            for packed in (True, False) if self._may_pack(out, width) else (False,):
                with suppress(VaryingError):
                    return self._over_by(width, packed, out, shape, size, value, pitch)
        raise AssertionError

    def _may_pack(self, out: View, width: int) -> bool:
        """Whether elements may be pairs of 16 bits."""
        element = self.elements.memory.element(out.buffer)
        return width > 1 and element == self.elements.type != "float"

    def _over_by(
        self,
        width: int,
        packed: bool,
        out: View,
        shape: tuple[int, ...],
        size: int,
        value: Callable[[Scope, Sequence[Index], Index], str],
        pitch: tuple[int, int] | None,
    ) -> str:
        per_sample = size // width
        count = self._samples * per_sample
        varying = frozenset({"u"}) if width > 1 else frozenset()
        scope = Scope({"i": count, "u": width}, varying, packed, ahead=[])
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
            body = self.elements.stored(scope, out, place, sample, text)
            return _each(scope, count, [*scope.lines, body])
        if packed:
            count_of, target, store = width // 2, "values.of[u]", "store_pairs"
            lines = [*scope.lines, f"Words<{count_of}> values;"]
        else:
            count_of, target, store = width, "values[u]", "store_pack"
            lines = [*scope.lines, f"float values[{width}];"]
        lines.append(f"DPIF_UNROLL for (int u = 0; u < {count_of}; ++u) {target} = {text};")
        lines += self.elements.stored_pack(scope, out, place, sample, width, store)
        return _each(scope, count, lines)

    def join(self, stage: Stage) -> str:
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
                return self.elements.element(scope, source, operand, places, sample)

            if op.outer == 1:
                out = operation.out.columns(begin, columns)
                parts.append(self._over(out, operand.shape, value))
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
            return self.elements.element(
                scope, source, operand, scope.split(flat, operand.shape), sample
            )

        return self._over(out, (outer, columns), value, (row, begin))

    def load(self, view: View) -> str:
        """An input to shared memory."""
        number = self.elements.buffer(view.buffer)

        def value(scope: Scope, places: Sequence[Index], sample: Index) -> str:
            column = places[0].plus(view.start)
            return self.elements.loaded(scope, view.buffer, f"g{number}(at({sample}))", column)

        mine = self.elements.own
        # It is stored to shared memory alone.
        self.elements.own = self.elements.own | {view.buffer}
        try:
            return self._over(view, (view.width,), value)
        finally:
            self.elements.own = mine

    def _rows(self, stage: Stage, axes: Sequence[int]) -> tuple[int, int, list[int], list[int]]:
        """Of a reduction: rows and elements of one, kept and reduced axes."""
        shape = stage.operation.operands[0].shape
        kept = [i for i in range(len(shape)) if i not in axes]
        gone = sorted(axes)
        size = size_of([shape[i] for i in gone])
        rows = self._samples * size_of([shape[i] for i in kept])
        return rows, size, kept, gone

    def row_arguments(self, rows: int, size: int, width: int) -> str:
        """The template arguments of what goes through rows: lanes, rows, elements, neighbours at a
        time, the first thread: where few threads have rows, the next stage's are others.
        """
        lanes = lanes_of(rows, size, width)
        start = self._next_thread
        self._next_thread = (start + _rounded_up(rows * lanes)) % THREADS
        return f"{lanes}, {rows}, {size}, {width}, {start}"

    def column_arguments(self, rows: int, size: int, width: int) -> str:
        """The same of rows side by side, `width` of which a thread takes at a time."""
        lanes, blocks = 1, rows // width
        while lanes < MOST_APART and 2 * lanes * blocks <= THREADS and 8 * lanes <= size:
            lanes *= 2
        start = self._next_thread
        self._next_thread = (start + _rounded_up(blocks * lanes)) % THREADS
        return f"{lanes}, {blocks}, {size}, {width}, {start}"

    def column_widths(self, rows: int, columns: int) -> list[int]:
        """How many of rows side by side, `columns` of which follow one another, a thread may take:
        the more the better, but for threads without any.
        """
        return [
            width
            for width in (WIDEST, 4, 2, 1)
            if columns % width == 0 and (width == 1 or 2 * MOST_APART * rows >= width * THREADS)
        ]

    def _by_widths(self, stage: Stage, gone: Sequence[int], code: Callable[[int], str]) -> str:
        """The code of a stage over rows, the more neighbours at a time the better."""
        shape = stage.operation.operands[0].shape
        for width in (WIDEST, 4, 2):
            if gone and gone[-1] == len(shape) - 1 and shape[-1] % width == 0:
                with suppress(VaryingError):
                    return code(width)
        return code(1)

    def _row_scope(
        self,
        stage: Stage,
        kept: Sequence[int],
        gone: Sequence[int],
        rows: int,
        width: int,
        apart: bool = False,
    ) -> tuple[Scope, Index, list[Index], Index]:
        """Scope over (r, i, u), the sample, the places, and the row within the sample; i and u: the
        blocks of `width` neighbours in a row, and the place in one. `apart`: r are blocks of
        `width` rows side by side, and u the row in one.
        """
        shape = stage.operation.operands[0].shape
        blocks, sizes = [shape[a] for a in gone], [shape[a] for a in kept]
        if apart:
            sizes[-1] //= width
            rows //= width
        elif width > 1:
            blocks[-1] //= width
        extents = {"r": rows, "i": size_of(blocks), "u": width}
        scope = Scope(extents, frozenset({"u"}) if width > 1 else frozenset())
        sample, row = scope.divided(variable("r"), rows // self._samples)
        places = [Index()] * len(shape)
        for axis, place in zip(kept, scope.split(row, sizes), strict=True):
            places[axis] = place
        for axis, place in zip(gone, scope.split(variable("i"), blocks), strict=True):
            places[axis] = place
        if width > 1:
            last = kept[-1] if apart else gone[-1]
            places[last] = places[last].times(width).plus(variable("u"))
        return scope, sample, places, row

    def _reader(
        self,
        stage: Stage,
        kept: Sequence[int],
        gone: Sequence[int],
        rows: int,
        width: int,
        apart: bool = False,
    ) -> str:
        scope, sample, places, _ = self._row_scope(stage, kept, gone, rows, width, apart)
        operation = stage.operation
        text = self.elements.element(
            scope, operation.sources[0], operation.operands[0], places, sample
        )
        return (
            f"[&](int r, int i, float (&x)[{width}]) {{ {' '.join(scope.lines)} "
            f"DPIF_UNROLL for (int u = 0; u < {width}; ++u) x[u] = {text}; }}"
        )

    def reduce(self, stage: Stage, op: Reduce) -> str:
        rows, size, kept, gone = self._rows(stage, op.axes)
        function = {"sum": "Sum", "mean": "Sum", "prod": "Prod", "max": "Max", "min": "Min"}
        scope = Scope({"r": rows})
        sample, row = scope.divided(variable("r"), rows // self._samples)
        value = f"x * {literal(1.0 / size)}" if op.function == "mean" else "x"
        body = self.elements.finished(scope, stage, row, sample, value)
        write = f"[&](int r, float x) {{ {' '.join(scope.lines)} {body} }}"

        def code(width: int) -> str:
            read = self._reader(stage, kept, gone, rows, width)
            shape = self.row_arguments(rows, size, width)
            return f"reduce<{function[op.function]}, {shape}>({read},\n    {write});"

        operand = stage.operation.operands[0]
        last = len(operand.shape) - 1
        apart = all(operand.strides[axis] != 1 for axis in gone)
        if apart and kept and kept[-1] == last and operand.shape[last] >= LEAST_COLUMNS:
            for width in self.column_widths(rows, operand.shape[last]):
                with suppress(VaryingError):
                    read = self._reader(stage, kept, gone, rows, width, apart=True)
                    shape = self.column_arguments(rows, size, width)
                    return (
                        f"reduce_columns<{function[op.function]}, {shape}>({read},\n    {write});"
                    )
        return self._by_widths(stage, gone, code)

    def softmax(self, stage: Stage, op: Softmax) -> str:
        rows, size, kept, gone = self._rows(stage, op.axes)

        def code(width: int) -> str:
            read = self._reader(stage, kept, gone, rows, width)
            write = self._writer(stage, kept, gone, rows, width)
            shape = self.row_arguments(rows, size, width)
            guarded = str(op.guarded).lower()
            return f"softmax<{self.elements.type}, {guarded}, {shape}>({read},\n    {write});"

        return self._by_widths(stage, gone, code)

    def _writer(
        self,
        stage: Stage,
        kept: Sequence[int],
        gone: Sequence[int],
        rows: int,
        width: int,
        affine: bool = False,
    ) -> str:
        scope, sample, places, _ = self._row_scope(stage, kept, gone, rows, width)
        shape = stage.operation.operands[0].shape
        operation, value = stage.operation, "x[u]" if width > 1 else "x[0]"
        if affine:
            parts = []
            for source, operand in zip(operation.sources[1:], operation.operands[1:], strict=True):
                behind = places[len(places) - len(operand.shape) :]
                parts.append(self.elements.element(scope, source, operand, behind, sample))
            if parts:
                value = f"{value} * {parts[0]}"
            if len(parts) > 1:
                value = f"{value} + {parts[1]}"
        place = Index()
        for axis, step in enumerate(row_major(shape)):
            place = place.plus(places[axis].times(step))
        if width == 1:
            body = self.elements.finished(scope, stage, place, sample, value)
        else:
            body = self.elements.finished_pack(scope, stage, place, sample, value, width)
        return f"[&](int r, int i, const float (&x)[{width}]) {{ {' '.join(scope.lines)} {body} }}"

    def layer_norm(self, stage: Stage, op: LayerNorm) -> str:
        count = len(stage.operation.operands[0].shape)
        rows, size, kept, gone = self._rows(stage, range(count - op.axes, count))

        def code(width: int) -> str:
            read = self._reader(stage, kept, gone, rows, width)
            write = self._writer(stage, kept, gone, rows, width, affine=True)
            shape = self.row_arguments(rows, size, width)
            return f"layer_norm<{shape}>({literal(op.eps)}, {read},\n    {write});"

        return self._by_widths(stage, gone, code)


def _each(scope: Scope, count: int, lines: Sequence[str]) -> str:
    """A loop of all threads over a block, with what is loaded ahead of it."""
    body = " ".join(lines)
    if not scope.ahead:
        return f"each<{count}>([&](int i) {{ {body} }});"
    turns = -(-count // THREADS)
    at_once = max(1, min(turns, MOST_AHEAD // sum(load.registers for load in scope.ahead)))
    at_once = -(-turns // -(-turns // at_once))  # as many in each of them
    places = " ".join(scope.index_lines())
    members = " ".join(f"{load.type} l{n};" for n, load in enumerate(scope.ahead))
    loads = ", ".join(load.text for load in scope.ahead)
    return (
        f"each_ahead<{count}, {at_once}>([&](int i) {{ {places} struct Loads {{ {members} }}; "
        f"return Loads{{{loads}}}; }}, [&](int i, const auto& loads) {{ {body} }});"
    )


def _rounded_up(threads: int) -> int:
    """To whole warps."""
    return -(-threads // 32) * 32


def lanes_of(rows: int, size: int, width: int) -> int:
    """Threads that share a row, of which each takes blocks of `width` neighbours."""
    lanes = 1
    while (
        lanes < 32 and lanes * max(width, 4) < size and (rows * lanes < THREADS or size > lanes * 8)
    ):
        lanes *= 2
    return lanes
