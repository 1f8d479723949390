"""Encoder: Arrow tables of raw columns to ids and dense features, whole columns at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpiframe_core import _core
from dpiframe_core.features.columns import (
    EncodeValues,
    as_int64,
    as_table,
    as_text,
    encode_column,
    in_runs,
    list_chunk,
    missing,
    new_column,
    numbers,
    string_bytes,
    validity,
)
from dpiframe_core.features.errors import EncodeError, SchemaError
from dpiframe_core.features.lists import pad_lists
from dpiframe_core.features.numbers import as_reals, rounded_down, whole_numbers
from dpiframe_core.features.numeric import bucket_encoder, log_bucket_rows
from dpiframe_core.features.schema import (
    FIRST_VALUE_ROW,
    MISSING_ROW,
    CategoricalFeature,
    DenseFeature,
    Elements,
    FeatureSchema,
    HashEncoding,
    LogBucketEncoding,
    ModuloEncoding,
    VocabularyEncoding,
)
from dpiframe_core.features.vocabulary import VocabularyIndex, vocabulary_parts


@dataclass(frozen=True)
class Encoded:
    """A batch of B rows: F arrays [B] int32 of ids, N arrays [B] float32 of dense features, in the
    order of the schema's `field_features` and `dense_names`.
    """

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
        self._fields = [field_encoder(f, self._indexes.get(f.name)) for f in schema.fields]
        self._dense = [dense_encoder(feature) for feature in schema.dense]

    @property
    def value_encoders(self) -> tuple[list[_core.ValueEncoder], list[_core.ValueEncoder]]:
        """What encodes single values of each of the schema's `fields` and `dense`."""
        return self._fields, self._dense

    def encode(self, rows: pa.Table | pa.RecordBatch) -> Encoded:
        """Encode the schema's source columns of B samples; other columns are ignored.

        Raises EncodeError naming each column that is missing or of a type that does not fit.
        """
        table = as_table(rows)
        problems = self.schema.check(table.schema)
        if problems:
            raise EncodeError("; ".join(problems))
        ids: list[np.ndarray] = []
        for field in self.schema.fields:
            encode = partial(encode_field, field, self._indexes.get(field.name))
            column = table.column(field.column)
            ids += encoded(column, np.int32, field.missing_row, encode, field.elements)
        dense: list[np.ndarray] = []
        for feature, standardise in zip(self.schema.dense, self._dense, strict=True):
            encode = partial(encode_dense, feature, standardise)
            column = table.column(feature.column)
            dense += encoded(column, np.float32, feature.fill, encode, feature.elements)
        return Encoded(ids, dense)


def encoded(
    column: pa.ChunkedArray,
    dtype: type[np.generic],
    missing_value: float,
    encode: EncodeValues,
    elements: Elements | None,
) -> list[np.ndarray]:
    """The codes [B] of a column's values, or those of each element of its lists."""
    if elements is None:
        codes = new_column(len(column), dtype)
        encode_column(column, codes, missing_value, encode)
        return [codes]
    length, rows = len(elements.features), len(column)
    matrix, start = new_column(length * rows, dtype).reshape(length, rows), 0
    for chunk in column.chunks:
        lists = list_chunk(chunk, elements.split_at)
        codes = new_column(len(lists.values), dtype)
        encode_column(pa.chunked_array([lists.values]), codes, missing_value, encode)
        part = matrix[:, start : start + len(chunk)]
        pad_lists(lists, codes, elements.shape, elements.pad, part)
        start += len(chunk)
    return list(matrix)


def encode_field(
    field: CategoricalFeature, index: VocabularyIndex | None, values: pa.Array, out: np.ndarray
) -> None:
    """Write the ids of the values [n] of a plain array, which may hold nulls, into `out` [n]."""
    bucketed = isinstance(field.encoding, LogBucketEncoding)
    values = as_reals(rounded_down(values)) if bucketed else as_field_values(values, field)
    match field.encoding:
        case HashEncoding() as encoding:
            hash_rows(values, encoding, out)
        case LogBucketEncoding() as encoding:
            log_bucket_rows(numbers(values), encoding.max_bucket, validity(values), out)
            if pa.types.is_floating(values.type):
                fill_missing(values, MISSING_ROW, out)
        case ModuloEncoding() as encoding:
            in_runs(values, out, partial(modulo_rows, encoding))
        case VocabularyEncoding():
            assert index is not None
            index.write_rows(as_vocabulary_values(values, field), out)


