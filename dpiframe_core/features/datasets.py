"""The feature schemas of the two public data sets, Criteo and Avazu."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from dpiframe_core.features.errors import SchemaError
from dpiframe_core.features.schema import (
    CategoricalFeature,
    DenseFeature,
    FeatureSchema,
    HashEncoding,
    LogBucketEncoding,
    ModuloEncoding,
    ValueKind,
    VocabularyEncoding,
)

CRITEO_INTEGERS = tuple(f"I{i}" for i in range(1, 14))
CRITEO_CATEGORICALS = tuple(f"C{i}" for i in range(1, 27))

# In the order of the published file, with the type of the raw values.
AVAZU_FIELDS: dict[str, ValueKind] = {
    "hour": "integer",
    "C1": "integer",
    "banner_pos": "integer",
    "site_id": "string",
    "site_domain": "string",
    "site_category": "string",
    "app_id": "string",
    "app_domain": "string",
    "app_category": "string",
    "device_id": "string",
    "device_ip": "string",
    "device_model": "string",
    "device_type": "integer",
    "device_conn_type": "integer",
    **{f"C{i}": "integer" for i in range(14, 22)},
}

Categoricals = Literal["hash", "vocabulary"]
Modulus = int | Mapping[str, int]


def criteo_schema(
    integers: Literal["buckets", "dense"] = "buckets",
    categoricals: Categoricals = "hash",
    *,
    modulus: Modulus = 100_000,
    seed: int = 0,
    min_count: int = 10,
    max_bucket: int = 300,
) -> FeatureSchema:
    """Criteo: 39 one-hot fields (`buckets`), or 13 dense features and 26 fields (`dense`).

    `modulus` is one number, or one for each of C1..C26. Dense features and vocabularies need
    `fit_schema` before use.
    """
    bucket = LogBucketEncoding(max_bucket=max_bucket)
    buckets = [
        CategoricalFeature(name=n, column=n, values="integer", encoding=bucket)
        for n in CRITEO_INTEGERS
    ]
    kinds: dict[str, ValueKind] = dict.fromkeys(CRITEO_CATEGORICALS, "string")
    fields = _categorical_fields(kinds, categoricals, modulus, seed, min_count)
    dense = [DenseFeature(name=n, column=n) for n in CRITEO_INTEGERS]
    return FeatureSchema(
        dataset="criteo",
        key_columns=("row_id",),
        label_column="label",
        fields=(*buckets, *fields) if integers == "buckets" else tuple(fields),
        dense=() if integers == "buckets" else tuple(dense),
    )


def avazu_schema(
    categoricals: Categoricals = "hash",
    *,
    modulus: Modulus = 100_000,
    seed: int = 0,
    min_count: int = 10,
) -> FeatureSchema:
    """Avazu: 22 one-hot fields; `hour` (YYMMDDHH) becomes the hour of the day.

    `modulus` is one number, or one for each field but `hour`. Vocabularies need `fit_schema`.
    """
    kinds = {name: kind for name, kind in AVAZU_FIELDS.items() if name != "hour"}
    hour = CategoricalFeature(
        name="hour", column="hour", values="integer", encoding=ModuloEncoding(modulus=100)
    )
    fields = _categorical_fields(kinds, categoricals, modulus, seed, min_count)
    return FeatureSchema(
        dataset="avazu", key_columns=("id",), label_column="click", fields=(hour, *fields)
    )


def _categorical_fields(
    kinds: Mapping[str, ValueKind], how: Categoricals, modulus: Modulus, seed: int, min_count: int
) -> list[CategoricalFeature]:
    if isinstance(modulus, Mapping) and how == "hash" and set(modulus) != set(kinds):
        absent, unknown = sorted(set(kinds) - set(modulus)), sorted(set(modulus) - set(kinds))
        raise SchemaError(f"modulus must name each field: missing {absent}, unknown {unknown}")

    def encoding(name: str) -> HashEncoding | VocabularyEncoding:
        if how == "vocabulary":
            return VocabularyEncoding(min_count=min_count)
        return HashEncoding(
            modulus=modulus[name] if isinstance(modulus, Mapping) else modulus, seed=seed
        )

    return [
        CategoricalFeature(name=name, column=name, values=kind, encoding=encoding(name))
        for name, kind in kinds.items()
    ]
