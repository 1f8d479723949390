"""Embedding tables: rows that ids pick, by a column of ids or by a computed number."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dpiframe_core.frontend.building import Building, CannotConvertError, of_ids
from dpiframe_core.frontend.draft import Table as Rows
from dpiframe_core.frontend.operations.moving import of_whole, unsqueeze
from dpiframe_core.frontend.operations.products import matmul
from dpiframe_core.frontend.operations.table import Table, as_value
from dpiframe_core.frontend.values import (
    BATCH,
    BATCH_SIZE,
    Columns,
    Factor,
    Fixed,
    Samples,
    Scalar,
    Value,
    distinct,
    of_tensor,
    packed,
    size,
)
from dpiframe_core.program.expression import Expression, fingerprint
from dpiframe_core.program.tensor_ops import Operand, TakeAlong, row_major

TABLE = Table()

MOST_TRIED = 2**24  # ids
ALWAYS_TRIED = 2**12
MOST_HOT = 2**8  # numbers of one-hot rows a sample: of more, picking rows is quicker on a GPU
MOST_PICKED = 2**30  # numbers of a table that computed ids pick from


@TABLE.of("embedding")
def embedding(build: Building, weight: Any, ids: Any, *rest: Any) -> Value:
    """weight[ids]: rows [.., D] of a table [rows, D]."""
    if not isinstance(weight, Tensor):
        raise CannotConvertError("rows of a table that depends on the data")
    ids = as_value(ids)
    if isinstance(ids.source, Columns):
        return _looked_up(build, weight, ids)
    if isinstance(ids.source, Fixed):
        at, dims = distinct(ids)
        rows = weight[ids.source.numbers.reshape(-1)[torch.from_numpy(at)].long()]
        dim = weight.shape[1]
        return replace(of_tensor(rows), dims=(*_apart(dims, dim), of_tensor(rows).dims[1]))
    return _by_number(build, weight, ids)


@TABLE.of("embedding_renorm", "embedding_renorm_")
def renormed(build: Building, weight: Any, ids: Any, most: float, kind: float) -> Tensor:
    """The table with no row's norm above `most` (max_norm). PyTorch scales rows when they are first
    looked up and keeps them so.
    """
    if not isinstance(weight, Tensor):
        raise CannotConvertError("rows of a table that depends on the data")
    key = f"{build.kept(weight)}/{most}/{kind}"
    if key not in build.renormed:
        norms = weight.double().norm(kind, dim=1, keepdim=True)
        if not bool((norms > most * (1 + 1e-6)).any()):  # as where it was looked up before
            return weight
        scaled = weight.double() * (most / (norms + 1e-7))
        build.renormed[key] = torch.where(norms > most, scaled, weight).to(weight.dtype)
    return build.renormed[key]


def _apart(dims: tuple[Any, ...], step: int) -> tuple[Any, ...]:
    """Dimensions of places as those of rows, `step` numbers each."""
    return packed(dims, step, keep_repeats=True)


def _looked_up(build: Building, weight: Tensor, ids: Value) -> Value:
    """Rows by columns of ids."""
    assert isinstance(ids.source, Columns)
    at, dims = distinct(ids)
    scalars = [ids.source.scalars[i] for i in at]
    unique = list(dict.fromkeys(scalars))
    keys = [_table(build, weight, scalar) for scalar in unique]
    found = build.lookup([s.column for s in unique], keys, weight.shape[1])
    if len(unique) < len(scalars):
        where = {scalar: i for i, scalar in enumerate(unique)}
        found = build.taken(found, 0, [where[s] for s in scalars])
    return replace(found, dims=(*_apart(dims, weight.shape[1]), found.dims[-1]))


def _by_number(build: Building, weight: Tensor, ids: Value) -> Value:
    """Rows by numbers that are computed: one-hot rows times the table, of which a kernel makes
    parts as it multiplies; of many rows those that are picked.
    """
    if isinstance(ids.source, Samples):
        build.ready(ids)
    rows, dim = weight.shape
    count = math.prod(size(d) for d in ids.dims) // BATCH_SIZE
    if rows * max(count, 1) > MOST_HOT:
        return _picked(build, weight, build.ready(ids))
    numbers = of_tensor(torch.arange(rows, dtype=torch.float64))
    hot = build.mapped(("eq", "x0", "x1"), [unsqueeze(build, ids, -1), numbers])
    flat = build.view(hot, [math.prod(ids.sizes), rows])
    return build.view(matmul(build, flat, weight), [*ids.sizes, dim])


def _picked(build: Building, weight: Tensor, ids: Value) -> Value:
    """weight[ids] by a take along an axis: of each column of the table the rows of all ids."""
    rows, dim = weight.shape
    told = "ids that are computed from several columns or from numbers pick among"
    if rows * dim > MOST_PICKED:
        raise CannotConvertError(
            f"{told} {rows:,} rows of {dim}, more than {MOST_PICKED:,} numbers; make them a column "
            "of the input"
        )
    if not bool(weight.isfinite().all()):
        raise CannotConvertError(f"{told} rows with a number that is not finite")
    at = ids.operand()
    if at.strides != row_major(at.shape):
        ids = build.copied(ids)
        at = ids.operand()
    read = [Operand((dim, at.size), (0, 1), at.offset), Operand((dim, rows), (1, dim))]
    columns = (Factor(dim, 1),) if dim > 1 else ()
    table = replace(of_tensor(weight), dims=())
    found = build.computed(TakeAlong(places_first=True), [ids, table], [columns, *ids.dims], read)
    return build.moved(found, 0, len(ids.dims))


def _table(build: Building, weight: Tensor, scalar: Scalar) -> str:
    """The key of the table that a column looks up, its function of the ids folded in."""
    build.note_functions([scalar])
    column, start = scalar.column, _shift(of_whole(scalar.expression))
    if start is None:
        return _function_table(build, weight, scalar)
    rows, key = weight.shape[0] - start, build.kept(weight)
    if rows < 1:
        raise CannotConvertError(f"ids begin at {start} in a table of {weight.shape[0]} rows")
    build.seen_starts.setdefault(key, {}).setdefault(start, set()).add(column)
    rows = min(rows, build.id_columns.get(column, rows))
    build.limit_ids(column, rows)
    if rows < weight.shape[0]:
        key, weight = f"{key}+{start}:{rows}", weight[start : start + rows]
    build.draft.tables.setdefault(key, Rows(weight))
    return key


def _shift(expression: Expression) -> int | None:
    """n where the expression is x0 + n, n not negative; None where it is another."""
    if expression == "x0":
        return 0
    if isinstance(expression, tuple) and expression[0] == "add" and "x0" in expression[1:]:
        (number,) = [part for part in expression[1:] if part != "x0"] or [None]
        if isinstance(number, float) and number >= 0 and number.is_integer():
            return int(number)
    return None


def _function_table(build: Building, weight: Tensor, scalar: Scalar) -> str:
    """The key of a table in the order of the ids: row i is the one that the function of i picks."""
    rows, expression = weight.shape[0], of_whole(scalar.expression)
    known = build.id_columns.get(scalar.column)
    places = of_ids(expression, _tried(expression, rows) if known is None else known)
    fits = (places >= 0) & (places < rows)
    if not bool(fits.any()):
        raise CannotConvertError(f"ids of column {scalar.column.input} are outside the table")
    first = int(fits.nonzero()[0])
    outside = (~fits[first:]).nonzero()
    if len(outside):
        build.limit_ids(scalar.column, first + int(outside[0]))
    else:
        build.limit_ids(scalar.column, known or _end_of_change(places) or rows, any_id=True)
    key = f"{build.kept(weight)}/{fingerprint(expression)}/{len(places)}"
    if key not in build.draft.tables:
        count = len(places) if known is not None else build.seen_ids[scalar.column]
        at = torch.where(fits, places, 0)[:count].long()
        build.draft.tables[key] = Rows(torch.where(fits[:count, None], weight[at], 0.0))
    return key


def _tried(expression: Expression, rows: int) -> int:
    """How many ids show which of them have a row: up to the first power of 2 that has none, as a
    quotient has some time; of a remainder or a bounded number a few show it.
    """
    powers = 2 ** torch.arange(MOST_TRIED.bit_length())
    count = max(2 * rows + 1, ALWAYS_TRIED)
    try:
        places = of_ids(expression, powers)
        of_ids(expression, count)
    except CannotConvertError:  # numbers that are too large to be told
        return 2 * rows + 1
    outside = powers[(powers > count) & ((places < 0) | (places >= rows))]
    return int(outside[0]) + 1 if len(outside) else count


def _end_of_change(places: Tensor) -> int:
    """The number of ids up to the one from which on all have the same place; 0 if none is near."""
    moves = (places[1:] != places[:-1]).nonzero()
    last = int(moves[-1]) + 1 if len(moves) else 0
    return last + 1 if last < len(places) // 2 else 0


@TABLE.of("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(build: Building, weight: Any, ids: Any, offsets: Any, scale: bool = False,  # noqa: PLR0913
                  mode: int = 0, sparse: bool = False, per_sample: Any = None,
                  include_last: bool = False, padding: int = -1) -> tuple[Any, ...]:  # fmt: skip
    """Sums (mode 0), means (1) or largest (2) of rows of bags of one length each: [B, D]."""
    ids = as_value(ids)
    length = math.prod(ids.sizes) // BATCH_SIZE
    bags = offsets.source if isinstance(offsets, Value) else None
    if (
        not isinstance(bags, Samples)
        or bags.step != length
        or bags.added
        or offsets.dims != ((BATCH,),)
    ):
        raise CannotConvertError(
            "bags of a length that the data decides (offsets); give the model ids [B, L], padded "
            "to the longest, with a padding id"
        )
    shown = build.view(ids, [BATCH_SIZE, length])
    rows = embedding(build, weight, shown)
    if per_sample is not None:
        weights = build.view(as_value(per_sample), [BATCH_SIZE, length, 1])
        rows = build.mapped(("mul", "x0", "x1"), [rows, weights])
    if padding < 0:
        function = ("sum", "mean", "max")[mode]
        return build.reduced(rows, function, [1], False), None, None, None
    kept = build.mapped(("ne", "x0", float(padding)), [replace(shown, is_integer=True)])
    mask = unsqueeze(build, kept, 2)
    count = build.reduced(mask, "sum", [1], False)
    if mode == 2:
        rows = build.mapped(("where", "x1", "x0", -math.inf), [rows, mask])
        most = build.reduced(rows, "max", [1], False)
        return build.mapped(("where", "x1", "x0", 0.0), [most, count]), None, None, None
    rows = build.mapped(("where", "x1", "x0", 0.0), [rows, mask])
    total = build.reduced(rows, "sum", [1], False)
    if mode == 1:
        total = build.mapped(("div", "x0", ("max", "x1", 1.0)), [total, count])
    return total, None, None, None
