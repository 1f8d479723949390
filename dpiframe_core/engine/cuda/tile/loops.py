"""The code of stages that go through elements or rows: copies, joins, reductions, norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dpiframe_core.engine.cuda.tile.elements import Elements, literal
from dpiframe_core.engine.cuda.tile.index import Index, Scope, VaryingError, size_of, variable
from dpiframe_core.engine.cuda.tile.shared_memory import Region, UnsuitableError
from dpiframe_core.engine.cuda.tile.stages import Stage
from dpiframe_core.engine.translation import Operation, Source
from dpiframe_core.program.tensor_ops import Join, LayerNorm, Operand, Reduce, Softmax, row_major
from dpiframe_core.program.views import View

THREADS = 256
MOST_ROW = 1024  # elements of a row that a softmax or a norm holds in registers


class Loops:
    """Writes them."""

    def __init__(self, elements: Elements) -> None:
        self.elements, self._samples = elements, elements.samples

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
        """A loop over the elements of a shape; `pitch`: a row's columns in `out` and its first."""
        size = size_of(shape)
        last = shape[-1] if shape else 1
        for width in (8, 4, 2, 1):
            if last % width or (pitch and (pitch[0] % width or pitch[1] % width)):
                continue
            if out.start % width and width > 1:
                continue
            try:
                return self._over_by(width, out, shape, size, value, pitch)
            except VaryingError:
                continue
        raise AssertionError

    def _over_by(
        self,
        width: int,
        out: View,
        shape: tuple[int, ...],
        size: int,
        value: Callable[[Scope, Sequence[Index], Index], str],
        pitch: tuple[int, int] | None,
    ) -> str:
        per_sample = size // width
        count = self._samples * per_sample
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
            body = self.elements.stored(scope, out, place, sample, text)
            return f"each<{count}>([&](int i) {{ {' '.join(scope.lines)} {body} }});"
        column = place.plus(out.start)
        stores = []
        fixed = Scope(scope.extents)
        fixed._known, fixed.lines = dict(scope._known), []
        if self.elements.memory.holds(out):
            pointer, at = self.elements.address(fixed, out.buffer, column, sample)
            if any(f % width for f in at.factors.values()) or at.constant % width:
                raise VaryingError
            stores.append(f"store_pack<{width}>({pointer} + {at}, values);")
        if out.buffer not in self.elements.own:
            number = self.elements.buffer(out.buffer)
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

    def load(self, buffer: str, region: Region) -> str:
        """An input to shared memory."""
        number = self.elements.buffer(buffer)

        def value(scope: Scope, places: Sequence[Index], sample: Index) -> str:
            column = places[0].plus(region.first)
            return self.elements.leaf(scope, f"g{number}(at({sample}))", column)

        width = region.end - region.first
        out = View(buffer, region.first, width)
        mine = self.elements.own
        self.elements.own = self.elements.own | {buffer}  # it is stored to shared memory alone
        try:
            return self._over(out, (width,), value)
        finally:
            self.elements.own = mine

    def _rows(
        self, stage: Stage, axes: Sequence[int]
    ) -> tuple[int, int, list[int], list[int], int]:
        """Of a reduction: rows and elements of one, kept and reduced axes, lanes."""
        shape = stage.operation.operands[0].shape
        kept = [i for i in range(len(shape)) if i not in axes]
        gone = sorted(axes)
        size = size_of([shape[i] for i in gone])
        rows = self._samples * size_of([shape[i] for i in kept])
        return rows, size, kept, gone, lanes_of(rows, size)

    def _row_scope(
        self, stage: Stage, kept: Sequence[int], gone: Sequence[int], rows: int, size: int
    ) -> tuple[Scope, Index, list[Index], Index]:
        """Scope over (r, i), the sample, the places, and the row within the sample."""
        shape = stage.operation.operands[0].shape
        scope = Scope({"r": rows, "i": size})
        sample, row = scope.divided(variable("r"), rows // self._samples)
        places = [Index()] * len(shape)
        for axis, place in zip(kept, scope.split(row, [shape[a] for a in kept]), strict=True):
            places[axis] = place
        for axis, place in zip(
            gone, scope.split(variable("i"), [shape[a] for a in gone]), strict=True
        ):
            places[axis] = place
        return scope, sample, places, row

    def _reader(self, stage: Stage, parts: tuple[Scope, Index, list[Index], Index]) -> str:
        scope, sample, places, _ = parts
        operation = stage.operation
        text = self.elements.element(
            scope, operation.sources[0], operation.operands[0], places, sample
        )
        return f"[&](int r, int i) {{ {' '.join(scope.lines)} return {text}; }}"

    def reduce(self, stage: Stage, op: Reduce) -> str:
        rows, size, kept, gone, lanes = self._rows(stage, op.axes)
        read = self._reader(stage, self._row_scope(stage, kept, gone, rows, size))
        function = {"sum": "Sum", "mean": "Sum", "prod": "Prod", "max": "Max", "min": "Min"}
        scope = Scope({"r": rows})
        sample, row = scope.divided(variable("r"), rows // self._samples)
        value = f"x * {literal(1.0 / size)}" if op.function == "mean" else "x"
        body = self.elements.finished(scope, stage, row, sample, value)
        write = f"[&](int r, float x) {{ {' '.join(scope.lines)} {body} }}"
        return f"reduce<{function[op.function]}, {lanes}, {rows}, {size}>({read},\n    {write});"

    def softmax(self, stage: Stage, op: Softmax) -> str:
        rows, size, kept, gone, lanes = self._rows(stage, op.axes)
        if size > MOST_ROW:
            raise UnsuitableError(f"a softmax over {size} elements")
        read = self._reader(stage, self._row_scope(stage, kept, gone, rows, size))
        write = self._writer(stage, kept, gone, rows, size, "x")
        shape = f"{self.elements.type}, {lanes}, {rows}, {size}"
        return f"softmax<{shape}>({read},\n    {write});"

    def _writer(
        self,
        stage: Stage,
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
                parts.append(self.elements.element(scope, source, operand, behind, sample))
            if parts:
                value = f"{value} * {parts[0]}"
            if len(parts) > 1:
                value = f"{value} + {parts[1]}"
        place = Index()
        for axis, step in enumerate(row_major(shape)):
            place = place.plus(places[axis].times(step))
        body = self.elements.finished(scope, stage, place, sample, value)
        return f"[&](int r, int i, float x) {{ {' '.join(scope.lines)} {body} }}"

    def layer_norm(self, stage: Stage, op: LayerNorm) -> str:
        count = len(stage.operation.operands[0].shape)
        rows, size, kept, gone, lanes = self._rows(stage, range(count - op.axes, count))
        if size > MOST_ROW:
            raise UnsuitableError(f"a norm over {size} elements")
        read = self._reader(stage, self._row_scope(stage, kept, gone, rows, size))
        write = self._writer(stage, kept, gone, rows, size, "x", affine=True)
        eps = literal(op.eps)
        return f"layer_norm<{lanes}, {rows}, {size}>({eps}, {read},\n    {write});"


def lanes_of(rows: int, size: int) -> int:
    """Threads that share a row."""
    lanes = 1
    while lanes < 32 and lanes * 4 < size and (rows * lanes < THREADS or size > lanes * 8):
        lanes *= 2
    return lanes
