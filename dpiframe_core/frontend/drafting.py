"""A traced program as a draft: which output is the score, which columns are ids, and the logit."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.fx import Node

from dpiframe_core.errors import ModelImportError
from dpiframe_core.frontend.before_sigmoid import before_sigmoid
from dpiframe_core.frontend.building import Building, CannotConvertError
from dpiframe_core.frontend.convert import Converter, Traced
from dpiframe_core.frontend.draft import Compute, Draft, Lookup
from dpiframe_core.frontend.operations.moving import of_whole
from dpiframe_core.frontend.operations.table import as_value
from dpiframe_core.frontend.patterns import find_patterns
from dpiframe_core.frontend.periods import Repeats, is_rounded, repeats
from dpiframe_core.frontend.values import BATCH, Column, Made, Value, places, size
from dpiframe_core.frontend.whole_sums import MOST_WHOLE
from dpiframe_core.program.expression import Expression
from dpiframe_core.program.tensor_ops import Join

Kind = Literal["auto", "probability", "logit"]
MOST_HASHED = 2**24  # ids that a table is laid out for
MOST_TABLED = 2**22  # numbers of tables that are made for ids beyond the examples'
MOST_NUMBERS = 2**26  # of tables of functions of ids that look nothing up
ROOM = 2**14  # rows that a table may have that are more than its ids ask for
MOST_SHIFT = 16  # rows of a table that ids may leave for padding and the like
LOG_ODDS = ("sub", ("log", "x0"), ("log1p", ("neg", "x0")))


@dataclass(frozen=True)
class Output:
    """Number `column` a sample of output `index` of `count`, and what it is; auto: a probability
    where a sigmoid makes it.
    """

    index: int
    column: int
    count: int
    kind: Kind = "auto"


def choose_output(traced: Traced, names: Sequence[str], wanted: str | int) -> Output:
    """The output that is meant; ModelImportError, which lists them, where that is not clear.

    `wanted`: auto, probability or logit for a model of one output, the number or name of one of
    several, or of a sample's numbers where the one output has several; NAME.NUMBER where there are
    several of both.
    """
    # Before what the model returns a program may return tokens of its side effects.
    leaves = _leaves(traced)[-len(names) :] if names else []
    if not names or len(leaves) < len(names):
        raise ModelImportError(
            f"the model returns {len(names)} tensors, of which its program computes {len(leaves)}; "
            "let it return tensors that are computed of its inputs"
        )
    widths = [math.prod(leaf.meta["val"].shape[1:]) for leaf in leaves]
    text = str(wanted)
    listed = ", ".join(
        f"{i}: {name}" + (f" of {width} numbers a sample" if width > 1 else "")
        for i, (name, width) in enumerate(zip(names, widths, strict=True))
    )
    name, _, number = text.rpartition(".")
    if text in ("auto", "probability", "logit"):
        index, column = (0 if len(names) == 1 else None), None
    elif text in names:
        index, column = list(names).index(text), None
    elif name in names and number.isdecimal():
        index, column = list(names).index(name), int(number)
    elif text.isdecimal():
        index, column = (0, int(text)) if len(names) == 1 else (int(text), None)
    else:
        raise ModelImportError(f"output {text!r} is none of the model's ({listed})")
    if index is None or index >= len(names):
        raise ModelImportError(
            f"the model returns {len(names)} outputs ({listed}): choose the score by its name or "
            "number (output)"
        )
    if column is None and widths[index] > 1:
        raise ModelImportError(
            f"the model's output {names[index]} has {widths[index]} numbers a sample: choose one "
            f"(output='{names[index]}.1' for the second, such as the clicks of two classes)"
        )
    if (column or 0) >= widths[index]:
        raise ModelImportError(f"output {text!r} is none of the model's ({listed})")
    kind: Kind = wanted if wanted in ("probability", "logit") else "auto"  # type: ignore[assignment]
    return Output(index, column or 0, len(names), kind)


def _leaves(traced: Traced) -> list[Node]:
    """The nodes that the program returns."""
    node = next(n for n in traced.graph.graph.nodes if n.op == "output")
    leaves = torch.utils._pytree.tree_leaves(node.args[0])
    return [
        leaf for leaf in leaves
        if isinstance(leaf, Node) and isinstance(leaf.meta.get("val"), Tensor)
    ]  # fmt: skip


def keep_output(traced: Traced, output: Output) -> None:
    """Take out of the program what only other outputs need."""
    graph = traced.graph.graph
    kept = _leaves(traced)[output.index - output.count]
    node = next(n for n in graph.nodes if n.op == "output")
    node.args = ((kept,),)
    graph.eliminate_dead_code()


class Examples(Protocol):
    """What the examples of a module's inputs tell of its columns."""

    def largest(self, column: Column) -> int:
        """The largest id of a column."""

    def most(self, column: Column) -> int | None:
        """The largest number of its type; None where that is none of whole numbers."""

    def are_ids(self, column: Column) -> bool:
        """Whether they can be ids: whole numbers, none negative."""


