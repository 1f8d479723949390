"""The encoder against plain Python, on odd sizes, nulls, unseen values and every column form."""

import csv
from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from xxh64_reference import xxh64

from dpiframe_core.features import (
    CategoricalFeature,
    DenseFeature,
    EncodeError,
    Encoder,
    FeatureSchema,
    SchemaError,
    criteo_schema,
    fit_schema,
)
from dpiframe_core.features.schema import (
    HashEncoding,
    LogBucketEncoding,
    ModuloEncoding,
    VocabularyEncoding,
)

TEXTS = ["68fd1e64", None, "", "a", "ünïcödé", "x" * 37, "68fd1e64", "b" * 300]


def _schema(encoding, values="string", **more):
    field = CategoricalFeature(name="f", column="c", values=values, encoding=encoding)
    return FeatureSchema(dataset="d", fields=(field,), **more)


def _ids(schema, column, vocabularies=None):
    (ids,) = Encoder(schema, vocabularies).encode(pa.table({"c": column})).ids
    assert ids.dtype == np.int32 and ids.flags.c_contiguous
    return ids.tolist()


def _hashed(text, modulus, seed):
    return 2 + xxh64(text.encode(), seed) % modulus if text else 0


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [(b"", 0, 0xEF46DB3751D8E999), (b"a", 0, 0xD24EC4F1A98C6E5B)],
)
def test_the_reference_gives_published_hashes(data, seed, expected):
    assert xxh64(data, seed) == expected


def _forms(texts):
    plain = pa.array(texts, pa.string())
    padded = pa.array(["pad", None, *texts, "end"], pa.string())
    other = pa.array(["none of these", *texts]).dictionary_encode()
    return {
        "plain": plain,
        "large": plain.cast(pa.large_string()),
        "view": plain.cast(pa.string_view()),
        "bytes": plain.cast(pa.binary()),
        "sliced bytes": padded.cast(pa.large_binary()).slice(2, len(texts)),
        "view of bytes": plain.cast(pa.binary()).cast(pa.binary_view()),
        "dictionary of bytes": plain.cast(pa.binary()).dictionary_encode(),
        "sliced view": padded.cast(pa.string_view()).slice(2, len(texts)),
        "dictionary of views": pa.DictionaryArray.from_arrays(
            np.arange(len(texts)), plain.cast(pa.string_view())
        ),
        "sliced": padded.slice(2, len(texts)),
        "dictionary": plain.dictionary_encode(),
        "sliced dictionary": padded.dictionary_encode().slice(2, len(texts)),
        "nulls in the dictionary": plain.dictionary_encode(null_encoding="encode"),
        "chunks": pa.chunked_array([plain.slice(0, 3), plain.slice(3, 0), plain.slice(3)]),
        "differing dictionaries": pa.chunked_array(
            [plain.dictionary_encode().slice(0, 5), other.slice(6)]
        ),
    }


@pytest.mark.parametrize("form", _forms(TEXTS))
@pytest.mark.parametrize(("modulus", "seed"), [(1, 0), (19, 7), (2**31 - 3, 2**63 - 1)])
def test_hashed_strings(form, modulus, seed):
    ids = _ids(_schema(HashEncoding(modulus=modulus, seed=seed)), _forms(TEXTS)[form])
    assert ids == [_hashed(text, modulus, seed) for text in TEXTS]


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int32(), pa.int64(), pa.uint16(), pa.uint64()], ids=str
)
def test_hashed_integers_do_not_depend_on_their_width(kind):
    values = [0, None, 1, 127, 5]
    expected = [0 if v is None else 2 + xxh64(v.to_bytes(8, "little"), 3) % 111 for v in values]
    schema = _schema(HashEncoding(modulus=111, seed=3), "integer")
    assert _ids(schema, pa.array(values, kind)) == expected
    assert _ids(schema, pa.array(values, kind).dictionary_encode()) == expected


