"""Which columns a job reads, and in which form: ids (encoded), or as published (raw)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from dpiframe_core.features.lists import Shape, is_list
from dpiframe_core.features.numbers import is_number
from dpiframe_core.features.schema import FeatureSchema
from pipeline.config.job import SCORE_COLUMN, JobConfig, embedding_column, score_column
from pipeline.errors import ConfigError

if TYPE_CHECKING:  # it imports torch, which read tasks do not need
    from dpiframe_core.model.spec import ModelSpec


class ListColumn(BaseModel):
    """A column of lists, encoded: element p of a list is that of `id_columns[places[p]]`, or of
    `dense_columns[places[p]]`; `pad`, `side` and `keep` are those of the model's `ListSpec`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    column: str
    dense: bool
    places: tuple[int, ...]
    pad: int
    side: Literal["behind", "before"]
    keep: Literal["first", "last"]

    @property
    def shape(self) -> Shape:
        """How its lists are padded."""
        return Shape(len(self.places), self.side, self.keep)


class Places(NamedTuple):
    """Positions among the fields, and among the dense features."""

    ids: list[int]
    dense: list[int]


class Columns(BaseModel):
    """The columns of the input, by use; those of the other form are empty. `partitions` are those
    among them that folder names give, with their types; `held` those that are published which the
    files hold as well, and are read from them. `types`: of published columns that files store in
    several.

    `id_columns` [F] and `dense_columns` [N] are in the order of the model spec; a column of
    `lists` is there once an element.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    form: Literal["raw", "encoded"]
    key_columns: tuple[str, ...]
    carry_columns: tuple[str, ...]
    id_columns: tuple[str, ...] = ()
    dense_columns: tuple[str, ...] = ()
    lists: tuple[ListColumn, ...] = ()
    source_columns: tuple[str, ...] = ()
    partitions: dict[str, str] = {}
    held: tuple[str, ...] = ()
    types: dict[str, Any] = {}  # Arrow's (any: pyarrow has no types)

    @property
    def published(self) -> tuple[str, ...]:
        """The columns that are copied beside the scores."""
        return (*self.key_columns, *self.carry_columns)

    @property
    def feature_columns(self) -> list[str]:
        """The columns that features are made of, once each."""
        return list(dict.fromkeys((*self.id_columns, *self.dense_columns, *self.source_columns)))

    @property
    def read_columns(self) -> list[str]:
        """Every column to read from the files, once each."""
        named = dict.fromkeys((*self.published, *self.feature_columns))
        return [name for name in named if name not in self.partitions]

    def with_partitions(self, types: Mapping[str, str], held: Collection[str] = ()) -> Columns:
        """The same columns, those of `types` from folder names, but for those that are `held`."""
        used = {*self.published, *self.feature_columns}.difference(held)
        named = {name: kind for name, kind in types.items() if name in used}
        both = tuple(name for name in self.published if name in held)
        return self.model_copy(update={"partitions": named, "held": both})

    @property
    def scalar_places(self) -> Places:
        """The fields and dense features that are no elements of lists."""
        listed = {(each.dense, place) for each in self.lists for place in each.places}
        return Places(
            [f for f in range(len(self.id_columns)) if (False, f) not in listed],
            [n for n in range(len(self.dense_columns)) if (True, n) not in listed],
        )

    @property
    def scalar_ids(self) -> list[str]:
        """The id columns without lists, once each."""
        return list(dict.fromkeys(self.id_columns[f] for f in self.scalar_places.ids))

    @property
    def scalar_dense(self) -> list[str]:
        """The dense columns without lists, once each."""
        return list(dict.fromkeys(self.dense_columns[n] for n in self.scalar_places.dense))

    def element_names(self) -> tuple[list[str], list[str]]:
        """What findings call each of `id_columns` and `dense_columns`: an element of a list is
        named `column[position]`.
        """
        names = list(self.id_columns), list(self.dense_columns)
        for each in self.lists:
            called = each.shape.element_names(each.column)
            for place, name in zip(each.places, called, strict=True):
                names[each.dense][place] = name
        return names


def choose_columns(
    schemas: Sequence[pa.Schema], spec: ModelSpec, schema: FeatureSchema | None, config: JobConfig
) -> Columns:
    """Settle the form and the columns of a job from its configuration and its files' schemas.

    Raises ConfigError when the configuration does not fit the bundle, or the form is ambiguous.
    """
    _check_field_columns(spec, config)
    named = feature_columns(spec, config)
    ids = tuple(named[field.name] for field in spec.fields)
    dense = tuple(named[name] for name in spec.dense)
    form = config.form
    if form == "auto":
        form = _guess_form(schemas, ids, dense, schema)
    if form == "raw" and config.field_columns:
        raise ConfigError("field_columns is for encoded input; raw columns are named by the schema")
    keys = _key_columns(schema, config)
    carry = tuple(config.carry_columns)
    if form == "raw":
        if schema is None:
            raise ConfigError("form: raw needs a bundle with a feature schema; this one has none")
        sources = schema.source_columns
        return Columns(form=form, key_columns=keys, carry_columns=carry, source_columns=sources)
    return Columns(
        form=form,
        key_columns=keys,
        carry_columns=carry,
        id_columns=ids,
        dense_columns=dense,
        lists=_list_columns(spec, config),
    )


def feature_columns(spec: ModelSpec, config: JobConfig) -> dict[str, str]:
    """Field or dense feature -> its column in encoded input, that of the list it belongs to."""
    lists = {name: each.name for each in spec.lists for name in each.features}
    names = [*(field.name for field in spec.fields), *spec.dense]
    named = {name: lists.get(name, name) for name in names}
    columns = {**spec.columns, **config.field_columns}
    return {name: columns.get(owner, owner) for name, owner in named.items()}


def _list_columns(spec: ModelSpec, config: JobConfig) -> tuple[ListColumn, ...]:
    fields = {field.name: f for f, field in enumerate(spec.fields)}
    dense = {name: n for n, name in enumerate(spec.dense)}
    columns = {**spec.columns, **config.field_columns}
    return tuple(
        ListColumn(
            column=columns.get(each.name, each.name),
            dense=each.features[0] in dense,
            places=tuple(fields.get(name, dense.get(name, -1)) for name in each.features),
            pad=each.pad,
            side=each.side,
            keep=each.keep,
        )
        for each in spec.lists
    )


def _guess_form(
    schemas: Sequence[pa.Schema],
    ids: tuple[str, ...],
    dense: tuple[str, ...],
    schema: FeatureSchema | None,
) -> Literal["raw", "encoded"]:
    """Encoded if all id columns exist as integers or lists of them, raw if the schema can read the
    file. Ids of another numeric type are never told from raw numbers.

    If neither holds, the form that lacks fewer columns, so that the contract names the missing.
    """
    if schema is None:
        return "encoded"
    if not schemas:
        return "raw"
    first = schemas[0]
    kinds = {field.name: element_type(field.type) for field in first}
    integers = {name for name, kind in kinds.items() if pa.types.is_integer(kind)}
    numbers = {name for name, kind in kinds.items() if is_number(kind)}
    absent = [c for c in dict.fromkeys(dense) if c not in first.names]
    lacking = [c for c in dict.fromkeys(ids) if c not in integers] + absent
    may_be_ids = numbers.issuperset(ids) and not absent
    lacking_raw = schema.check(first)
    shared = [column for column in ids if column in schema.source_columns]
    if may_be_ids and not lacking_raw and shared:
        raise ConfigError(
            "form: auto cannot tell ids from raw numbers in these files, as both forms use "
            f"column {shared[0]!r}; set form to raw or encoded"
        )
    return "encoded" if not lacking or len(lacking) < len(lacking_raw) else "raw"


def _key_columns(schema: FeatureSchema | None, config: JobConfig) -> tuple[str, ...]:
    keys = tuple(config.key_columns) or (tuple(schema.key_columns) if schema else ())
    if not keys:
        raise ConfigError(
            "key_columns is empty and the bundle's schema names none: name at least one column "
            "that tells which row a score belongs to"
        )
    scores = [SCORE_COLUMN, *map(score_column, (*config.beside, *config.outputs))]
    taken = (*scores, *map(embedding_column, config.outputs), *config.carry_columns)
    clash = [name for name in keys if name in taken]
    if clash:
        raise ConfigError(
            f"key column {clash[0]!r} (from the bundle's schema) is also a carry column, or the "
            "name of a column of scores; set key_columns or carry_columns"
        )
    return keys


def element_type(kind: pa.DataType) -> pa.DataType:
    """The type of a list's elements; of other types, the type itself."""
    return kind.value_type if is_list(kind) else kind


def mapped_names(spec: ModelSpec) -> set[str]:
    """What `field_columns` may name of a model, or refuses with a reason of its own."""
    return {
        *(field.name for field in spec.fields),
        *spec.dense,
        *(each.name for each in spec.lists),
    }


def _check_field_columns(spec: ModelSpec, config: JobConfig) -> None:
    lists = {name: each.name for each in spec.lists for name in each.features}
    features = [*(field.name for field in spec.fields), *spec.dense]
    known = [each.name for each in spec.lists] + [name for name in features if name not in lists]
    for name in config.field_columns:
        if name in lists and name not in known:
            raise ConfigError(
                f"field_columns names {name!r}, an element of the list {lists[name]!r}; name the "
                "column of the list"
            )
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known[:50])}"
            raise ConfigError(f"field_columns names {name!r}, which the model has not; {hint}")
