"""Modules made of values: what the conversion of each operation is written in."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from dpiframe_core.frontend.draft import Draft, Lookup, Table
from dpiframe_core.frontend.values import (
    BATCH,
    Column,
    Columns,
    Dim,
    Factor,
    Fixed,
    Made,
    Samples,
    Scalar,
    Source,
    UnreadableError,
    Value,
    distinct,
    numbers_of,
    of_tensor,
    packed,
    places,
    refined,
    shape_of,
    viewed,
)
from dpiframe_core.frontend.whole_sums import MOST_WHOLE, WholeBits, WholeSums, largest, solid
from dpiframe_core.program.expression import Expression, evaluate, fingerprint, replaced
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
    TensorOp,
    TopK,
    check_elements,
)
from dpiframe_core.program.views import DENSE


class CannotConvertError(Exception):
    """An operation, or a use of one, that has no form: what it is and what to do."""


MIXES = (
    "it mixes the samples of a batch, so a sample's score would depend on its neighbours; export "
    "the model in evaluation mode, without statistics, softmax or products over the batch"
)


@dataclass
class Building:
    """A draft and what is known of the columns that feed it.

    `id_columns`: those that any table is looked up with, each with the rows that its ids can be of;
    `dense_columns`: the others, in the order of the dense features. `seen_starts`: where the ids of
    which columns begin in each table; `renormed`: tables by the weight and the norm that they are
    made with.
    """

    draft: Draft = field(default_factory=Draft)
    id_columns: Mapping[Column, int] = field(default_factory=dict)
    dense_columns: Mapping[Column, int] = field(default_factory=dict)
    seen_ids: dict[Column, int] = field(default_factory=dict)
    seen_dense: dict[Column, None] = field(default_factory=dict)
    seen_starts: dict[str, dict[int, set[Column]]] = field(default_factory=dict)
    renormed: dict[str, Tensor] = field(default_factory=dict)
    any_id: set[Column] = field(default_factory=set)  # looked up only where every id has a row
    remainders: list[Value] = field(default_factory=list)  # sums of which a remainder is taken
    functions: dict[Column, set[Expression]] = field(default_factory=dict)  # that are computed
    _weights: dict[str, Tensor] = field(default_factory=dict)
    _loads: dict[tuple[Scalar, ...], Value] = field(default_factory=dict)
    _sums: WholeSums = field(default_factory=WholeSums)

    # What values are made of.

    def made(self, name: str, dims: Sequence[Dim]) -> Value:
        """A module's output, row-major in these dimensions."""
        return Value(Made(name), packed(dims))

    def computed(
        self, op: TensorOp, values: Sequence[Value], dims: Sequence[Dim],
        operands: Sequence[Operand] | None = None,
    ) -> Value:  # fmt: skip
        """A new module's output; the values are read as their factors lie unless told."""
        ready = [self.ready(v) for v in values]
        read = list(operands) if operands else [v.operand() for v in ready]
        check_elements(op.shape(read))
        return self.made(self.draft.compute(op, ready, read), dims)

    def ready(self, value: Value) -> Value:
        """The value as something that a module can read: its columns looked up or loaded."""
        if isinstance(value.source, Samples):
            raise CannotConvertError("it computes with a sample's place in the batch: " + MIXES)
        return self._looked_up(value) if isinstance(value.source, Columns) else value

    def on_batch(self, value: Value) -> Value:
        """The value as a module's output: a constant is repeated for every sample."""
        ready = self.ready(value)
        if isinstance(ready.source, Made):
            return ready
        expression, values = _finite("x0", [ready])
        return self.computed(Map(expression), values, ready.dims)

    def copied(self, value: Value) -> Value:
        """The value with its elements side by side."""
        if isinstance(value.source, (Columns, Fixed)):
            return picked(value, places(value), value.dims)
        found = self.computed(Join(1), [value], value.dims)
        return replace(found, is_integer=value.is_integer, is_complex=value.is_complex)

    def view(self, value: Value, sizes: Sequence[int]) -> Value:
        """`view` to these sizes, by a copy where the numbers do not lie so."""
        try:
            return viewed(value, sizes)
        except UnreadableError:
            pass
        try:
            return viewed(self.copied(value), sizes)
        except UnreadableError:
            raise CannotConvertError(f"its result of sizes {_sizes(sizes)}: {MIXES}") from None

    def plain(self, value: Value, dim: int) -> tuple[Value, Factor]:
        """The value, copied where dimension `dim` has several factors, and its one factor."""
        if BATCH in value.dims[dim]:
            raise CannotConvertError(MIXES)
        if len(value.dims[dim]) > 1:
            value = self.copied(value)
        (factor,) = value.dims[dim] or (Factor(1, 0),)
        return value, factor

    # Element by element.

    def mapped(self, expression: Expression, values: Sequence[Value]) -> Value:
        """An expression of x0, x1, ... over values that broadcast as PyTorch's do."""
        found = self._of_samples(expression, values)
        if found is None:
            found = self.as_columns(expression, values)
        if found is None:
            found = self._remainder(expression, values)
        if found is not None:
            return found
        aligned = self.aligned([self.ready(v) for v in values])
        if all(isinstance(v.source, Fixed) for v in aligned):
            given = [numbers_of(v).double() for v in aligned]
            numbers = evaluate(expression, given).expand_as(given[0])
            return Value(Fixed(numbers.contiguous()), packed(aligned[0].dims))
        asked = expression
        expression, aligned = _finite(expression, aligned)
        # Modules read what others make first, constants last.
        order = sorted(range(len(aligned)), key=lambda i: isinstance(aligned[i].source, Fixed))
        names: dict[str, Expression] = {f"x{i}": f"x{order.index(i)}" for i in order}
        expression = replaced(expression, lambda name: names[name])
        sorted_values = [aligned[i] for i in order]
        made = self.computed(Map(expression), sorted_values, aligned[0].dims)
        self._sums.note(asked, values, made)
        return made

    def _of_samples(self, expression: Expression, values: Sequence[Value]) -> Value | None:
        """A sample's place in the batch times a number, or and a place of its own: of samples [B]
        of N rows, i * N + place is a row of all B * N. None where it is none, or something else.
        """
        if not values or not isinstance(values[0].source, Samples):
            is_second = len(values) == 2 and isinstance(values[1].source, Samples)
            if is_second and expression in (("add", "x0", "x1"), ("mul", "x0", "x1")):
                return self._of_samples(expression, values[::-1])
            return None
        if expression == "x0":
            return values[0]
        samples, others = values[0].source, values[1:]
        if samples.only is not None:
            return None
        if not isinstance(expression, tuple) or len(expression) != 3 or expression[1] != "x0":
            return None
        name, _, by = expression
        other = of_tensor(torch.tensor(by)) if isinstance(by, float) else None
        if by == "x1" and len(others) == 1 and not isinstance(others[0].source, Samples):
            other = others[0] if others[0].is_integer else None
        if other is None or name not in ("mul", "add", "sub"):
            return None
        if name == "mul":
            times = numbers_of(other) if isinstance(other.source, Fixed) else torch.zeros(0)
            if times.numel() != 1 or times.item() < 1 or times.item() % 1:
                return None
            added = samples.added and self.mapped(("mul", "x0", float(times)), [samples.added])
            return replace(values[0], source=Samples(samples.step * int(times), added))
        places, other = self.aligned([values[0], other])
        if samples.added is not None:
            other = self.mapped((name, "x0", "x1"), [samples.added, other])
        elif name == "sub":
            other = self.mapped(("neg", "x0"), [other])
        return replace(places, source=Samples(samples.step, replace(other, is_integer=True)))

    def _remainder(self, expression: Expression, values: Sequence[Value]) -> Value | None:
        """The remainder of a sum of whole numbers that float32 might round, of the remainders of
        its parts; None where it is none.
        """
        if len(values) > 1 and isinstance(values[1].source, Fixed):
            numbers = values[1].source.numbers
            if numbers.numel() == 1 and expression == ("mod", "x0", "x1"):
                expression, values = ("mod", "x0", float(numbers)), values[:1]
        if not isinstance(expression, tuple) or expression[:2] != ("mod", "x0"):
            return None
        if (joined := self._sums.parts_of(values[0])) is not None:
            made = [self._remainder(expression, [part]) for part in joined.parts]
            if not any(made):
                return None
            parts = [
                replace(one or self.mapped(expression, [part]), is_integer=True)
                for one, part in zip(made, joined.parts, strict=True)
            ]
            return self.joined(parts, joined.dim)
        if (bits := self._sums.bits_of(values[0])) is not None:
            return self._remainder_of_bits(bits, expression[2], values[0])
        by, known = expression[2], self._sums.of(values[0])
        if known is None or not isinstance(by, float) or by <= 0 or not by.is_integer():
            return None
        self.remainders.append(values[0])
        if not self.columns_of(values[0]) <= self.id_columns.keys():
            return None
        of_parts = largest(known.expression, [by] * len(known.values))
        of_all = self.largest_of(values[0], self.id_columns)
        if of_all < MOST_WHOLE or of_parts is None or of_parts >= MOST_WHOLE:
            return None
        parts = [
            replace(self.mapped(expression, [value]), is_integer=True) for value in known.values
        ]
        return _seen_as(self.mapped(expression, [self.mapped(known.expression, parts)]), values[0])

    def _remainder_of_bits(self, bits: WholeBits, by: Expression, value: Value) -> Value | None:
        """The last bits of whole numbers are made of theirs; None where float32 rounds none."""
        size = math.log2(by) if isinstance(by, float) and by > 1 else 0.5
        if not size.is_integer():
            return None
        self.remainders += bits.values
        # Numbers that are dense are below 2^24, and so are their last bits exact.
        ids = [v for v in bits.values if self.columns_of(v) <= self.id_columns.keys()]
        if all(self.largest_of(v, self.id_columns) < MOST_WHOLE for v in ids):
            return None
        last = [replace(self.mapped(("mod", "x0", by), [v]), is_integer=True) for v in bits.values]
        return _seen_as(self.mapped(bits.of(int(size)), last), value)

    def note_bits(self, of: Callable[[int], Expression], bits: int, values: Sequence[Value],
                  made: Value) -> None:  # fmt: skip
        """An operation on the bits of whole numbers."""
        self._sums.note_bits(made, WholeBits(of, bits, tuple(values), made))

    def columns_of(self, value: Value) -> set[Column]:
        """The columns that a sum of whole numbers is made of."""
        if isinstance(value.source, Columns):
            return {scalar.column for scalar in value.source.scalars}
        found = self._sums.of(value)
        return set().union(*map(self.columns_of, found.values)) if found else set()

    def largest_of(self, value: Value, ids: Mapping[Column, int]) -> float:
        """The largest that a sum of whole numbers may be, of so many ids in its columns; what is
        computed otherwise counts as 0 unless it was made bit by bit.
        """
        if isinstance(value.source, Fixed):
            return float(value.source.numbers.abs().max())
        if isinstance(value.source, Columns):
            found = _of_all_ids(value.source.scalars, ids)
            return max(float(numbers.abs().max()) for numbers in _different(found))
        known = self._sums.of(value)
        if known is None:
            bits = self._sums.bits_of(value)
            return 2.0**bits.bits if bits else 0.0
        return largest(known.expression, [self.largest_of(v, ids) for v in known.values]) or 0.0

    def aligned(self, values: Sequence[Value]) -> list[Value]:
        """The values broadcast to one shape, with factors of the same sizes."""
        rank = max(len(v.dims) for v in values)
        padded = [v.with_dims([()] * (rank - len(v.dims)) + [*v.dims]) for v in values]
        try:
            return self._refined(padded)
        except UnreadableError:
            copies = [self.copied(v) for v in _loosened(padded)]
        try:
            return self._refined(copies)
        except UnreadableError:
            shapes = ", ".join(str(_sizes(v.sizes)) for v in values)
            raise CannotConvertError(f"operands of sizes {shapes}: {MIXES}") from None

    def _refined(self, values: Sequence[Value]) -> list[Value]:
        by_dim = [refined(dims) for dims in zip(*(v.dims for v in values), strict=True)]
        return [replace(v, dims=tuple(dims[i] for dims in by_dim)) for i, v in enumerate(values)]

    def as_columns(self, expression: Expression, values: Sequence[Value]) -> Value | None:
        """The result where every element is a function of one column's whole number; or None."""
        if not any(isinstance(v.source, Columns) for v in values):
            return None
        for v in values:
            if isinstance(v.source, (Made, Samples)):
                return None
            if isinstance(v.source, Columns) and not v.is_integer:
                return None
        try:
            aligned = self.aligned(values)
        except CannotConvertError:
            return None
        parts: list[list[Expression]] = []
        owners: list[list[Column | None]] = []
        for v in aligned:
            at = places(v)
            if isinstance(v.source, Columns):
                parts.append([v.source.scalars[i].expression for i in at])
                owners.append([v.source.scalars[i].column for i in at])
            else:
                assert isinstance(v.source, Fixed)
                numbers = v.source.numbers.reshape(-1).double()
                parts.append([float(numbers[i]) for i in at])
                owners.append([None] * len(at))
        found = []
        for pieces, columns in zip(
            zip(*parts, strict=True), zip(*owners, strict=True), strict=True
        ):
            column = {c for c in columns if c is not None}
            if len(column) != 1:
                return None
            chosen = {f"x{i}": piece for i, piece in enumerate(pieces)}
            found.append(Scalar(column.pop(), replaced(expression, chosen.__getitem__)))
        return Value(Columns(tuple(found)), packed(aligned[0].dims), is_integer=True)

    # Columns become numbers.

    def _looked_up(self, value: Value) -> Value:
        """Columns as numbers that modules can read."""
        assert isinstance(value.source, Columns)
        at, dims = distinct(value)
        scalars = [value.source.scalars[i] for i in at]
        unique = list(dict.fromkeys(scalars))
        loaded = self._loaded(unique)
        if len(unique) < len(scalars):
            where = {scalar: i for i, scalar in enumerate(unique)}
            index = tuple(where[scalar] for scalar in scalars)
            read = Operand((len(unique),), (1,), loaded.offset)
            loaded = self.computed(Take(index), [loaded], [(Factor(len(index), 1),)], [read])
        return replace(value, source=loaded.source, dims=dims, offset=loaded.offset)

    def _loaded(self, scalars: list[Scalar]) -> Value:
        """Numbers [n] of different scalars, in their order, side by side."""
        if (key := tuple(scalars)) not in self._loads:
            self._loads[key] = self._new_load(scalars)
        return self._loads[key]

    def _new_load(self, scalars: list[Scalar]) -> Value:
        self.note_functions(scalars)
        runs: list[tuple[str, list[Scalar]]] = []
        for scalar in scalars:
            kind = "ids" if scalar.column in self.id_columns else "dense"
            if not runs or runs[-1][0] != kind:
                runs.append((kind, []))
            runs[-1][1].append(scalar)
        parts = [self._ids_as_numbers(s) if k == "ids" else self._dense(s) for k, s in runs]
        if len(parts) == 1:
            return parts[0]
        return self.computed(Join(1), parts, [(Factor(len(scalars), 1),)])

    def _ids_as_numbers(self, scalars: list[Scalar]) -> Value:
        """Functions of ids, looked up in tables of one number a row."""
        found = _of_all_ids(scalars, self.id_columns)
        different = _different(found)
        kinds = [n for n in _NOT_FINITE if any(bool(_is(each, n).any()) for each in different)]
        if not kinds:
            return self._rows_of_ids(scalars, found, "")
        # No table may hold what is not finite: it says where that is.
        parts = [self._rows_of_ids(scalars, [f.nan_to_num(0.0, 0.0, 0.0) for f in found], "kept")]
        parts += [
            self._rows_of_ids(scalars, [_is(f, n).double() for f in found], f"{n}") for n in kinds
        ]
        expression: Expression = "x0"
        for i, number in enumerate(kinds, 1):
            expression = ("where", f"x{i}", number, expression)
        return self.mapped(expression, parts)

    def _rows_of_ids(self, scalars: list[Scalar], numbers: list[Tensor], kind: str) -> Value:
        """Numbers of each column's ids, looked up. Integers that 16 bits would round are looked up
        digit by digit: from them come rows of other tables, where a near one is a wrong one.
        """
        count = max(map(_digits, _different(numbers)))
        keys = []
        for scalar, found in zip(scalars, numbers, strict=True):
            key = f"{fingerprint(scalar.expression)}/{len(found)}{kind}"
            if count > 1:
                key += f"*{count}"
            if key not in self.draft.tables:
                self.draft.tables[key] = Table(_in_digits(found, count))
            keys.append(key)
        looked_up = self.lookup([s.column for s in scalars], keys, count)
        if count == 1:
            return looked_up
        places, _ = looked_up.dims
        digits = [
            replace(looked_up, dims=(places,), offset=looked_up.offset + i) for i in range(count)
        ]
        expression: Expression = f"x{count - 1}"
        for i in reversed(range(count - 1)):
            expression = ("add", ("mul", expression, float(DIGIT)), f"x{i}")
        return self.mapped(expression, digits)

    def kept(self, weight: Tensor) -> str:
        """What tells the weight from all others of this building."""
        key = f"{weight.data_ptr()}{list(weight.shape)}"
        self._weights.setdefault(key, weight)
        return key

    def note_functions(self, scalars: Iterable[Scalar]) -> None:
        """What is computed of columns, or looked up with them."""
        for scalar in scalars:
            self.functions.setdefault(scalar.column, set()).add(scalar.expression)

    def limit_ids(self, column: Column, rows: int, any_id: bool = False) -> None:
        """A table is looked up with the column: its ids are below `rows`. With `any_id` every id
        has a row, and `rows` is what is assumed where no other table says.
        """
        old = self.seen_ids.get(column)
        if any_id and old is not None:
            if column in self.any_id:
                self.seen_ids[column] = max(old, rows)
            return
        self.seen_ids[column] = rows if old is None or column in self.any_id else min(old, rows)
        (self.any_id.add if any_id else self.any_id.discard)(column)

    def lookup(self, columns: list[Column], tables: list[str], dim: int) -> Value:
        """Rows of tables [n, dim] side by side. Of wider rows than a lookup takes, such as matrices
        that ids pick, each is several, from tables of some columns each.
        """
        name = self.draft.name("embedding")
        entries = [e for e in zip(columns, tables, strict=True) for e in self._parts(*e)]
        self.draft.modules.append(Lookup(name, [c for c, _ in entries], [t for _, t in entries]))
        return self.made(name, [(Factor(len(columns), dim),), (Factor(dim, 1),)])

    def _parts(self, column: Column, table: str) -> list[tuple[Column, str]]:
        weight = self.draft.tables[table].weight
        width = weight.shape[1]
        if width <= MOST_DIM:
            return [(column, table)]
        found = []
        for start in range(0, width, MOST_DIM):
            key = f"{table}:{start}"
            part = weight[:, start : start + MOST_DIM]
            self.draft.tables.setdefault(key, Table(part.contiguous()))
            found.append((column, key))
        return found

    def _dense(self, scalars: list[Scalar]) -> Value:
        """Dense features, and functions of them."""
        for scalar in scalars:
            self.seen_dense[scalar.column] = None
        index = [self.dense_columns.get(s.column, 0) for s in scalars]
        n = len(scalars)
        dims: list[Dim] = [(Factor(n, 1),)]
        if index == list(range(index[0], index[0] + n)):
            found = Value(Made(DENSE), tuple(dims), index[0])
        else:
            whole = Operand.whole(max(index) + 1)
            found = self.computed(
                Take(tuple(index)),
                [Value(Made(DENSE), ((Factor(max(index) + 1, 1),),))],
                dims,
                [whole],
            )
        if all(s.expression == "x0" for s in scalars):
            return found
        return self._functions(found, [s.expression for s in scalars])

    def _functions(self, value: Value, expressions: list[Expression]) -> Value:
        """Element i by expression i: alike but for their numbers, they are one map."""
        shapes = [_with_slots(e) for e in expressions]
        if all(shape == shapes[0][0] for shape, _ in shapes):
            slots = torch.tensor([numbers for _, numbers in shapes], dtype=torch.float64)
            constants = [of_tensor(slots[:, i]) for i in range(slots.shape[1])]
            return self.mapped(shapes[0][0], [value, *constants])
        parts = []
        for i, expression in enumerate(expressions):
            one = replace(value, dims=((),), offset=value.offset + i)
            parts.append(self.mapped(expression, [one]))
        return self.computed(Join(1), parts, value.dims)

    # Reductions and products.

    def axes_of(self, value: Value, dims: Sequence[int]) -> tuple[int, ...]:
        """The axes of the operand that make up these dimensions."""
        axes: list[int] = []
        axis = 0
        for i, dim in enumerate(value.dims):
            if i in dims and BATCH in dim:
                raise CannotConvertError(MIXES)
            count = sum(f is not BATCH for f in dim)
            if i in dims:
                axes += range(axis, axis + count)
            axis += count
        return tuple(axes)

    def reduced(self, value: Value, function: str, dims: Sequence[int], keep: bool) -> Value:
        """A reduction over dimensions."""
        value = self.ready(value)
        axes = self.axes_of(value, dims)
        kept = [() if i in dims else dim for i, dim in enumerate(value.dims)]
        out = kept if keep else [dim for i, dim in enumerate(value.dims) if i not in dims]
        if not axes:  # over one place
            return replace(value, dims=tuple(out))
        found = self.computed(Reduce(function, axes), [value], kept)  # type: ignore[arg-type]
        return found if keep else found.with_dims(
            [dim for i, dim in enumerate(found.dims) if i not in dims])  # fmt: skip

    def softmax(self, value: Value, dim: int, guarded: bool = False) -> Value:
        """Softmax over a dimension; `guarded`: 0 where all of it is -infinity."""
        value = self.ready(value)
        axes = self.axes_of(value, [dim])
        if not axes:
            one: Expression = ("exp", ("sub", "x0", "x0"))
            if guarded:
                one = ("where", ("eq", "x0", -math.inf), 0.0, one)
            return self.mapped(one, [value])
        return self.computed(Softmax(axes, guarded), [value], value.dims)

    def layer_norm(self, value: Value, rank: int, affine: list[Tensor], eps: float) -> Value:
        """Layer norm over the last `rank` dimensions."""
        value = self.ready(value)
        axes = self.axes_of(value, range(len(value.dims) - rank, len(value.dims)))
        if not axes:
            raise CannotConvertError("a norm over one number")
        shape = tuple(value.operand().shape[-len(axes) :])
        parts = [of_tensor(part.reshape(-1)) for part in affine]
        operands = [value.operand(), *(Operand.whole(*shape) for _ in parts)]
        return self.computed(LayerNorm(len(axes), eps), [value, *parts], value.dims, operands)

    def product(self, a: Value, b: Value) -> Value:
        """a [T, M, K] times b [T, K, N]: one of them may be a constant."""
        if not (isinstance(a.source, Fixed) or isinstance(b.source, Fixed)) or isinstance(
            b.source, Fixed
        ):
            return self._product(a, b)
        swapped = self._product(transposed(b), transposed(a))
        return transposed(swapped)

    def _product(self, a: Value, b: Value) -> Value:
        a, b = self.ready(a), self.ready(b)
        try:
            inner = refined([a.dims[2], b.dims[1]])
            batch = refined([a.dims[0], b.dims[0]])
        except UnreadableError:
            a, b = self.copied(a), self.copied(b)
            try:
                inner = refined([a.dims[2], b.dims[1]])
                batch = refined([a.dims[0], b.dims[0]])
            except UnreadableError:
                raise CannotConvertError(MIXES) from None
        if BATCH in inner[0] or BATCH in inner[1]:
            raise CannotConvertError(MIXES)
        ours = BATCH in (*a.dims[0], *a.dims[1])
        theirs = BATCH in (*b.dims[0], *b.dims[2])
        if (ours and theirs and not (BATCH in a.dims[0] and BATCH in b.dims[0])) or (
            BATCH in b.dims[2]
        ):
            raise CannotConvertError(MIXES)
        t = batch[0] if BATCH in batch[0] or BATCH not in batch[1] else batch[1]
        read = [
            replace(a, dims=(batch[0], a.dims[1], inner[0])).operand(),
            replace(b, dims=(batch[1], inner[1], b.dims[2])).operand(),
        ]
        n_batch, rows, n_inner = (
            sum(f is not BATCH for f in dim) for dim in (batch[0], a.dims[1], inner[0])
        )
        return self.computed(
            MatMul(n_batch, rows, n_inner), [a, b], [t, a.dims[1], b.dims[2]], read
        )

    # Joining and picking.

    def joined(self, values: Sequence[Value], dim: int) -> Value:
        """The values side by side along a dimension."""
        if len(values) == 1:
            return values[0]
        if any(BATCH in v.dims[dim] for v in values):
            return self._stacked_batches(values, dim)
        if all(isinstance(v.source, Columns) for v in values):
            return self._joined_columns(values, dim)
        parts = [self.on_batch(v) for v in values]
        rest = [replace(v, dims=(*v.dims[:dim], (), *v.dims[dim + 1 :])) for v in parts]
        aligned = self.aligned(rest)
        shown = aligned[0].dims
        outer = math.prod(f.size for d in shown[:dim] for f in d if f is not BATCH)
        total = sum(math.prod(f.size for f in v.dims[dim]) for v in parts)
        read = [
            replace(a, dims=(*a.dims[:dim], v.dims[dim], *a.dims[dim + 1 :])).operand()
            for a, v in zip(aligned, parts, strict=True)
        ]
        dims = [*shown[:dim], (Factor(total, 1),) if total > 1 else (), *shown[dim + 1 :]]
        found = self.computed(Join(outer), parts, dims, read)
        self._sums.note_join(values, dim, found)
        return replace(
            found, is_integer=all(v.is_integer for v in values), is_complex=values[0].is_complex
        )

    def _joined_columns(self, values: Sequence[Value], dim: int) -> Value:
        """Columns stay columns."""
        scalars: list[Scalar] = []
        parts = []
        for v in values:
            assert isinstance(v.source, Columns)
            parts.append(places(v).reshape(shape_of(v)) + len(scalars))
            scalars += v.source.scalars
        at = np.concatenate(parts, axis=dim)
        dims = [(Factor(at.shape[i], 1),) if i == dim else d for i, d in enumerate(values[0].dims)]
        both = Value(Columns(tuple(scalars)), (), is_integer=all(v.is_integer for v in values))
        return picked(both, at.reshape(-1), dims)

    def _stacked_batches(self, values: Sequence[Value], dim: int) -> Value:
        """Batches one behind the other: a new factor outside the batch."""
        if any(v.dims[dim] != (BATCH,) for v in values):
            raise CannotConvertError(MIXES)
        raised = [v.with_dims([*v.dims[:dim], (), *v.dims[dim:]]) for v in values]
        found = self.joined(raised, dim)
        dims = found.dims
        return replace(found, dims=(*dims[:dim], (*dims[dim], BATCH), *dims[dim + 2 :]))

    def sliced(self, value: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
        """Places start, start + step, ... below stop of a dimension."""
        length = value.sizes[dim]
        if (start, stop, step) == (0, length, 1):
            return value
        if BATCH in value.dims[dim]:
            factors = value.dims[dim]
            if factors[0] is BATCH or step != 1 or start % BATCH_PLACES or stop % BATCH_PLACES:
                raise CannotConvertError("it picks samples by their place in the batch: " + MIXES)
            inner = replace(value, dims=(*value.dims[:dim], factors[:1], factors[1:],
                                         *value.dims[dim + 1 :]))  # fmt: skip
            cut = self.sliced(inner, dim, start // BATCH_PLACES, stop // BATCH_PLACES)
            both = (*cut.dims[dim], *cut.dims[dim + 1])
            return replace(cut, dims=(*cut.dims[:dim], both, *cut.dims[dim + 2 :]))
        value, factor = self.plain(value, dim)
        count = len(range(start, stop, step))
        if count < 1:
            raise CannotConvertError("a slice of no places")
        cut_dim = (Factor(count, factor.stride * step),)
        dims = [*value.dims[:dim], cut_dim, *value.dims[dim + 1 :]]
        return value.with_dims(dims, offset=value.offset + start * factor.stride)

    def taken(self, value: Value, dim: int, index: Sequence[int]) -> Value:
        """The places `index` of a dimension, in that order."""
        steps = set(np.diff(index).tolist()) if len(index) > 1 else {1}
        if len(steps) == 1 and (step := steps.pop()) > 0:
            return self.sliced(value, dim, index[0], index[-1] + 1, step)
        if BATCH in value.dims[dim]:
            raise CannotConvertError("it picks samples by their place in the batch: " + MIXES)
        if isinstance(value.source, (Columns, Fixed)):
            at = np.take(places(value).reshape(shape_of(value)), index, axis=dim)
            rows = (Factor(len(index), 1),) if len(index) > 1 else ()
            dims = [*value.dims[:dim], rows, *value.dims[dim + 1 :]]
            return picked(value, at.reshape(-1), dims)
        value, factor = self.plain(self.on_batch(value), dim)
        before, after = value.dims[:dim], value.dims[dim + 1 :]
        behind = sum(f is not BATCH for rest in after for f in rest)
        read = replace(value, dims=(*before, (factor,), *after)).operand()
        dims = [*before, (Factor(len(index), 1),), *after]
        found = self.computed(Take(tuple(index), behind), [value], dims, [read])
        return replace(found, is_integer=value.is_integer, is_complex=value.is_complex)

    def moved(self, value: Value, dim: int, to: int) -> Value:
        """Dimension `dim` at the place `to`."""
        dims = list(value.dims)
        dims.insert(to, dims.pop(dim))
        return replace(value, dims=tuple(dims))

    def top(self, value: Value, k: int, dim: int, largest: bool) -> tuple[Value, Value]:
        """The k largest or smallest of a dimension in order, and their places."""
        value, factor = self.plain(self.ready(value), dim)
        last = self.moved(value, dim, len(value.dims) - 1)
        read = replace(last, dims=(*last.dims[:-1], (factor,))).operand()
        dims = [*last.dims[:-1], (Factor(k, 1),)]
        made = [
            self.computed(TopK(k, largest, places), [last], dims, [read])
            for places in (False, True)
        ]
        values, order = (self.moved(m, len(dims) - 1, dim) for m in made)
        return values, replace(order, is_integer=True)

    def taken_along(self, value: Value, dim: int, index: Value) -> Value:
        """value[..., index[..., i], ...] along a dimension."""
        value, factor = self.plain(self.on_batch(value), dim)
        index, other = self.plain(self.on_batch(index), dim)
        rest = self.aligned([_without(value, dim), _without(index, dim)])
        shown = [d for i, d in enumerate(rest[0].dims) if i != dim]
        read = [
            replace(v, dims=(*(d for i, d in enumerate(v.dims) if i != dim), (f,))).operand()
            for v, f in zip(rest, (factor, other), strict=True)
        ]
        dims = [*shown, (Factor(other.size, 1),)]
        found = self.computed(TakeAlong(), [value, index], dims, read)
        return self.moved(found, len(dims) - 1, dim)


BATCH_PLACES = BATCH.size
MOST_DIM = 4096  # columns of an embedding row

_NOT_FINITE = (math.inf, -math.inf, math.nan)


def _is(numbers: Tensor, number: float) -> Tensor:
    """Where they are this number, which is not finite."""
    return numbers.isnan() if math.isnan(number) else numbers == number


def picked(value: Value, at: np.ndarray, dims: Sequence[Dim]) -> Value:
    """The elements of columns or a constant at these places, side by side in these dimensions."""
    source: Source
    if isinstance(value.source, Columns):
        source = Columns(tuple(value.source.scalars[i] for i in at))
    else:
        assert isinstance(value.source, Fixed)
        source = Fixed(value.source.numbers.reshape(-1)[torch.from_numpy(at)])
    return replace(value, source=source, dims=packed(dims), offset=0)


def _finite(expression: Expression, values: Sequence[Value]) -> tuple[Expression, list[Value]]:
    """Numbers of constants that are not finite, which no weight may be, in the expression."""
    chosen: dict[str, Expression] = {}
    kept: list[Value] = []

    def keep(value: Value) -> Expression:
        kept.append(value)
        return f"x{len(kept) - 1}"

    for i, value in enumerate(values):
        numbers = value.source.numbers if isinstance(value.source, Fixed) else torch.zeros(1)
        if bool(numbers.isfinite().all()):
            chosen[f"x{i}"] = keep(value)
        elif numbers.numel() == 1 and len(values) > 1:
            chosen[f"x{i}"] = float(numbers)
        else:
            part = keep(replace(value, source=Fixed(numbers.nan_to_num(0.0, 0.0, 0.0))))
            for number, at in (
                (math.inf, numbers == math.inf), (-math.inf, numbers == -math.inf),
                (math.nan, numbers.isnan()),
            ):  # fmt: skip
                if bool(at.any()):
                    part = ("where", keep(replace(value, source=Fixed(at.double()))), number, part)
            chosen[f"x{i}"] = part
    return replaced(expression, lambda name: chosen[name]), kept


MOST_EXACT = 2.0**53
MOST_INTEGER = 2.0**62
DIGIT = 256  # integers up to it are exact in 16 bits of either kind


def _digits(numbers: Tensor) -> int:
    """The digits that hold these numbers; 1 where not all are integers."""
    if not bool((numbers == numbers.round()).all()):
        return 1
    count, largest = 1, float(numbers.abs().max()) if len(numbers) else 0.0
    while largest > DIGIT and largest >= float(DIGIT) ** count:
        count += 1
    return count


def _in_digits(numbers: Tensor, count: int) -> Tensor:
    """[n, count], the lowest first, with the number's sign; with one the numbers themselves."""
    left, found = numbers.abs(), []
    for _ in range(count - 1):
        found.append(left % DIGIT)
        left = torch.div(left, DIGIT, rounding_mode="floor")
    return torch.stack([*found, left], 1) * torch.where(numbers < 0, -1.0, 1.0).unsqueeze(1)


MOST_KEPT = 2**20  # numbers of a function of ids that may be asked for again


def of_ids(expression: Expression, ids: int | Tensor) -> Tensor:
    """The expression of ids 0 .. n - 1, or of those given, in float64."""
    if isinstance(ids, int):
        return (_kept if ids <= MOST_KEPT else _evaluated)(expression, ids)
    return _of_numbers(expression, ids.double())


def _evaluated(expression: Expression, ids: int) -> Tensor:
    return _of_numbers(expression, torch.arange(ids).double())


_kept = functools.lru_cache(maxsize=32)(_evaluated)


def _of_numbers(expression: Expression, given: Tensor) -> Tensor:
    uses = _uses(expression)
    shared: dict[int, Tensor] = {}  # what several parts are made of is computed once

    def of(part: Expression) -> Tensor:
        if isinstance(part, str):
            return given
        if isinstance(part, float):
            return torch.tensor(part, dtype=torch.float64)
        if id(part) in shared:
            return shared[id(part)]
        name, rest = part[0], part[1:]
        if name == "floor" and isinstance(rest[0], tuple) and rest[0][0] == "div":
            name, rest = "floor_divide", rest[0][1:]
        found = _computed(name, [of(p) for p in rest])
        if uses[id(part)] > 1:
            shared[id(part)] = found
        return found

    found = of(expression)
    if found.dtype == torch.int64:
        raise CannotConvertError("ids become numbers above 2^53; make that feature ahead of it")
    return found.expand_as(given).contiguous()


def _computed(name: str, parts: list[Tensor]) -> Tensor:
    """A function of numbers, in float64; in 64-bit integers where they are above 2^53, as the
    products of a hash are before their remainder is taken.
    """
    about = _in_float64(name, [p.double() for p in parts])
    largest = float(about.abs().nan_to_num(0.0, 0.0, 0.0).max()) if about.numel() else 0.0
    if largest <= MOST_EXACT and not any(p.dtype == torch.int64 for p in parts):
        return about
    exact = _OF_INTEGERS.get(name)
    if exact is None or largest >= MOST_INTEGER or any(bool((p % 1 != 0).any()) for p in parts):
        raise CannotConvertError(
            f"ids become numbers above 2^53 on their way ({name}), where a computer rounds; "
            "make that feature before the model"
        )
    found = exact(*(p.long() for p in parts))
    return found if bool((found.abs() > MOST_EXACT).any()) else found.double()


def _in_float64(name: str, parts: list[Tensor]) -> Tensor:
    if name == "floor_divide":
        return torch.floor(parts[0] / parts[1])
    return evaluate((name, *(f"x{i}" for i in range(len(parts)))), parts)


_OF_INTEGERS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "mod": torch.remainder,
    "floor_divide": torch.floor_divide,
}  # fmt: skip


def _uses(expression: Expression) -> Counter[int]:
    """How many parts of an expression use each of its parts, which are told by their identity."""
    found: Counter[int] = Counter()
    todo = [expression]
    while todo:
        part = todo.pop()
        if isinstance(part, tuple):
            found[id(part)] += 1
            if found[id(part)] == 1:
                todo += part[1:]
    return found


def _of_all_ids(scalars: Sequence[Scalar], ids: Mapping[Column, int]) -> list[Tensor]:
    """Each function of all ids that its column has; one tensor for the same of several columns."""
    wanted = [(scalar.expression, ids[scalar.column]) for scalar in scalars]
    made = {key: of_ids(*key) for key in dict.fromkeys(wanted)}
    return [made[key] for key in wanted]


def _different(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors, each once."""
    return list({id(tensor): tensor for tensor in tensors}.values())


def transposed(value: Value) -> Value:
    """The last two dimensions exchanged."""
    *rest, a, b = value.dims
    return replace(value, dims=(*rest, b, a))


def _without(value: Value, dim: int) -> Value:
    return replace(value, dims=(*value.dims[:dim], (), *value.dims[dim + 1 :]))


def _loosened(values: Sequence[Value]) -> list[Value]:
    """The values, dimensions along which a constant is everywhere the same as one place, where
    others say in which order the batch and parts of it lie.
    """
    others = [v for v in values if not isinstance(v.source, Fixed)]
    found = []
    for v in values:
        if not isinstance(v.source, Fixed):
            found.append(v)
            continue
        is_one = bool((v.source.numbers == v.source.numbers.reshape(-1)[v.offset]).all())
        told = [any(other.dims[i] for other in others) for i in range(len(v.dims))]
        same = [is_one or all(f is BATCH or not f.stride for f in dim) for dim in v.dims]
        dims = [() if a and b else d for a, b, d in zip(told, same, v.dims, strict=True)]
        found.append(v.with_dims(dims))
    return found


def _seen_as(found: Value, value: Value) -> Value:
    """With dimensions of one place where another value of the same elements has them."""
    dims = iter(solid(found.dims))
    return found.with_dims([next(dims) if dim else () for dim in value.dims])


def _with_slots(expression: Expression) -> tuple[Expression, list[float]]:
    """The expression with operands x1, x2, ... for its numbers, and these."""
    numbers: list[float] = []

    def walk(part: Expression) -> Expression:
        if isinstance(part, float):
            numbers.append(part)
            return f"x{len(numbers)}"
        if isinstance(part, str):
            return part
        return (part[0], *(walk(p) for p in part[1:]))

    return walk(expression), numbers


def _sizes(sizes: Sequence[int]) -> str:
    return "[" + ", ".join(
        "B" if n == BATCH_PLACES else f"{n // BATCH_PLACES} B" if n % BATCH_PLACES == 0 else str(n)
        for n in sizes
    ) + "]"  # fmt: skip