def test_hashed_extreme_integers():
    schema = _schema(HashEncoding(modulus=1009), "integer")
    signed = [-1, -(2**63), 2**63 - 1]
    expected = [2 + xxh64(v.to_bytes(8, "little", signed=True)) % 1009 for v in signed]
    assert _ids(schema, pa.array(signed, pa.int64())) == expected
    large = 2**64 - 1
    assert _ids(schema, pa.array([large], pa.uint64())) == expected[:1]


def test_modulo_and_log_buckets():
    values = pa.array([14102123, None, -1, 0, 100], pa.int32())
    assert _ids(_schema(ModuloEncoding(modulus=100), "integer"), values) == [25, 0, 101, 2, 2]
    unsigned = pa.array([2**64 - 1], pa.uint64())
    assert _ids(_schema(ModuloEncoding(modulus=100), "integer"), unsigned) == [17]
    buckets = _schema(LogBucketEncoding(max_bucket=50), "integer")
    assert _ids(buckets, values) == [57, 0, 4, 5, 28]
    assert _ids(buckets, pa.array([3.9, float("nan"), None, 1e300, -2.5])) == [8, 0, 0, 57, 2]


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint8(), pa.int32(), pa.uint64(), pa.float32(), pa.float64()], ids=str
)
def test_log_buckets_and_moduli_take_every_width(kind):
    values = pa.array([0, None, 3, 100, 127], kind)
    buckets = _schema(LogBucketEncoding(max_bucket=50), "integer")
    assert _ids(buckets, values) == [5, 0, 8, 28, 30]
    if pa.types.is_integer(kind):
        assert _ids(_schema(ModuloEncoding(modulus=1000), "integer"), values) == [2, 0, 5, 102, 129]


@pytest.mark.parametrize("form", _forms(TEXTS))
def test_vocabulary(form):
    vocabulary = pa.array(["b" * 300, "68fd1e64", "ünïcödé", "never seen"])
    schema = _schema(VocabularyEncoding(size=4))
    ids = _ids(schema, _forms(TEXTS)[form], {"f": vocabulary})
    assert ids == [3, 0, 0, 1, 4, 1, 3, 2]


@pytest.mark.parametrize("size", [1, 19, 111, 10_007])
def test_large_vocabularies_find_every_value_and_no_other(size):
    numbers = np.random.default_rng(size).permutation(4 * size)[: 2 * size]
    known, unknown = numbers[:size], numbers[size:]
    schema = _schema(VocabularyEncoding(size=size), "integer")
    vocabularies = {"f": pa.array(known)}
    assert _ids(schema, pa.array(known), vocabularies) == list(range(2, 2 + size))
    assert set(_ids(schema, pa.array(unknown), vocabularies)) == {1}
    texts = _schema(VocabularyEncoding(size=size))
    vocabularies = {"f": pa.array(known).cast(pa.string())}
    assert _ids(texts, pa.array(known).cast(pa.string()), vocabularies) == list(range(2, 2 + size))
    assert set(_ids(texts, pa.array(unknown).cast(pa.string()), vocabularies)) == {1}


def test_an_empty_vocabulary_knows_nothing():
    schema = _schema(VocabularyEncoding(size=0))
    assert _ids(schema, pa.array(["a", None]), {"f": pa.array([], pa.string())}) == [1, 0]


@pytest.mark.parametrize("batch_rows", [1, 19, 500])
def test_fitting_counts_values_whatever_the_batches(batch_rows):
    generator = np.random.default_rng(5)
    texts = [f"v{n}" if n else None for n in generator.zipf(1.5, 500) % 90]
    table = pa.table({"c": pa.array([*texts, ""])})
    batches = [table.slice(i, batch_rows) for i in range(0, len(table), batch_rows)]
    batches[0] = pa.table({"c": batches[0]["c"].dictionary_encode()})
    fitted, vocabularies = fit_schema(_schema(VocabularyEncoding(min_count=3)), batches)
    counts = Counter(t for t in texts if t)
    expected = sorted((t for t in counts if counts[t] >= 3), key=lambda t: (-counts[t], t))
    assert vocabularies["f"].to_pylist() == expected
    assert fitted.fields[0].rows == 2 + len(expected) and fitted.is_fitted


