"""The parquet layouts of the two data sets: raw (as published) and encoded (ids).

A file says in its metadata, under `LAYOUT_KEY`, which layout it has, as JSON.
"""

from __future__ import annotations

import json
from typing import Literal

import pyarrow as pa

from dpiframe_core.features.datasets import AVAZU_FIELDS, CRITEO_CATEGORICALS, CRITEO_INTEGERS

Dataset = Literal["criteo", "avazu"]
Form = Literal["raw", "encoded"]

LAYOUT_KEY = b"dpiframe.layout"
KEY_COLUMNS = {"criteo": pa.field("row_id", pa.int64(), nullable=False)}
KEY_COLUMNS["avazu"] = pa.field("id", pa.uint64(), nullable=False)
LABEL_COLUMNS = {
    "criteo": pa.field("label", pa.int8(), nullable=False),
    "avazu": pa.field("click", pa.int8(), nullable=False),
}


def feature_columns(dataset: Dataset) -> dict[str, pa.DataType]:
    """The raw feature columns in the published order: int32 or string."""
    if dataset == "criteo":
        return {
            **dict.fromkeys(CRITEO_INTEGERS, pa.int32()),
            **dict.fromkeys(CRITEO_CATEGORICALS, pa.string()),
        }
    kinds = {"integer": pa.int32(), "string": pa.string()}
    return {name: kinds[kind] for name, kind in AVAZU_FIELDS.items()}


def raw_schema(dataset: Dataset, with_label: bool = True) -> pa.Schema:
    """Key, label where there is one, then the published columns, which may be null."""
    features = [pa.field(name, kind) for name, kind in feature_columns(dataset).items()]
    return pa.schema([*_head(dataset, with_label), *features])


def encoded_schema(dataset: Dataset) -> pa.Schema:
    """Key, label, then one int32 column of ids a field, never null."""
    ids = [pa.field(name, pa.int32(), nullable=False) for name in feature_columns(dataset)]
    return pa.schema([*_head(dataset, True), *ids])


def with_layout(schema: pa.Schema, **facts: object) -> pa.Schema:
    """The schema with the facts of its layout in the metadata."""
    return schema.with_metadata({LAYOUT_KEY: json.dumps(facts)})


def read_layout(schema: pa.Schema) -> dict[str, object] | None:
    """The facts of a file's layout, from its Arrow schema; None when it states none."""
    text = (schema.metadata or {}).get(LAYOUT_KEY)
    return None if text is None else dict(json.loads(text))


def _head(dataset: Dataset, with_label: bool) -> list[pa.Field]:
    label = [LABEL_COLUMNS[dataset]] if with_label else []
    return [KEY_COLUMNS[dataset], *label]