def modulo_rows(encoding: ModuloEncoding, values: pa.Array, out: np.ndarray) -> None:
    """Write 2 + x mod modulus of integers [n], the missing id for nulls."""
    # uint64 keeps its type: its values need not fit int64, and are not negative.
    kind = np.uint64 if values.type == pa.uint64() else np.int64
    out[:] = numbers(values).astype(kind) % encoding.modulus + FIRST_VALUE_ROW
    fill_missing(values, MISSING_ROW, out)


def hash_rows(values: pa.Array, encoding: HashEncoding, out: np.ndarray) -> None:
    """Write 2 + hash mod modulus of strings or integers [n], the missing id for nulls."""
    valid, seed, modulus = validity(values), encoding.seed, encoding.modulus
    if pa.types.is_integer(values.type):
        _core.hashed_int64_rows(as_int64(values), valid, seed, modulus, out)
    else:
        offsets, data = string_bytes(values)
        _core.hashed_string_rows(offsets, data, valid, seed, modulus, out)


def encode_dense(
    feature: DenseFeature, encoder: _core.ValueEncoder, values: pa.Array, out: np.ndarray
) -> None:
    """Write the standardised values [n] of a plain array, which may hold nulls, into `out` [n]."""

    def standardise(run: pa.Array, into: np.ndarray) -> None:
        encoder.standardise(numbers(run).astype(np.float64), into)
        fill_missing(run, feature.fill, into)

    in_runs(as_reals(values), out, standardise)


def field_encoder(field: CategoricalFeature, index: VocabularyIndex | None) -> _core.ValueEncoder:
    """What gives a field's ids to single values."""
    match field.encoding:
        case HashEncoding() as encoding:
            return _core.hash_encoder(encoding.seed, encoding.modulus)
        case LogBucketEncoding() as encoding:
            return bucket_encoder(encoding.max_bucket)
        case ModuloEncoding() as encoding:
            return _core.modulo_encoder(encoding.modulus)
        case VocabularyEncoding():
            assert index is not None
            return index.encoder


def dense_encoder(feature: DenseFeature) -> _core.ValueEncoder:
    """What standardises single values of a dense feature."""
    log1p = feature.transform == "log1p"
    return _core.dense_encoder(log1p, feature.mean, feature.std, feature.fill)


def fill_missing(values: pa.Array, fill: float, out: np.ndarray) -> None:
    """Write `fill` where values [n] are missing."""
    absent = missing(values)
    if absent is not None:
        out[absent] = fill


def as_field_values(values: pa.Array, field: CategoricalFeature) -> pa.Array:
    """The strings, or the integers of numbers of any type, NaN as null.

    Raises EncodeError for a number that is no whole one.
    """
    if field.values == "string":
        return as_text(values)
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), None, values)
    found = whole_numbers(values)
    if len(found.others):
        raise EncodeError(
            f"column {field.column}: holds {values[int(found.others[0])]}, which is no whole "
            f"number of type {values.type}; field {field.name} is made of these alone"
        )
    return found.integers


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


def _inside(rows: np.ndarray, table_rows: int) -> bool:
    return len(rows) == 0 or (rows.min() >= 0 and bool(rows.max() < table_rows))


def _build_indexes(
    schema: FeatureSchema, vocabularies: Mapping[str, pa.Array]
) -> dict[str, VocabularyIndex]:
    indexes = {}
    for field in schema.fields:
        if not isinstance(field.encoding, VocabularyEncoding):
            continue
        size, numbering = field.encoding.size, field.encoding.numbering
        if size is None:
            raise SchemaError(f"field {field.name}: its vocabulary is not fitted: run fit_schema")
        if field.name not in vocabularies:
            raise SchemaError(f"field {field.name}: its vocabulary of {size} values is not given")
        vocabulary, value_rows = vocabulary_parts(vocabularies[field.name])
        expected = pa.string() if field.values == "string" else pa.int64()
        if len(vocabulary) != size or vocabulary.type != expected:
            raise SchemaError(
                f"field {field.name}: the schema needs {size} values of type {expected}, "
                f"the vocabulary has {len(vocabulary)} of type {vocabulary.type}"
            )
        if (value_rows is None) != (numbering is None):
            raise SchemaError(
                f"field {field.name}: a vocabulary has rows where its encoding has a numbering, "
                "and only there"
            )
        if numbering and value_rows is not None and not _inside(value_rows, numbering.rows):
            raise SchemaError(
                f"field {field.name}: rows of values must be in 0..{numbering.rows - 1}, "
                f"got {value_rows.min()} to {value_rows.max()}"
            )
        indexes[field.name] = VocabularyIndex(vocabulary, value_rows, numbering)
    return indexes
