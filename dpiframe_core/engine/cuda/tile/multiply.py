"""The code of products."""

from __future__ import annotations

import re
from contextlib import suppress

from dpiframe_core.engine.cuda.tile.elements import Elements
from dpiframe_core.engine.cuda.tile.index import Index, Scope, VaryingError, variable
from dpiframe_core.engine.cuda.tile.loops import Loops
from dpiframe_core.engine.cuda.tile.product import STAGES, Product
from dpiframe_core.engine.cuda.tile.stages import Stage
from dpiframe_core.program.tensor_ops import Map, MatMul
from dpiframe_core.program.views import View

MOST_FIXED = 32  # inner places that lanes hold in registers


class Multiplications:
    """Writes it."""

    def __init__(self, elements: Elements, loops: Loops) -> None:
        self.elements, self._samples, self._loops = elements, elements.samples, loops

    def multiply(self, stage: Stage, op: MatMul) -> str:
        product = Product.of(stage.operation, op, self._samples)
        if min(product.rows, product.columns, product.outer * product.inner) < 8:
            return self._dots(stage, op)
        a = self._product_operand(stage, product, 0)
        if product.constant is not None:
            number = self.elements.packed(product)
            sizes = f"{self.elements.type}, {product.outer}, {product.inner}, {product.columns}"
            b = f"Packed<{sizes}>{{w{number}}}"
        else:
            b = self._product_operand(stage, product, 1)
        write = self._results(stage, product)
        ring = self.elements.memory.rings.get(id(stage))
        row_tiles, column_tiles = product.tiles(
            "load_pair" in a, a.startswith("separable"), ring is not None
        )
        sizes = (
            f"{self.elements.type}, {product.products}, {product.rows}, {product.outer}, "
            f"{product.inner}, {product.columns}, {row_tiles}, {column_tiles}"
        )
        if ring is None:
            return f"multiply<{sizes}>(\n    {a},\n    {b},\n    {write});"
        return (
            f"multiply_staged<{sizes}, {STAGES}>(shared + {ring.offset},\n    {a},\n    {b},\n"
            f"    {write});"
        )

    def _results(self, stage: Stage, product: Product) -> str:
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
            value = self.elements.expression(
                scope, stage.post, scope.split(place, shape), sample, {stage.replaced: "x"}
            )
        column = place.plus(stage.out.start)
        single, double = [], []
        even = True
        if self.elements.memory.holds(stage.out):
            pointer, at = self.elements.address(scope, stage.out.buffer, column, sample)
            even = even and _is_even(at)
            single.append(f"store({pointer} + {at}, value);")
            double.append(f"store_pack<2>({pointer} + {at}, values);")
        if stage.out.buffer not in self.elements.own:
            number = self.elements.buffer(stage.out.buffer)
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

    def _product_operand(self, stage: Stage, product: Product, k: int) -> str:
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
            text = self.elements.element(
                scope, operation.sources[k], operation.operands[k], places, sample
            )
            return scope, text

        scope, text = one()
        single = f"{' '.join(scope.lines)} return {text};"
        two = f"return pair<{self.elements.type}>(one(q, {side}, o, i), one(q, {side}, o, i + 1));"
        simple = text.startswith("load(s_") and text.count("load(") == 1 and text.endswith(")")
        if simple and self.elements.type != "float" and self._pairs(stage, product, k):
            two = f"{' '.join(scope.lines)} return load_pair{text[4:]};"
        factors = self._factors(stage, product, k)
        if factors is not None:
            return factors
        head = f"(int q, int {side}, int o, int i)"
        if self.elements.type == "float":
            two = "return 0u;"
        return (
            f"operand([&]{head} {{ {single} }},\n      "
            f"[&](const auto& one, int q, int {side}, int o, int i) {{ {two} }})"
        )

    def _factors(self, stage: Stage, product: Product, k: int) -> str | None:
        """An operand that is a product of a factor that is the same at every outer place, and one
        that is the same at every inner place: an outer product of fields, as CIN has it.
        """
        operation = stage.operation
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

    def _pairs(self, stage: Stage, product: Product, k: int) -> bool:
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
        if not isinstance(source, View) or source.buffer not in self.elements.memory.regions:
            return False
        if self.elements.memory.regions[source.buffer].element != self.elements.type:
            return False
        column = Index(operand.offset + source.start)
        for place, stride in zip(places, operand.strides, strict=True):
            column = column.plus(place.times(stride))
        _, at = self.elements.address(scope, source.buffer, column, sample)
        even = all(f % 2 == 0 for n, f in at.factors.items() if n != "i")
        return even and at.constant % 2 == 0 and at.factors.get("i") == 1

    def _dots(self, stage: Stage, op: MatMul) -> str:
        """A small product: a few lanes a number."""
        inner = stage.operation.operands[1].shape[op.batch : op.batch + op.inner]
        for width in (8, 4, 2):
            if inner and inner[-1] % width == 0:
                with suppress(VaryingError):
                    return self._dots_by(width, stage, op)
        return self._dots_by(1, stage, op)

    def _dots_by(self, width: int, stage: Stage, op: MatMul) -> str:
        operation = stage.operation
        product = Product.of(operation, op, self._samples)
        size = product.outer * product.inner
        count = self._samples * product.batches * product.rows_a_sample * product.columns
        per_sample = count // self._samples
        a, b = operation.operands
        blocks = list(b.shape[op.batch : op.batch + op.inner])
        if width > 1:
            blocks[-1] //= width

        def scoped() -> tuple[Scope, Index, Index, list[Index]]:
            extents = {"r": count, "i": size // width, "u": width}
            scope = Scope(extents, frozenset({"u"}) if width > 1 else frozenset())
            sample, place = scope.divided(variable("r"), per_sample)
            parts = scope.split(place, (product.batches, product.rows_a_sample, product.columns))
            return scope, sample, place, parts

        scope, sample, _, (batch, row, column) = scoped()
        inner = scope.split(variable("i"), blocks)
        if width > 1:
            inner[-1] = inner[-1].times(width).plus(variable("u"))
        batches = scope.split(batch, a.shape[: op.batch])
        rows = scope.split(row, a.shape[op.batch : op.batch + op.rows])
        columns = scope.split(column, b.shape[op.batch + op.inner :])
        left = self.elements.element(
            scope, operation.sources[0], a, [*batches, *rows, *inner], sample
        )
        right = self.elements.element(
            scope, operation.sources[1], b, [*batches, *inner, *columns], sample
        )
        read = (
            f"[&](int r, int i, float (&x)[{width}]) {{ {' '.join(scope.lines)} "
            f"DPIF_UNROLL for (int u = 0; u < {width}; ++u) x[u] = {left} * {right}; }}"
        )
        scope, sample, place, _ = scoped()
        body = self.elements.finished(scope, stage, place, sample, "x")
        write = f"[&](int r, float x) {{ {' '.join(scope.lines)} {body} }}"
        shape = self._loops.row_arguments(count, size, width)
        return f"reduce<Sum, {shape}>({read},\n    {write});"


def _names(text: str) -> set[str]:
    """The names in a statement."""
    return set(re.findall(r"[A-Za-z_]\w*", text))


def _is_even(index: Index) -> bool:
    """Whether columns c and c + 1, where c is even, lie in one aligned pair."""
    others = all(f % 2 == 0 for n, f in index.factors.items() if n != "c")
    return others and index.constant % 2 == 0 and index.factors.get("c") == 1
