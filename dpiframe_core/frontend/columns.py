"""Which column of the data feeds which input of a model.

A model takes tensors: a number a sample, or several side by side. A column of parquet holds
numbers, or lists of them. What the user says, or what can be read off the model, becomes one `Feed`
a column; with how the model uses each number, feeds become the features of a spec.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

from pydantic import Field

from dpiframe_core.errors import ModelImportError, SpecError
from dpiframe_core.frontend.assemble import Features, legal_name
from dpiframe_core.frontend.periods import Repeats
from dpiframe_core.frontend.values import Column
from dpiframe_core.model.fields import ListSpec, SpecPart

MOST_LETTERS = 100  # of a name made of a column's, so that a number still fits behind it


class ListColumn(SpecPart):
    """A column of lists: element i of a row's list feeds place i of the input.

    A shorter list has `pad` for the missing elements, behind or before its own; of a longer one
    the first or last elements are kept. `count`: how many places of a wider input it feeds.
    """

    column: str = Field(min_length=1)
    pad: int = 0
    side: Literal["behind", "before"] = "behind"
    keep: Literal["first", "last"] = "first"
    count: int | None = Field(default=None, ge=1)


@dataclass(frozen=True)
class Feed:
    """A column, and the places `start`, ... of an input that it feeds: one, or a list's."""

    column: str
    input: str
    start: int
    count: int
    elements: ListColumn | None = None

    @property
    def places(self) -> list[Column]:
        """What it feeds."""
        return [Column(self.input, self.start + i) for i in range(self.count)]


def feeds_of(inputs: Mapping[str, tuple[int, ...]], columns: Any) -> list[Feed]:
    """The feeds of a model's inputs (name -> sizes without the batch).

    `columns`: input -> its column; of an input with several numbers a sample, a list of columns in
    order, or one column of lists (a name, or a mapping as `ListColumn`). For a model of one matrix
    it may be the list of columns itself, or column -> (begin, end) in the matrix, as
    DeepCTR-Torch's `feature_index`. ModelImportError says what is wrong.
    """
    wide = [name for name, shape in inputs.items() if math.prod(shape) > 1]
    if isinstance(columns, Mapping) and columns and all(map(_is_range, columns.values())):
        matrix = _only_matrix(wide, "columns gives each column its places in a matrix")
        columns = {matrix: _of_ranges(matrix, math.prod(inputs[matrix]), columns)}
    elif isinstance(columns, Sequence) and not isinstance(columns, str):
        columns = {_only_matrix(wide, "columns is a list"): columns}
    if not isinstance(columns, Mapping):
        raise ModelImportError(
            "columns must be a mapping of inputs to columns, or for one matrix a list of columns, "
            f"got {type(columns).__name__}"
        )
    found = []
    for name, given in columns.items():
        if name not in inputs:
            close = get_close_matches(str(name), inputs, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(inputs)}"
            raise ModelImportError(f"columns names input {name!r}, which the model has not; {hint}")
        found += _of_input(name, inputs[name], given)
    _no_column_twice(found)
    return found


def columns_of_inputs(
    inputs: Mapping[str, tuple[int, ...]], ids: Collection[Column], numbers: Collection[Column]
) -> dict[str, Any]:
    """Columns named like the inputs; of one matrix of ids and numbers each place has its own:
    x_0, x_1, ..
    """
    both = {column.input for column in ids} & {column.input for column in numbers}
    return {
        name: [f"{name}_{i}" for i in range(math.prod(shape))] if name in both else name
        for name, shape in inputs.items()
    }


def _is_range(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(isinstance(n, int) and not isinstance(n, bool) for n in value)
    )


def _only_matrix(wide: list[str], what: str) -> str:
    if len(wide) != 1:
        raise ModelImportError(
            f"{what}, which needs a model with one matrix as input; this one has {wide or 'none'}: "
            "give a mapping of each input to its columns"
        )
    return wide[0]


def _of_ranges(matrix: str, width: int, ranges: Mapping[str, Sequence[int]]) -> list[Any]:
    """Columns by their places in a matrix, in the order of the places."""
    found: list[Any] = []
    end = 0
    for column, (begin, stop) in sorted(ranges.items(), key=lambda item: tuple(item[1])):
        if begin != end or stop <= begin:
            raise ModelImportError(
                f"input {matrix}: column {column!r} has the places {begin} to {stop}, but those "
                f"before it end at {end}; every place must have one column"
            )
        single = stop == begin + 1
        found.append(column if single else {"column": column, "count": stop - begin})
        end = stop
    if end != width:
        raise ModelImportError(f"input {matrix} has {width} places, columns give {end}")
    return found


def _of_input(name: str, shape: tuple[int, ...], given: Any) -> list[Feed]:
    width = math.prod(shape)
    if isinstance(given, str):
        given = {"column": given}
        if width == 1:
            return [Feed(given["column"], name, 0, 1)]
    if isinstance(given, Mapping):
        given = [given]
        if width == 1:
            raise ModelImportError(
                f"input {name} takes one number a sample: give its column's name"
            )
    if not isinstance(given, Sequence) or not given:
        raise ModelImportError(
            f"input {name}: columns must give a column's name, a list of columns or a mapping with "
            f"the column of lists, got {given!r:.60}"
        )
    found: list[Feed] = []
    start = 0
    for part in given:
        if isinstance(part, str):
            feed = Feed(part, name, start, 1)
        else:
            elements = _list_column(name, part)
            count = elements.count or (width if len(given) == 1 else 0)
            if not count:
                raise ModelImportError(
                    f"input {name}: the list column {elements.column!r} stands beside others; say "
                    "how many places it feeds (count)"
                )
            feed = Feed(elements.column, name, start, count, elements)
        found.append(feed)
        start += feed.count
    if start != width:
        raise ModelImportError(
            f"input {name} takes {width} numbers a sample, columns give {start}: "
            f"{', '.join(feed.column for feed in found)!r:.200}"
        )
    return found


