"""The features of a model that is imported, as a feature schema makes them of raw columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from dpiframe_core.errors import ModelImportError
from dpiframe_core.features.schema import CategoricalFeature, DenseFeature, FeatureSchema
from dpiframe_core.frontend.assemble import Features
from dpiframe_core.frontend.columns import Chosen, Feed
from dpiframe_core.frontend.drafting import MOST_HASHED
from dpiframe_core.frontend.fuxictr import FuxiSchema
from dpiframe_core.frontend.values import Column
from dpiframe_core.model.fields import ListSpec


@dataclass(frozen=True)
class Encoding:
    """A fitted schema and its vocabularies, as `save_bundle` takes them; `notes`: what raw columns
    must have gone through before, in sentences.
    """

    schema: FeatureSchema
    vocabularies: Mapping[str, pa.Array]
    notes: tuple[str, ...] = ()


def columns_of_schema(inputs: Mapping[str, Any], schema: FeatureSchema) -> dict[str, Any]:
    """Which column feeds each input that is named like a column of the schema, with how its lists
    are padded; the other inputs have columns of their own names.
    """
    found: dict[str, Any] = {name: name for name in inputs}
    for feature in schema.features:
        if feature.column in found and feature.elements is not None:
            padding = feature.elements.model_dump(include={"pad", "side", "keep"})
            found[feature.column] = {"column": feature.column, **padding}
    return found


def by_schema(
    chosen: Chosen, feeds: Sequence[Feed], encoding: Encoding | FuxiSchema
) -> tuple[Chosen, Encoding]:
    """The features in the order and by the names of the schema, and the part of it that the model
    uses. ModelImportError where the two do not fit.
    """
    schema = encoding.schema
    rows = {
        place: MOST_HASHED if place in chosen.periods else rows
        for place, (_, rows) in chosen.features.fields.items()
    }
    used = {*rows, *chosen.dense_columns}
    by_column = {feed.column: feed for feed in feeds}
    names: dict[Column, str] = {}
    kept: list[CategoricalFeature | DenseFeature] = []
    columns = {}
    for feature in schema.features:
        feed = by_column.get(feature.column) or by_column.get(feature.name)
        if feed is None or not used & set(feed.places):
            continue
        _check_fits(feature, feed, rows, used)
        names |= dict(zip(feed.places, feature.names, strict=True))
        kept.append(feature)
        if feed.column != feature.name:
            columns[feature.name] = feed.column
    for place in (*rows, *chosen.dense_columns):
        if place not in names:
            raise ModelImportError(
                f"input {place.input} is made by no feature of the schema: its columns are "
                f"{', '.join(schema.source_columns)}"
            )
    fields = tuple(f for f in kept if isinstance(f, CategoricalFeature))
    dense = tuple(d for d in kept if isinstance(d, DenseFeature))
    part = schema.model_copy(update={"fields": fields, "dense": dense})
    places = {name: place for place, name in names.items()}
    features = Features(
        {places[name]: (name, feature.rows) for name, feature in part.field_features},
        part.dense_names,
    )
    fitting = replace(
        chosen, features=features, dense_columns=tuple(places[n] for n in part.dense_names),
        lists=ListSpec.of_schema(part), columns=columns,
        oov_rows={name: feature.unseen_row for name, feature in part.field_features}, periods={},
    )  # fmt: skip
    needed = {f.name for f in fields if f.encoding.kind == "vocabulary"}
    words = {name: each for name, each in encoding.vocabularies.items() if name in needed}
    return fitting, Encoding(part, words, encoding.notes)


def _check_fits(
    feature: CategoricalFeature | DenseFeature,
    feed: Feed,
    rows: Mapping[Column, int],
    used: set[Column],
) -> None:
    wanted = len(feature.names)
    if feed.count != wanted or not set(feed.places) <= used:
        count = len(used & set(feed.places))
        raise ModelImportError(
            f"input {feed.input}: the model uses {count} numbers a sample of it, the schema's "
            f"feature {feature.name} makes {wanted}"
        )
    ids = isinstance(feature, CategoricalFeature)
    for place in feed.places:
        if ids != (place in rows):
            kinds = ("ids", "numbers") if ids else ("numbers", "ids")
            raise ModelImportError(
                f"input {feed.input}: the schema's feature {feature.name} makes {kinds[0]}, the "
                f"model uses {kinds[1]}"
            )
        if isinstance(feature, CategoricalFeature) and feature.rows > rows[place]:
            raise ModelImportError(
                f"input {feed.input}: the schema's field {feature.name} has {feature.rows} rows, "
                f"the model's table {rows[place]}; they are not of one training"
            )