class Used(NamedTuple):
    """Columns that are ids, each with the rows of its tables, and those that are numbers; ids of
    which only the shape of what they look up is used; the periods of ids without an end; ids
    that look nothing up, and end with the examples'.
    """

    rows: dict[Column, int]
    dense: set[Column]
    shapes: dict[Column, int]
    periods: dict[Column, Repeats]
    bounded: list[Column]


def used_columns(
    traced: Traced, output: Output, examples: Examples | None = None, *, is_task: bool = False
) -> Used:
    """The columns that the output is made of. `examples`: what inputs may be; `is_task`: their
    fields must be those of other outputs, too, of which others may repeat, so that ids have a row
    each where they can.
    """
    build = Building()
    _convert(traced, build, output)
    rows = _within_parts(build, examples.largest if examples else None)
    hashed: dict[Column, int] = {}
    periods: dict[Column, Repeats] = {}
    bounded: list[Column] = []
    if examples is not None:
        least = MOST_HASHED if is_task else 0  # of the ids that may repeat
        for column in build.any_id:
            largest = examples.largest(column)
            room = max(largest, 2 * rows[column], ROOM)
            found = _repeating(build, column, examples, room) if largest >= least else None
            if found is not None:
                rows[column], periods[column] = found.rows, found
                continue
            rows[column] = max(rows[column], largest + 1)
            if rows[column] > MOST_HASHED:
                raise ModelImportError(
                    f"input {column.input} has ids as large as {rows[column] - 1:,}, of which the "
                    f"model computes what does not repeat within {MOST_HASHED:,} ids: make that a "
                    "feature before the model"
                )
        hashed = _hashed(build, rows, examples)
        for column in [c for c in build.functions if c not in rows and c not in hashed]:
            exact = _exact_as_ids(build, column, examples, least)
            if isinstance(exact, Repeats):
                hashed[column], periods[column] = exact.rows, exact
            elif exact:
                hashed[column] = exact
                bounded.append(column)
    build.draft.drop_unused()
    lookups = [module for module in build.draft.modules if isinstance(module, Lookup)]
    read = {column for lookup in lookups for column in lookup.columns}
    for column in rows:
        is_endless = column not in read or column in periods
        if not is_endless and examples and (largest := examples.largest(column)) >= rows[column]:
            raise ModelImportError(
                f"input {column.input} has id {largest:,} among its examples, and the model looks "
                f"up ids below {rows[column]:,}: every id of a batch is looked up, also one that a "
                "mask keeps from the table; give it table(torch.where(mask, ids, 0)[mask])"
            )
    return Used(
        {column: count for column, count in rows.items() if column in read} | hashed,
        set(build.seen_dense) - set(build.seen_ids) - set(hashed),
        {column: count for column, count in rows.items() if column not in read},
        {column: found for column, found in periods.items() if column in read or column in hashed},
        bounded,
    )


def _repeating(build: Building, column: Column, examples: Examples, most: int) -> Repeats | None:
    """How all that is computed of a column repeats, where that takes so many rows at most."""
    largest = examples.largest(column)
    found = _repeats(build.functions[column], largest, examples.most(column))
    return found if found and found.rows <= min(most, MOST_HASHED) else None


def _exact_as_ids(
    build: Building, column: Column, examples: Examples, least: int
) -> Repeats | int | None:
    """Of a column that looks nothing up: the period, or the ids, with which it is a field, since a
    remainder or the like is taken of numbers that float32 would round. It may be of any number of
    its type that it rounds, if what is computed repeats soon; else it is of those of the examples.
    """
    most, functions = examples.most(column), build.functions[column]
    if most is None or not examples.are_ids(column):
        return None
    largest = examples.largest(column)
    is_seen = any(is_rounded(function, largest, MOST_WHOLE) for function in functions)
    if not is_seen and not any(is_rounded(function, most, MOST_WHOLE) for function in functions):
        return None
    if largest >= least:
        room = MOST_TABLED // len(functions)
        found = _repeating(build, column, examples, max(room, largest if is_seen else 0))
        if found is not None:
            return found
    is_small = largest < MOST_HASHED and (largest + 1) * len(functions) <= MOST_NUMBERS
    return largest + 1 if is_seen and is_small else None


