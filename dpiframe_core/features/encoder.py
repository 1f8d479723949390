"""Encoder: Arrow tables of raw columns to ids and dense features, whole columns at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from dpiframe_core.features.columns import as_table, encode_column, hash_values, missing, numbers
from dpiframe_core.features.errors import EncodeError, SchemaError
from dpiframe_core.features.numeric import log_bucket_rows, transform
from dpiframe_core.features.schema import (
    FIRST_VALUE_ROW,
    MISSING_ROW,
    UNSEEN_ROW,
    CategoricalFeature,
    DenseFeature,
    FeatureSchema,
    HashEncoding,
    LogBucketEncoding,
    ModuloEncoding,
    VocabularyEncoding,
)
from dpiframe_core.features.vocabulary import VocabularyIndex


@dataclass(frozen=True)
class Encoded:
    """A batch of B rows: F arrays [B] int32 of ids, N arrays [B] float32 of dense features."""

    ids: list[np.ndarray]
    dense: list[np.ndarray]


class Encoder:
    """Encodes tables by a fitted schema.

    Columns may be plain, dictionary-encoded or chunked; of a dictionary each value is encoded
    once. A plain column of strings is hashed value by value, which costs less than finding its
    distinct values would.
    """

    def __init__(
        self, schema: FeatureSchema, vocabularies: Mapping[str, pa.Array] | None = None
    ) -> None:
        """Raise SchemaError when a vocabulary is absent or not the one that was fitted."""
        self.schema = schema
        self._indexes = _build_indexes(schema, vocabularies or {})

    def encode(self, rows: pa.Table | pa.RecordBatch) -> Encoded:
        """Encode the schema's source columns of B rows; other columns are ignored.

        Raises EncodeError naming each column that is missing or of a type that does not fit.
        """
        table = as_table(rows)
        problems = self.schema.check(table.schema)
        if problems:
            raise EncodeError("; ".join(problems))
        return Encoded(
            ids=[
                self._encode_column(field, table.column(field.column))
                for field in self.schema.fields
            ],
            dense=[_encode_dense(dense, table.column(dense.column)) for dense in self.schema.dense],
        )

    def _encode_column(self, field: CategoricalFeature, column: pa.ChunkedArray) -> np.ndarray:
        encode = partial(encode_field, field, index=self._indexes.get(field.name))
        return encode_column(column, np.int32, MISSING_ROW, encode)


def encode_field(
    field: CategoricalFeature, values: pa.Array, index: VocabularyIndex | None = None
) -> np.ndarray:
    """Rows [n] of the values [n] of a plain array, which may hold nulls."""
    encoding = field.encoding
    match encoding:
        case HashEncoding():
            rows = hash_rows(hash_values(values, encoding.seed), encoding.modulus)
        case LogBucketEncoding():
            rows = log_bucket_rows(numbers(values), encoding.max_bucket)
        case ModuloEncoding():
            rows = numbers(values).astype(_signed(values)) % encoding.modulus + FIRST_VALUE_ROW
        case VocabularyEncoding():
            assert index is not None
            found = index.find(as_vocabulary_values(values, field))
            rows = np.where(found >= 0, found + FIRST_VALUE_ROW, UNSEEN_ROW)
    absent = missing(values)
    if absent is not None:
        rows[absent] = MISSING_ROW
    return rows


def hash_rows(hashes: np.ndarray, modulus: int) -> np.ndarray:
    """2 + hash mod modulus, [n] int32; numpy divides by one number faster than it takes moduli."""
    divisor = np.uint64(modulus)
    rows: np.ndarray = (hashes - (hashes // divisor) * divisor).astype(np.int32)
    rows += np.int32(FIRST_VALUE_ROW)
    return rows


def as_vocabulary_values(values: pa.Array, field: CategoricalFeature) -> pa.Array:
    """Integers as int64, which vocabularies hold; strings as they are.

    Raises EncodeError for an integer above int64.
    """
    if not pa.types.is_integer(values.type):
        return values
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise EncodeError(
            f"column {field.column}: {error}; the vocabulary of field {field.name} holds int64"
        ) from error


def _signed(values: pa.Array) -> type[np.generic]:
    # uint64 keeps its type: its values need not fit int64, and are not negative.
    return np.uint64 if values.type == pa.uint64() else np.int64


def _encode_dense(feature: DenseFeature, column: pa.ChunkedArray) -> np.ndarray:
    def standardise(values: pa.Array) -> np.ndarray:
        scaled = (transform(numbers(values), feature.transform) - feature.mean) / feature.std
        absent = missing(values)
        if absent is not None:
            scaled[absent] = feature.fill
        return scaled

    return encode_column(column, np.float32, feature.fill, standardise)


def _build_indexes(
    schema: FeatureSchema, vocabularies: Mapping[str, pa.Array]
) -> dict[str, VocabularyIndex]:
    indexes = {}
    for field in schema.fields:
        if not isinstance(field.encoding, VocabularyEncoding):
            continue
        size = field.rows - FIRST_VALUE_ROW
        if field.name not in vocabularies:
            raise SchemaError(f"field {field.name}: its vocabulary of {size} values is not given")
        vocabulary = vocabularies[field.name]
        expected = pa.string() if field.values == "string" else pa.int64()
        if len(vocabulary) != size or vocabulary.type != expected:
            raise SchemaError(
                f"field {field.name}: the schema needs {size} values of type {expected}, "
                f"the vocabulary has {len(vocabulary)} of type {vocabulary.type}"
            )
        indexes[field.name] = VocabularyIndex(vocabulary)
    return indexes