def _list_column(name: str, given: Any) -> ListColumn:
    if not isinstance(given, Mapping):
        raise ModelImportError(f"input {name}: a column must be a name or a mapping, got {given!r}")
    try:
        return ListColumn(**{str(key): value for key, value in given.items()})
    except SpecError as error:
        raise ModelImportError(f"input {name}: columns: {error}") from None


def _no_column_twice(feeds: list[Feed]) -> None:
    first: dict[str, Feed] = {}
    for feed in feeds:
        other = first.setdefault(feed.column, feed)
        if other is not feed:
            raise ModelImportError(
                f"column {feed.column!r} feeds input {other.input} (place {other.start}) and input "
                f"{feed.input} (place {feed.start}); a column feeds one input: let the model take "
                "it once, or write it twice under two names"
            )


@dataclass(frozen=True)
class Chosen:
    """The features of a model: names and rows in order, which are elements of lists, the columns
    of those that are named otherwise, what the model takes but does not use, the rows of ids that
    are unknown, by field, where a schema tells, and the periods of ids without an end.
    """

    features: Features
    dense_columns: tuple[Column, ...]  # of features.dense
    lists: tuple[ListSpec, ...]
    columns: Mapping[str, str]
    unused_inputs: tuple[str, ...]
    oov_rows: Mapping[str, int] = field(default_factory=dict)
    periods: Mapping[Column, Repeats] = field(default_factory=dict)

    @property
    def rows(self) -> dict[Column, int]:
        """The rows of each id column's table."""
        return {column: rows for column, (_, rows) in self.features.fields.items()}

    @property
    def id_columns(self) -> tuple[Column, ...]:
        """Of the fields, in order."""
        return tuple(self.features.fields)


def choose_features(
    inputs: Mapping[str, tuple[int, ...]],
    feeds: Sequence[Feed],
    rows: Mapping[Column, int],
    dense: Collection[Column],
) -> Chosen:
    """Features in the order of the inputs: `rows` of the tables that each id is looked up in, the
    columns that are `dense`. Of a list's places that the model does not use, those are features,
    too, that stand between others. ModelImportError where a used input has no column, or a list
    cannot be one of features.
    """
    rows, dense = dict(rows), set(dense)
    for feed in feeds:
        _add_unused(feed, rows, dense)
    used = {*rows, *dense}
    order = [Column(name, i) for name, shape in inputs.items() for i in range(math.prod(shape))]
    fed = {place: feed for feed in feeds for place in feed.places}
    for place in order:
        if place in used and place not in fed:
            raise ModelImportError(
                f"input {place.input} is not in columns, and the model uses it: say which column "
                "feeds it"
            )
    names: dict[Column, str] = {}
    lists = []
    columns: dict[str, str] = {}
    taken: set[str] = set()
    for feed in sorted(feeds, key=lambda feed: order.index(feed.places[0])):
        wanted = [place for place in feed.places if place in used]
        if not wanted:
            continue
        name = _new_name(feed.column, taken)
        if name != feed.column:
            columns[name] = feed.column
        if feed.elements is None:
            names[wanted[0]] = name
            continue
        own = {place: _new_name(f"{name}_{place.position - feed.start}", taken) for place in wanted}
        names |= own
        each = feed.elements
        lists.append(
            ListSpec(
                name=name, features=tuple(own.values()), pad=each.pad, side=each.side,
                keep=each.keep,
            )
        )  # fmt: skip
    features = Features(
        {place: (names[place], rows[place]) for place in order if place in rows},
        tuple(names[place] for place in order if place in dense),
    )
    unused = [name for name in inputs if not any(place.input == name for place in used)]
    return Chosen(
        features, tuple(p for p in order if p in dense), tuple(lists), columns, tuple(unused)
    )


def _add_unused(feed: Feed, rows: dict[Column, int], dense: set[Column]) -> None:
    """Add the unused places of a list that has used ones, unless they are its end that padding or
    cutting would leave out anyway. ModelImportError where it has places of both kinds.
    """
    ids = [place for place in feed.places if place in rows]
    numbers = [place for place in feed.places if place in dense]
    if feed.elements is None or not (ids or numbers):
        return
    if ids and numbers:
        raise ModelImportError(
            f"input {feed.input}: column {feed.column!r} feeds ids (place {ids[0].position}) and "
            f"numbers (place {numbers[0].position}); a list is of one kind: name the column of "
            "each place in order, as [first, second, ...]"
        )
    wanted = ids or numbers
    front = feed.elements.side == "behind" and feed.elements.keep == "first"
    back = feed.elements.side == "before" and feed.elements.keep == "last"
    at = [feed.places.index(place) for place in wanted]
    places = feed.places[: at[-1] + 1] if front else feed.places[at[0] :] if back else feed.places
    if ids:
        most = max(rows[place] for place in ids)
        rows |= {place: most for place in places if place not in rows}
    else:
        dense.update(places)


def _new_name(text: str, taken: set[str]) -> str:
    """A name of a spec for the text, numbered where it is taken."""
    wanted = legal_name(text)[:MOST_LETTERS]
    number = 1
    while (found := wanted if number == 1 else f"{wanted}_{number}") in taken:
        number += 1
    taken.add(found)
    return found
