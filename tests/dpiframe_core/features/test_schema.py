"""Feature schemas: row numbering, JSON, what is refused, vocabularies as tensors."""

import math

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError
from safetensors.numpy import load, save

from dpiframe_core.features import (
    CategoricalFeature,
    DenseFeature,
    FeatureSchema,
    SchemaError,
    avazu_schema,
    criteo_schema,
    fit_schema,
    vocabulary_from_tensors,
    vocabulary_to_tensors,
)
from dpiframe_core.features.numeric import log_bucket_rows
from dpiframe_core.features.schema import LogBucketEncoding


def test_criteo_has_39_fields_or_13_dense_and_26():
    one_hot = criteo_schema(modulus=1000)
    assert [f.name for f in one_hot.fields[:14]] == [*(f"I{i}" for i in range(1, 14)), "C1"]
    assert len(one_hot.fields) == 39 and one_hot.dense == ()
    assert one_hot.fields[-1].rows == 1002 and one_hot.fields[0].rows == 308
    mixed = criteo_schema("dense")
    assert len(mixed.fields) == 26 and [d.name for d in mixed.dense][-1] == "I13"
    assert mixed.source_columns == one_hot.source_columns


def test_avazu_has_22_fields_and_takes_the_hour_of_day():
    schema = avazu_schema(modulus=1000)
    assert len(schema.fields) == 22 and schema.key_columns == ("id",)
    assert schema.fields[0].encoding.kind == "modulo" and schema.fields[0].rows == 102


def test_modulus_for_each_field():
    moduli = {f"C{i}": i for i in range(1, 27)}
    assert [f.rows for f in criteo_schema("dense", modulus=moduli).fields] == list(range(3, 29))
    del moduli["C7"]
    with pytest.raises(SchemaError, match=r"missing \['C7'\], unknown \['C99'\]"):
        criteo_schema(modulus={**moduli, "C99": 5})


@pytest.mark.parametrize(
    "schema",
    [criteo_schema(), criteo_schema("dense", "vocabulary"), avazu_schema("vocabulary")],
    ids=["hash", "vocabulary", "avazu"],
)
def test_json_round_trip(schema):
    assert FeatureSchema.model_validate_json(schema.model_dump_json()) == schema


def test_fitted_means_survive_json_exactly():
    schema = criteo_schema("dense")
    rows = {name: pa.array(np.arange(19) * 7) for name in schema.source_columns[:13]}
    rows |= {name: pa.array(["0a0b0c0d"] * 19) for name in schema.source_columns[13:]}
    fitted, _ = fit_schema(schema, [pa.table(rows)])
    assert FeatureSchema.model_validate_json(fitted.model_dump_json()) == fitted


def test_unknown_keys_are_refused():
    with pytest.raises(ValidationError, match="min_cout"):
        CategoricalFeature.model_validate(
            {"name": "C1", "column": "C1", "encoding": {"kind": "vocabulary", "min_cout": 3}}
        )


def test_names_must_differ_and_log_buckets_need_integers():
    dense = DenseFeature(name="a", column="a")
    with pytest.raises(ValidationError, match="repeated: a"):
        FeatureSchema(dataset="d", dense=(dense, dense))
    with pytest.raises(ValidationError, match="log_bucket needs values: integer"):
        CategoricalFeature(name="a", column="a", encoding=LogBucketEncoding())


def test_rows_of_an_unfitted_vocabulary():
    schema = criteo_schema(categoricals="vocabulary")
    assert not schema.is_fitted
    with pytest.raises(SchemaError, match=r"field C1: .*fit_schema"):
        _ = schema.fields[13].rows


def test_check_names_missing_columns_and_wrong_types():
    schema = criteo_schema()
    columns = {name: pa.int32() for name in schema.source_columns[:13]}
    columns |= {name: pa.string() for name in schema.source_columns[13:]}
    assert schema.check(pa.schema(columns)) == []
    columns["C2"] = pa.int64()
    columns["I3"] = pa.string()
    columns["C26x"] = columns.pop("C26")
    assert schema.check(pa.schema(columns)) == [
        "column I3: type is string, expected an integer, floating-point, decimal or boolean type",
        "column C2: type is int64, expected string or binary, or a dictionary of these",
        "column C26: missing (nearest is C26x)",
    ]


def _bucket(x: int, max_bucket: int) -> int:
    if x <= 2:
        return max(x, -3) + 3
    return 5 + min(math.floor(math.log(x) ** 2), max_bucket)


@pytest.mark.parametrize("max_bucket", [1, 40, 300])
def test_log_buckets_follow_the_formula(max_bucket):
    near_table_end = range(2**14 - 3, 2**14 + 3)
    values = [*range(-9, 111), *near_table_end, 10**6, 2**31 - 1, -(2**31), 2**62]
    rows = log_bucket_rows(np.array(values), max_bucket)
    assert rows.tolist() == [2 + _bucket(x, max_bucket) for x in values]
    assert rows.max() < LogBucketEncoding(max_bucket=max_bucket).rows
    assert rows.dtype == np.int32


def test_vocabularies_survive_safetensors():
    vocabularies = {
        "C.1": pa.array(["ä", "0123456789", "b"]),
        "hour": pa.array([14102100, -5, 2**62]),
        "none": pa.array([], pa.string()),
        "sliced": pa.array(["x", "yy", "zzz"]).slice(1),
    }
    tensors = load(save(vocabulary_to_tensors(vocabularies)))
    assert vocabulary_from_tensors({**tensors, "weight": np.zeros(3)}) == vocabularies


@pytest.mark.parametrize(
    ("offsets", "text"),
    [([0, 1], "ab"), ([0, 2, 1, 2], "ab"), ([1, 2], "ab"), ([0, 1, 2], "aa"), ([], "")],
    ids=["short", "falling", "late", "repeated", "none"],
)
def test_broken_vocabulary_tensors_are_refused(offsets, text):
    tensors = {
        "vocabulary.C1.offsets": np.array(offsets, np.int64),
        "vocabulary.C1.bytes": np.frombuffer(text.encode(), np.uint8),
    }
    with pytest.raises(SchemaError, match=r"vocabulary\.C1"):
        vocabulary_from_tensors(tensors)
    with pytest.raises(SchemaError, match=r"vocabulary\.C1"):
        vocabulary_from_tensors({"vocabulary.C1.offsets": np.array([0, 1])})