def test_dense_features_are_standardised_and_filled():
    values = np.array([0, 5, -3, 1_000_000, 7, 0], np.int64)
    column = pa.array([*values.tolist(), None])
    dense = (DenseFeature(name="x", column="c"), DenseFeature(name="y", column="c", fill=-1.5))
    schema, _ = fit_schema(
        FeatureSchema(dataset="d", dense=dense),
        [pa.table({"c": column.slice(0, 2)}), pa.table({"c": column.slice(2)})],
    )
    encoded = Encoder(schema).encode(pa.table({"c": column}))
    logs = np.sign(values) * np.log1p(np.abs(values))
    # float32 keeps 24 bits of a value of a few units
    expected = (logs - logs.mean()) / logs.std()
    np.testing.assert_allclose(encoded.dense[0][:-1], expected, atol=1e-6)
    assert encoded.dense[0].dtype == np.float32
    assert encoded.dense[0][-1] == 0.0 and encoded.dense[1][-1] == -1.5


def test_constant_and_absent_dense_features_stay_finite():
    dense = (DenseFeature(name="x", column="c"), DenseFeature(name="y", column="none"))
    table = pa.table({"c": pa.array([4, 4, 4]), "none": pa.nulls(3)})
    schema, _ = fit_schema(FeatureSchema(dataset="d", dense=dense), [table])
    encoded = Encoder(schema).encode(table)
    assert [column.tolist() for column in encoded.dense] == [[0, 0, 0], [0, 0, 0]]


def test_zero_rows():
    assert _ids(_schema(HashEncoding(modulus=5)), pa.array([], pa.string())) == []
    with pytest.raises(SchemaError, match="no rows"):
        fit_schema(_schema(VocabularyEncoding()), [])


def test_wrong_types_name_column_found_and_expected():
    with pytest.raises(EncodeError, match=r"column c: type is int64, expected string"):
        _ids(_schema(HashEncoding(modulus=5)), pa.array([1]))
    with pytest.raises(EncodeError, match=r"column c: type is string, expected whole numbers"):
        _ids(_schema(HashEncoding(modulus=5), "integer"), pa.array(["1"]))
    with pytest.raises(EncodeError, match=r"column c: missing"):
        Encoder(_schema(HashEncoding(modulus=5))).encode(pa.table({"d": [1]}))
    with pytest.raises(EncodeError, match=r"column c: .*int64"):
        schema = _schema(VocabularyEncoding(size=1), "integer")
        _ids(schema, pa.array([2**64 - 1], pa.uint64()), {"f": pa.array([1])})


@pytest.mark.parametrize(
    "encoding",
    [
        HashEncoding(modulus=97),
        ModuloEncoding(modulus=7),
        LogBucketEncoding(),
        VocabularyEncoding(),
    ],
    ids=lambda encoding: encoding.kind,
)
@pytest.mark.parametrize(
    "kind",
    [pa.float64(), pa.float32(), pa.decimal128(6, 2), pa.decimal128(38, 10), pa.decimal256(50, 0)],
    ids=str,
)
def test_whole_numbers_of_another_type_are_encoded_as_integers(encoding, kind):
    """Spark and Oracle write integers as decimals, pandas as floats where some are null."""
    numbers = [3, None, -7, 1234, 0, 3, -1]
    integers = pa.array(numbers, pa.int64())
    if pa.types.is_floating(kind):
        others = pa.array([np.nan if x is None else x for x in numbers], kind)
    else:
        others = pa.array([None if x is None else Decimal(x) for x in numbers], kind)
    schema, values = fit_schema(_schema(encoding, "integer"), [pa.table({"c": integers})])
    again = fit_schema(_schema(encoding, "integer"), [pa.table({"c": others})])
    assert again == (schema, values)
    assert _ids(schema, others, values) == _ids(schema, integers, values)
    assert _ids(schema, others.dictionary_encode(), values) == _ids(schema, integers, values)