def _repeats(functions: Collection[Expression], largest: int, most: int | None) -> Repeats | None:
    """How functions of ids of a type up to `most` repeat; None where that is not known."""
    whole = {of_whole(function) for function in functions}
    if most is None:
        return None
    if whole <= set(functions):
        return repeats(whole, largest, most)
    end = min(most, int(MOST_WHOLE))  # numbers of float32 on the way
    found = repeats(whole, largest, end)
    return found and found._replace(last=end if found.last is None else found.last)


def _hashed(build: Building, rows: Mapping[Column, int], examples: Examples) -> dict[Column, int]:
    """Columns that look nothing up, of sums that float32 would round before a remainder is taken,
    each with the ids that the examples have: as ids their parts of the sum are exact.
    """
    found: dict[Column, int] = {}
    for value in build.remainders:
        others = [c for c in build.columns_of(value) if c not in rows and examples.are_ids(c)]
        ids = {**rows, **{column: examples.largest(column) + 1 for column in others}}
        if not build.columns_of(value) <= ids.keys() or max(ids.values(), default=0) > MOST_HASHED:
            continue
        with suppress(CannotConvertError):  # above 2^53
            if build.largest_of(value, ids) >= MOST_WHOLE:
                found |= {column: ids[column] for column in others}
    return found


def _within_parts(
    build: Building, largest: Callable[[Column], int] | None = None
) -> dict[Column, int]:
    """The rows of each id column. Where columns begin at several places of one table, each has the
    rows up to the next place: an id beyond them would be another column's. A place a few rows
    behind is no such border where it may be a shift, such as of ids that leave rows for padding,
    and none is before an id of the examples.
    """
    rows = dict(build.seen_ids)
    for starts in build.seen_starts.values():
        least = 0 if _are_fields(starts) else MOST_SHIFT
        for start, columns in starts.items():
            for column in columns:
                near = max(least, largest(column) if largest else 0)
                borders = [end - start for end in starts if end - start > near]
                rows[column] = min([rows[column], *borders])
    return rows


def _are_fields(starts: Mapping[int, Collection[Column]]) -> bool:
    """Whether each place of a table is where one column of one input begins: `ids + offsets`."""
    columns = [column for found in starts.values() for column in found]
    return len(set(columns)) == len(starts) == len(columns) and len({c.input for c in columns}) == 1


def drafted(
    traced: Traced, output: Output, ids: Mapping[Column, int], dense: Sequence[Column]
) -> tuple[Draft, bool]:
    """The draft over these features, and whether a sigmoid made the output."""
    build = Building(id_columns=ids, dense_columns={c: i for i, c in enumerate(dense)})
    build.draft.num_dense = len(dense)
    is_sigmoid = _convert(traced, build, output)
    find_patterns(build.draft)
    return build.draft, is_sigmoid


def _convert(traced: Traced, build: Building, output: Output) -> bool:
    outputs = Converter(traced, build).run()
    (leaf,) = [x for x in torch.utils._pytree.tree_leaves(outputs) if x is not None]
    try:
        value = build.on_batch(as_value(leaf))
    except CannotConvertError as error:
        raise ModelImportError(f"the model's output: {error}") from None
    if math.prod(size(d) for d in value.dims) % BATCH.size:
        raise ModelImportError(
            f"the model's output has sizes {value.sizes}; it must have a number for each sample"
        )
    value = Value(value.source, ((BATCH,),), int(places(value)[output.column]))
    return _make_logit(build, value, output.kind)


def _make_logit(build: Building, value: Value, kind: Kind) -> bool:
    """Let the draft's output be the logit; returns whether sigmoids were taken off it."""
    draft = build.draft
    logit = before_sigmoid(build, value) if kind != "logit" else None
    if logit is not None:
        value = logit
    elif kind == "probability":
        value = build.mapped(LOG_ODDS, [value])
    assert isinstance(value.source, Made)
    producer = draft.module(value.source.module)
    if value.offset or not _is_single(producer):
        value = build.computed(Join(1), [value], [(BATCH,)])
    assert isinstance(value.source, Made)
    draft.output = value.source.module
    return logit is not None


def _is_single(module: Any) -> bool:
    return isinstance(module, Compute) and math.prod(module.op.shape(module.operands)) == 1
