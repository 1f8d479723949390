"""The code of products."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from dpiframe_core.engine.cuda.tile.elements import Elements, literal
from dpiframe_core.engine.cuda.tile.index import Index, Scope, VaryingError, variable
from dpiframe_core.engine.cuda.tile.loops import LEAST_COLUMNS, Loops
from dpiframe_core.engine.cuda.tile.product import (
    READING,
    STAGES,
    Order,
    Product,
    attention_row_tiles,
)
from dpiframe_core.engine.cuda.tile.shared_memory import Matrix
from dpiframe_core.engine.cuda.tile.stages import Stage, Weigh
from dpiframe_core.engine.translation import Operation, Source
from dpiframe_core.program.tensor_ops import Map, MatMul, Operand, Reduce, Take
from dpiframe_core.program.views import View

MOST_FIXED = 32  # inner places that lanes hold in registers


class Multiplications:
    """Writes it."""

    def __init__(self, elements: Elements, loops: Loops) -> None:
        self.elements, self._samples, self._loops = elements, elements.samples, loops
        self.most_sums = 0  # of a thread

    def multiply(self, stage: Stage, sums: Stage | None = None) -> str:
        """A product, of which `sums` sums the rows."""
        op = stage.operation.op
        assert isinstance(op, MatMul)
        product = Product.of(stage.operation, op, self._samples)
        if not product.fills_tiles:
            return self._dots(stage, op)
        a, of_a = self._product_operand(stage.operation, product, 0)
        matrix = self.elements.memory.matrices.get(id(stage))
        element = self.elements.type
        if product.constant is not None:
            order: Order = "lanes"
            if matrix is not None and element != "float":
                order = "blocks"
            elif matrix is not None and of_a == READING["separable"]:
                order, element = "fp16x3", "Fp16x3"
            number = self.elements.packed(product, order)
            sizes = f"{product.outer}, {product.inner}, {product.columns}"
            b = {
                "lanes": f"Packed<{element}, {sizes}>",
                "blocks": f"Blocks<{element}, {sizes}>",
                "fp16x3": f"Fp16x3Blocks<{product.products}, {sizes}>",
            }[order] + f"{{w{number}}}"
            of_b = READING["Packed"]
        else:
            b, of_b = self._product_operand(stage.operation, product, 1)
        write = self._sums(stage, product, sums) if sums else self._results(stage, product)
        is_staged = matrix is not None and not matrix.whole
        row_tiles, column_tiles = product.tiles(of_a, of_b, is_staged, whole_rows=bool(sums))
        tiles = row_tiles * column_tiles
        if matrix is not None and element != "float":
            tiles = min(8, -(-product.columns // 16))  # of a warpgroup
        self.most_sums = max(self.most_sums, 8 * tiles)
        sizes = (
            f"{element}, {product.products}, {product.rows}, {product.outer}, "
            f"{product.inner}, {product.columns}, {row_tiles}, {column_tiles}"
        )
        listed = f"\n    {a},\n    {b},\n    {write});"
        if matrix is None:
            return f"multiply<{sizes}>({listed}"
        if matrix.whole:
            return f"multiply_resident<{sizes}>(shared + {matrix.offset},{listed}"
        return f"multiply_staged<{sizes}, {STAGES}>(shared + {matrix.offset},{listed}"

    def fetch(self, stage: Stage, matrix: Matrix) -> str:
        """Sets the matrix of a product on its way."""
        op = stage.operation.op
        assert isinstance(op, MatMul)
        number = self.elements.packed(Product.of(stage.operation, op, self._samples), "blocks")
        return f"fetch_matrix<{matrix.size}>(shared + {matrix.offset}, w{number});"

    def attend(self, stage: Stage, scored: Stage) -> str:
        """A product with the softmax of another's result."""
        operation = scored.operation
        assert isinstance(operation.op, MatMul)
        assert isinstance(stage.operation.op, MatMul)
        scores = Product.of(operation, operation.op, self._samples)
        product = Product.of(stage.operation, stage.operation.op, self._samples)
        parts = [
            self._product_operand(operation, scores, 0)[0],
            self._product_operand(operation, scores, 1)[0],
            self._scores(scored, scores, stage.weigh),
            self._product_operand(stage.operation, product, 1)[0],
            self._results(stage, product),
        ]
        row_tiles = attention_row_tiles(scores, product)
        columns = -(-scores.columns // 16) + -(-product.columns // 16)
        self.most_sums = max(self.most_sums, 8 * row_tiles * columns)
        sizes = (
            f"{self.elements.type}, Weigh::k{stage.weigh}, {scores.products}, "
            f"{scores.rows}, {scores.inner}, {scores.columns}, {product.columns}, "
            f"{row_tiles}"
        )
        listed = ",\n    ".join(parts)
        return f"attend<{sizes}>(\n    {listed});"

    def _scores(self, stage: Stage, product: Product, weigh: Weigh) -> str:
        """The function that makes scores of sums."""
        scope = Scope({"q": product.products, "r": product.rows, "c": product.columns})
        _, _, value = self._made(stage, product, scope, variable("c"), "x")
        if stage.post is not None and weigh == "Softmax" and not _is_scaling(stage.post):
            value = f"held({value}, {self.elements.type}{{}})"
        before, within = scope.split_lines("c")
        return (
            f"[&](int q, int r) {{ {' '.join(before)} return [=, &p](int c, float x) {{ "
            f"{' '.join(within)} return {value}; }}; }}"
        )

    def _made(
        self, stage: Stage, product: Product, scope: Scope, column: Index, result: str
    ) -> tuple[Index, Index, str]:
        """The sample, the place of a column in the result, and what is made of a sum."""
        sample, batch, row = product.places(scope)
        place = batch.times(product.rows_a_sample * product.columns)
        place = place.plus(row.times(product.columns)).plus(column)
        if stage.post is None:
            return sample, place, result
        places, place = stage.post_places(scope, place)
        value = self.elements.expression(
            scope, stage.post, places, sample, {stage.replaced: result}
        )
        return sample, place, value

    def _results(self, stage: Stage, product: Product) -> str:
        """The functions that store one result of a product, or two of neighbouring columns."""
        scope = Scope({"q": product.products, "r": product.rows, "c": product.columns})
        sample, place, value = self._made(stage, product, scope, variable("c"), "x")
        stores = self.elements.stored(scope, stage.out, place, sample, value, "exists")
        before, within = scope.split_lines("c")
        one = f"[=, &p](int c, float x, bool exists) {{ {' '.join(within)} {stores} }}"
        head = "(int c, float x, float y, bool exists)"
        two = f"[=]{head} {{ one(c, x, exists); one(c + 1, y, exists); }}"
        if product.columns % 2 == 0:
            with suppress(VaryingError):
                two = self._two(stage, product)
        return (
            f"[&](int q, int r) {{ {' '.join(before)}\n      const auto one = {one};\n"
            f"      const auto two = {two};\n      return results(one, two); }}"
        )

    def _two(self, stage: Stage, product: Product) -> str:
        """The function that stores two. VaryingError: they cannot be stored at once."""
        extents = {"q": product.products, "r": product.rows, "h": product.columns // 2, "u": 2}
        scope = Scope(extents, frozenset({"u"}))
        column = variable("h").times(2).plus(variable("u"))
        sample, place, value = self._made(stage, product, scope, column, "made[u]")
        stores = self.elements.stored_pack(scope, stage.out, place, sample, 2, only="exists")
        return (
            "[=, &p](int c, float x, float y, bool exists) { const int h = c >> 1; "
            f"const float made[2] = {{x, y}}; float values[2]; {' '.join(scope.lines)} "
            f"DPIF_UNROLL for (int u = 0; u < 2; ++u) values[u] = {value}; {' '.join(stores)} }}"
        )

    def _sums(self, stage: Stage, product: Product, sums: Stage) -> str:
        """The functions that give what one result of a product adds to its row's sum, or two of
        neighbouring columns, and the one that takes the sum.
        """
        scope = Scope({"q": product.products, "r": product.rows, "c": product.columns})
        added = self._added(stage, product, sums, scope, variable("c"), "x")
        before, within = scope.split_lines("c")
        one = f"[=, &p](int c, float x) {{ {' '.join(within)} return {added}; }}"
        two = "[=](int c, float x, float y) { return one(c, x) + one(c + 1, y); }"
        if product.columns % 2 == 0:
            with suppress(VaryingError):
                two = self._two_added(stage, product, sums)
        scope = Scope({"q": product.products, "r": product.rows})
        sample, batch, row = product.places(scope)
        place = batch.times(product.rows_a_sample).plus(row)
        op, total = sums.operation.op, "x"
        if isinstance(op, Reduce) and op.function == "mean":
            total = f"x * {literal(1 / product.columns)}"
        body = self.elements.finished(scope, sums, place, sample, total)
        take = (
            f"[=, &p](float x, bool exists) {{ {' '.join(scope.lines)} if (exists) {{ {body} }} }}"
        )
        return (
            f"[&](int q, int r) {{ {' '.join(before)}\n      const auto one = {one};\n"
            f"      const auto two = {two};\n      return summed(one, two,\n        {take}); }}"
        )

    def _two_added(self, stage: Stage, product: Product, sums: Stage) -> str:
        """The function of two. VaryingError: what else they are made of cannot be read at once."""
        extents = {"q": product.products, "r": product.rows, "h": product.columns // 2, "u": 2}
        scope = Scope(extents, frozenset({"u"}))
        column = variable("h").times(2).plus(variable("u"))
        added = self._added(stage, product, sums, scope, column, "made[u]")
        return (
            "[=, &p](int c, float x, float y) { const int h = c >> 1; (void)h; "
            f"const float made[2] = {{x, y}}; float total = 0.0f; {' '.join(scope.lines)} "
            f"DPIF_UNROLL for (int u = 0; u < 2; ++u) total += {added}; return total; }}"
        )

    def _added(
        self, stage: Stage, product: Product, sums: Stage, scope: Scope, column: Index, result: str
    ) -> str:
        """What a result adds to its row's sum."""
        sample, place, value = self._made(stage, product, scope, column, result)
        operation = sums.operation
        op = operation.op
        if not isinstance(op, MatMul):
            return value
        a, b = operation.operands
        places = scope.split(place, a.shape)
        along = [*places[: op.batch], *places[op.batch + op.rows :]]
        along += [Index()] * (len(b.shape) - len(along))
        other = self.elements.element(scope, operation.sources[1], b, along, sample)
        return f"{value} * {other}"

    def _product_operand(self, operation: Operation, product: Product, k: int) -> tuple[str, float]:
        """An operand's functions of (product, row or column, outer, inner), and the cycles of
        reading a tile of it.
        """
        factors = self._factors(operation, product, k)
        if factors is not None:
            return factors, READING["separable"]
        side = "r" if k == 0 else "c"
        head = f"(int q, int {side}, int o, int i)"
        stored = self._stored(operation, product, k)
        if stored is not None:
            how, lines, address = stored
            text = f"stored<Lie::k{how}>([&]{head} {{ {lines} return {address}; }})"
            return text, READING[how]
        scope = _operand_scope(product, k)
        places, sample = product.operand_places(scope, k)
        text = self.elements.element(
            scope, operation.sources[k], operation.operands[k], places, sample
        )
        two = f"return pair<{self.elements.type}>(one(q, {side}, o, i), one(q, {side}, o, i + 1));"
        if self.elements.type == "float":
            two = "return 0u;"
        elif product.inner % 2 == 0:
            with suppress(VaryingError):
                two = self._two_read(operation, product, k)
        text = (
            f"operand([&]{head} {{ {' '.join(scope.lines)} return {text}; }},\n      "
            f"[&](const auto& one, int q, int {side}, int o, int i) {{ {two} }})"
        )
        return text, READING["operand"]

    def _two_read(self, operation: Operation, product: Product, k: int) -> str:
        """The body of the function that gives a pair of neighbours of a computed operand, each of
        whose own operands is read once. VaryingError: they do not lie side by side.
        """
        extents = {**_operand_scope(product, k).extents, "h": product.inner // 2, "u": 2}
        scope = Scope({n: size for n, size in extents.items() if n != "i"}, frozenset({"u"}))
        within = variable("h").times(2).plus(variable("u"))
        places, sample = product.operand_places(scope, k, within)
        value = self.elements.element(
            scope, operation.sources[k], operation.operands[k], places, sample
        )
        return (
            f"const int h = i >> 1; (void)h; {' '.join(scope.lines)} float made[2]; "
            f"DPIF_UNROLL for (int u = 0; u < 2; ++u) made[u] = {value}; "
            f"return pair<{self.elements.type}>(made[0], made[1]);"
        )

    def _stored(
        self, operation: Operation, product: Product, k: int
    ) -> tuple[str, str, str] | None:
        """How an operand of 16 bits lies in shared memory, and the statements and the expression
        that give an element's address; None: it is computed, or lies elsewhere.
        """
        memory = self.elements.memory
        scope = _operand_scope(product, k)
        places, sample = product.operand_places(scope, k)
        found = self._where(scope, operation.sources[k], operation.operands[k], places)
        if found is None or found[0] not in memory.regions:
            return None
        buffer, column = found
        region = memory.regions[buffer]
        if region.element != self.elements.type or region.element == "float":
            return None
        pointer, at = self.elements.address(scope, buffer, column, sample)

        def neighbours(name: str, count: int) -> bool:
            """Whether as many along a variable lie side by side, aligned."""
            others = {n: f for n, f in at.factors.items() if n != name}
            alone = all(name not in scope.depends_on(variable(n)) for n in others)
            aligned = all(f % count == 0 for f in (*others.values(), at.constant))
            return at.factors.get(name) == 1 and alone and aligned

        side = "r" if k == 0 else "c"
        how = "Apart"
        if neighbours("i", 8):
            how = "Rows"
        elif neighbours(side, 8) and scope.extents[side] % 8 == 0:
            how = "Columns"
        elif neighbours("i", 2):
            how = "Pairs"
        return how, " ".join(scope.lines), f"{pointer} + {at}"

    def _where(
        self, scope: Scope, source: Source, operand: Operand, places: Sequence[Index]
    ) -> tuple[str, Index] | None:
        """The buffer and the column of an operand's element, of what is picked by a table where it
        is picked from; None: it is a constant, or computed.
        """
        if not isinstance(source, View):
            return None
        first, end = source.start + operand.offset, source.start + operand.end
        column = Index(source.start + operand.offset)
        for place, stride in zip(places, operand.strides, strict=True):
            column = column.plus(place.times(stride))
        made = self.elements.stages.inlined_writer(source.buffer, first, end)
        if made is None:
            return source.buffer, column
        if not isinstance(made.op, Take):
            return None
        local = scope.split(column.plus(-made.out.start), made.op.shape(made.operands))
        picked = self.elements.picked(scope, made.op, local)
        return self._where(scope, made.sources[0], made.operands[0], picked)

    def _factors(self, operation: Operation, product: Product, k: int) -> str | None:
        """An operand that is a product of a factor that is the same at every outer place, and one
        that is the same at every inner place: an outer product of fields, as CIN has it.
        """
        source, operand = operation.sources[k], operation.operands[k]
        if not isinstance(source, View) or k == 1 or not 1 <= product.inner <= MOST_FIXED:
            return None
        made = self.elements.stages.inlined_writer(
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
            if not isinstance(factor, View) or factor.buffer not in self.elements.memory.regions:
                return None
            if self.elements.memory.regions[factor.buffer].element != self.elements.type:
                return None
            begin, stop = factor.start + read.offset, factor.start + read.end
            if self.elements.stages.inlined_writer(factor.buffer, begin, stop) is not None:
                return None
            at = Index(factor.start + read.offset)
            for place, stride in zip(inside, read.strides, strict=True):
                at = at.plus(place.times(stride))
            pointer, at = self.elements.address(scope, factor.buffer, at, sample)
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
        two = self.elements.type != "float"
        return (
            f"separable([&](int q, int r, int i) {{ {before} return load({fixed[0]}); }},\n"
            f"      [&](int q, int r, int i) {{ {before} return "
            + (f"joined({fixed[0]}, {fixed[1]})" if two else "0u")
            + f"; }},\n      [&](int q, int r, int o) {{ {before} return load({scale}); }},\n"
            f"      [&](int q, int r, int o) {{ {before} return "
            + (f"twice({scale})" if two else "0u")
            + "; })"
        )

    def _dots(self, stage: Stage, op: MatMul) -> str:
        """A small product: a few lanes a number."""
        inner = stage.operation.operands[1].shape[op.batch : op.batch + op.inner]
        if self._lies_apart(stage.operation.operands[1], op):
            product = Product.of(stage.operation, op, self._samples)
            rows = self._samples * product.batches * product.rows_a_sample * product.columns
            for width in self._loops.column_widths(rows, stage.operation.operands[1].shape[-1]):
                with suppress(VaryingError):
                    return self._dots_by(width, stage, op, apart=True)
        for width in (8, 4, 2):
            if inner and inner[-1] % width == 0:
                with suppress(VaryingError):
                    return self._dots_by(width, stage, op)
        return self._dots_by(1, stage, op)

    @staticmethod
    def _lies_apart(b: Operand, op: MatMul) -> bool:
        """Whether columns of b lie side by side, and their inner places apart."""
        first = op.batch + op.inner
        return (
            len(b.shape) > first
            and b.strides[-1] == 1
            and b.shape[-1] >= LEAST_COLUMNS
            and 1 not in b.strides[op.batch : first]
        )

    def _dots_by(self, width: int, stage: Stage, op: MatMul, apart: bool = False) -> str:
        """The same, of so many inner places a block, or of so many columns side by side."""
        operation = stage.operation
        product = Product.of(operation, op, self._samples)
        size = product.outer * product.inner
        count = self._samples * product.batches * product.rows_a_sample * product.columns
        per_sample = count // self._samples
        a, b = operation.operands
        blocks, columns = list(b.shape[op.batch : op.batch + op.inner]), product.columns
        if apart:
            columns //= width
            extents = {"r": count // width, "i": size, "u": width}
        else:
            if width > 1:
                blocks[-1] //= width
            extents = {"r": count, "i": size // width, "u": width}
        varying = frozenset({"u"}) if width > 1 else frozenset[str]()
        scope = Scope(extents, varying)
        sample, place = scope.divided(variable("r"), extents["r"] // self._samples)
        sizes = (product.batches, product.rows_a_sample, columns)
        batch, row, column = scope.split(place, sizes)
        inner = scope.split(variable("i"), blocks)
        if width > 1 and apart:
            column = column.times(width).plus(variable("u"))
        elif width > 1:
            inner[-1] = inner[-1].times(width).plus(variable("u"))
        batches = scope.split(batch, a.shape[: op.batch])
        rows = scope.split(row, a.shape[op.batch : op.batch + op.rows])
        others = scope.split(column, b.shape[op.batch + op.inner :])
        left = self.elements.element(
            scope, operation.sources[0], a, [*batches, *rows, *inner], sample
        )
        right = self.elements.element(
            scope, operation.sources[1], b, [*batches, *inner, *others], sample
        )
        read = (
            f"[&](int r, int i, float (&x)[{width}]) {{ {' '.join(scope.lines)} "
            f"DPIF_UNROLL for (int u = 0; u < {width}; ++u) x[u] = {left} * {right}; }}"
        )
        scope = Scope({"r": count}) if apart else Scope(extents, varying)
        sample, place = scope.divided(variable("r"), per_sample)
        body = self.elements.finished(scope, stage, place, sample, "x")
        write = f"[&](int r, float x) {{ {' '.join(scope.lines)} {body} }}"
        if apart:
            shape = self._loops.column_arguments(count, size, width)
            return f"reduce_columns<Sum, {shape}>({read},\n    {write});"
        shape = self._loops.row_arguments(count, size, width)
        return f"reduce<Sum, {shape}>({read},\n    {write});"


def _is_scaling(operation: Operation) -> bool:
    """Whether it is a product with, or a quotient by, a number: no mask."""
    op = operation.op
    assert isinstance(op, Map)
    parts = op.expression
    return isinstance(parts, tuple) and parts[0] in ("mul", "div") and isinstance(parts[2], float)


def _operand_scope(product: Product, k: int) -> Scope:
    """Scope over a product, a row of a or a column of b, and the inner places."""
    side = {"r": product.rows} if k == 0 else {"c": product.columns}
    return Scope({"q": product.products, **side, "o": product.outer, "i": product.inner})


def _names(text: str) -> set[str]:
    """The names in a statement."""
    return set(re.findall(r"[A-Za-z_]\w*", text))