def test_log_buckets_of_decimals_are_those_of_the_integers_below():
    parts = ["2.0000000000000000001", "2.9999999999999999999", "-2.0000000000000000001"]
    column = pa.array(map(Decimal, parts), pa.decimal128(38, 19))
    schema = _schema(LogBucketEncoding(), "integer")
    assert _ids(schema, column) == _ids(schema, pa.array([2, 2, -3]))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (pa.array([1.0, 1.5]), "1.5"),
        (pa.array([1.0, np.inf]), "inf"),
        (pa.array([2.0**53 + 2]), "9007199254740994.0"),
        (pa.array([Decimal(2**63)], pa.decimal128(38, 0)), "9223372036854775808"),
        (pa.array([Decimal("0.01")], pa.decimal32(5, 2)), "0.01"),
    ],
)
def test_numbers_that_are_not_whole_are_told(column, value):
    with pytest.raises(EncodeError, match=rf"column c: holds {value}, which is no whole number"):
        _ids(_schema(HashEncoding(modulus=5), "integer"), column)


@pytest.mark.parametrize("kind", [pa.decimal64(9, 3), pa.decimal128(38, 3), pa.decimal256(60, 3)])
def test_decimals_and_booleans_are_dense_features(kind):
    numbers = pa.array([1.5, None, -0.125, 1234.5])
    yes = pa.array([True, None, False, True])
    dense = (DenseFeature(name="a", column="a"), DenseFeature(name="b", column="b"))
    schema = FeatureSchema(dataset="d", dense=dense)
    as_floats = pa.table({"a": numbers, "b": yes.cast(pa.int8())})
    as_written = pa.table({"a": numbers.cast(kind), "b": yes})
    fitted, _ = fit_schema(schema, [as_floats])
    assert fit_schema(schema, [as_written])[0] == fitted
    expected, found = Encoder(fitted).encode(as_floats), Encoder(fitted).encode(as_written)
    np.testing.assert_array_equal(found.dense, expected.dense)


def test_vocabularies_must_be_those_of_the_schema():
    schema = _schema(VocabularyEncoding(size=2))
    with pytest.raises(SchemaError, match="field f: its vocabulary of 2 values is not given"):
        Encoder(schema)
    with pytest.raises(SchemaError, match=r"needs 2 values of type string, .* has 1 of type int64"):
        Encoder(schema, {"f": pa.array([1])})
    with pytest.raises(SchemaError, match="values must differ, got 1 of 2"):
        Encoder(schema, {"f": pa.array(["a", "a"])})


def test_real_criteo_rows_against_plain_python(criteo_tsv):
    names = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    with criteo_tsv.open() as file:
        rows = list(csv.reader(file, delimiter="\t"))
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    integers = {n: pa.array([int(v) if v else None for v in columns[n]]) for n in names[1:14]}
    table = pa.table({**integers, **{n: pa.array(columns[n]) for n in names[14:]}})
    schema, vocabularies = fit_schema(
        criteo_schema("dense", "vocabulary", min_count=4), table.to_batches(max_chunksize=1111)
    )
    encoded = Encoder(schema, vocabularies).encode(table)
    for field, ids in zip(schema.fields, encoded.ids, strict=True):
        counts = Counter(v for v in columns[field.column] if v)
        kept = sorted((v for v in counts if counts[v] >= 4), key=lambda v: (-counts[v], v))
        row_of = {"": 0, **{v: 2 + i for i, v in enumerate(kept)}}
        assert ids.tolist() == [row_of.get(v, 1) for v in columns[field.column]]
        assert ids.max() < field.rows


@pytest.mark.parametrize(("count", "codes"), [(128, pa.int8()), (256, pa.uint8()), (3, pa.int64())])
def test_a_dictionary_may_fill_its_index_type(count, codes):
    values = [f"v{i}" for i in range(count)]
    column = pa.DictionaryArray.from_arrays(
        pa.array([None, *range(count)], codes), pa.array(values)
    )
    field = CategoricalFeature(name="f", column="c", encoding=HashEncoding(modulus=97))
    encoder = Encoder(FeatureSchema(dataset="x", fields=(field,)))
    expected = [0, *(2 + xxh64(value.encode(), 0) % 97 for value in values)]
    assert encoder.encode(pa.table({"c": column})).ids[0].tolist() == expected
