"""Raw columns encoded from the page have the codes that the encoder gives to pyarrow's columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from column_pages import decode
from parquet_by_hand import v1, varint, zigzag
from parquet_by_hand import write as write_by_hand

from dpiframe_core import _core
from dpiframe_core.features import (
    CategoricalFeature,
    DenseFeature,
    Encoder,
    FeatureSchema,
    fit_schema,
)
from dpiframe_core.features.schema import (
    Encoding,
    HashEncoding,
    LogBucketEncoding,
    ModuloEncoding,
    VocabularyEncoding,
)

WORDS = np.array(
    ["", "a", "0a1b2c3d", "another", "ffffffff", "grün", "x" * 40, *map(str, range(300))]
)


def column(random: np.random.Generator, kind: pa.DataType, rows: int) -> pa.Array:
    """Values of a type, of few or of many kinds, with nulls or without."""
    few = random.random() < 0.5
    if pa.types.is_string(kind):
        texts = WORDS if few else random.bytes(8 * rows).hex()
        values: Any = random.choice(WORDS, rows) if few else [texts[i : i + 9] for i in range(rows)]
    elif pa.types.is_floating(kind):
        values = random.choice([-7.5, 0.0, -0.0, 2.99, 1e30, -1e30, np.nan, 3.0], rows)
        values = values if few else random.normal(0, 1e4, rows)
        values = values.astype(kind.to_pandas_dtype())
    else:
        bits = np.iinfo(kind.to_pandas_dtype())
        low, high = (max(-5, bits.min), 100) if few else (bits.min, bits.max)
        values = random.integers(low, high, rows, endpoint=True, dtype=kind.to_pandas_dtype())
    chance = float(random.choice([0, 0.01, 0.5, 1.0]))
    return pa.array(values, kind, mask=random.random(rows) < chance)


def schema_for(kind: pa.DataType, words: pa.Array) -> tuple[FeatureSchema, dict[str, pa.Array]]:
    """Every feature that such a column can be, and its vocabularies."""
    encodings: list[Encoding] = []
    values = "string" if pa.types.is_string(kind) else "integer"
    if not pa.types.is_floating(kind):
        encodings += [HashEncoding(modulus=1000, seed=7), VocabularyEncoding(size=len(words))]
    if values == "integer":
        encodings.append(LogBucketEncoding(max_bucket=90))
    if pa.types.is_integer(kind):
        encodings.append(ModuloEncoding(modulus=97))
    fields = tuple(
        CategoricalFeature(name=each.kind, column="raw", values=values, encoding=each)  # type: ignore[arg-type]
        for each in encodings
    )
    dense = [
        DenseFeature(name="dense", column="raw", mean=1.25, std=3.0, fill=-0.5),
        DenseFeature(name="plain", column="raw", transform="none"),
    ]
    dense = [] if values == "string" else dense
    schema = FeatureSchema(dataset="made", fields=fields, dense=tuple(dense))
    return schema, {"vocabulary": words}


def vocabulary(values: pa.Array) -> pa.Array:
    """Half of the values that occur."""
    known = values.unique().drop_null()
    known = known.take(pa.array(range(0, len(known), 2), pa.int64()))
    return known if pa.types.is_string(values.type) else known.cast(pa.int64())


def encoded(
    path: Path, encoder: Encoder, groups: tuple[int, int]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Ids and dense features by the native reader."""
    file = _core.ParquetFile(str(path))
    fields, dense = encoder.value_encoders
    rows = sum(file.group_rows[slice(*groups)])
    ids = [np.full(rows, -7, np.int32) for _ in fields]
    numbers = [np.full(rows, -7, np.float32) for _ in dense]
    assert file.is_encodable("raw", *groups)
    encoders, outs = [*fields, *dense], [*ids, *numbers]
    file.read_encoded(["raw"] * len(outs), *groups, encoders, outs)
    return ids, numbers


def by_pages(
    path: Path,
    encoders: list[_core.ValueEncoder],
    groups: tuple[int, int],
    spare: int = 0,
    unpack_above: int | None = None,
) -> np.ndarray:
    """The codes that a GPU gives, by the portable form of its kernels."""
    file, names = _core.ParquetFile(str(path)), ["raw"] * len(encoders)
    memory = np.empty(file.encoded_pages_bytes(names, *groups, encoders) + spare, np.uint8)
    stored = file.read_encoded_pages(names, *groups, encoders, memory, unpack_above)
    return decode(stored, memory[: stored.compressed_bytes + 64].copy())


def test_several_columns_in_one_call(tmp_path: Path) -> None:
    path = tmp_path / "raw.parquet"
    pq.write_table(pa.table({"a": ["x", "y", None], "b": [3, 4, 5]}), path)
    encoders = [_core.hash_encoder(0, 9), _core.modulo_encoder(9), _core.hash_encoder(5, 9)]
    names, file = ["a", "b", "a"], _core.ParquetFile(str(path))
    together = [np.empty(3, np.int32) for _ in names]
    file.read_encoded(names, 0, 1, encoders, together)
    for name, encoder, found in zip(names, encoders, together, strict=True):
        alone = np.empty(3, np.int32)
        file.read_encoded([name], 0, 1, [encoder], [alone])
        np.testing.assert_array_equal(found, alone)
    with pytest.raises(ValueError, match="2 names and 3 encoders, but 3 arrays"):
        file.read_encoded(names[:2], 0, 1, encoders, together)


@pytest.mark.parametrize("categoricals", ["hash", "vocabulary"])
@pytest.mark.parametrize("odd", [None, "", "1234567", "123456789"])
def test_texts_of_eight_bytes_beside_others(
    tmp_path: Path, odd: str | None, categoricals: str
) -> None:
    texts = [f"{n:08x}" for n in range(1111)]
    texts[700] = odd
    table = pa.table({"raw": texts})
    path = tmp_path / "raw.parquet"
    pq.write_table(table, path, use_dictionary=False)
    encoding = {"kind": categoricals} | ({"modulus": 977} if categoricals == "hash" else {})
    field = {"name": "f", "column": "raw", "values": "string", "encoding": encoding}
    schema = FeatureSchema.model_validate(
        {"dataset": "x", "key_columns": [], "fields": [field], "dense": []}
    )
    encoder = Encoder(*fit_schema(schema, [table]))

    (found,), _ = encoded(path, encoder, (0, 1))

    np.testing.assert_array_equal(found, encoder.encode(table).ids[0])
    np.testing.assert_array_equal(by_pages(path, encoder.value_encoders[0], (0, 1))[0], found)


def others(kind: pa.DataType) -> list[str]:
    """Encodings of values of a type beside PLAIN."""
    if pa.types.is_string(kind):
        return ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
    return ["BYTE_STREAM_SPLIT"] if pa.types.is_floating(kind) else ["DELTA_BINARY_PACKED"]


KINDS = [
    pa.string(),
    pa.int8(),
    pa.int32(),
    pa.int64(),
    pa.uint16(),
    pa.uint32(),
    pa.float32(),
    pa.float64(),
]


@pytest.mark.parametrize("seed", range(64))
def test_random_columns(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    kind, rows = KINDS[seed % len(KINDS)], int(random.choice([1, 19, 111, 3000]))
    values = column(random, kind, rows)
    words = pa.array([], pa.int64()) if pa.types.is_floating(kind) else vocabulary(values)
    schema, vocabularies = schema_for(kind, words)
    encoder = Encoder(schema, vocabularies)
    path = tmp_path / "raw.parquet"
    nullable = values.null_count > 0 or random.random() < 0.5
    encoding = str(random.choice(["DICTIONARY", "PLAIN", *others(kind)]))
    pq.write_table(
        pa.table([values], schema=pa.schema([pa.field("raw", kind, nullable=nullable)])),
        path,
        row_group_size=int(random.choice([rows, 700])),
        data_page_size=int(random.choice([1, 100, 1 << 20])),
        data_page_version=str(random.choice(["1.0", "2.0"])),
        use_dictionary=encoding == "DICTIONARY",
        column_encoding=None if encoding == "DICTIONARY" else encoding,
        dictionary_pagesize_limit=int(random.choice([100, 1 << 20])),
        compression=str(random.choice(["zstd", "snappy", "none"])),
        write_batch_size=int(random.choice([3, 64, 1024])),
    )
    with np.errstate(over="ignore"):
        wanted = encoder.encode(pq.read_table(path))

    groups = (0, pq.ParquetFile(path).metadata.num_row_groups)
    ids, dense = encoded(path, encoder, groups)

    np.testing.assert_array_equal(ids, wanted.ids)
    fields, _ = encoder.value_encoders
    if fields:
        np.testing.assert_array_equal(by_pages(path, fields, groups), wanted.ids)
        unpacked = by_pages(path, fields, groups, spare=1_000_000, unpack_above=0)
        np.testing.assert_array_equal(unpacked, wanted.ids)
    for found, right in zip(dense, wanted.dense, strict=True):
        np.testing.assert_array_equal(found.view(np.int32), right.view(np.int32))


def test_texts_that_are_mostly_those_before_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "raw.parquet"
    texts = ["x" * 3000 + str(i) for i in range(100)]
    pq.write_table(
        pa.table({"raw": texts}), path, use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY"
    )

    with pytest.raises(ValueError, match="a page of 100 texts has 300190 bytes"):
        _core.ParquetFile(str(path)).read_encoded(
            ["raw"], 0, 1, [_core.hash_encoder(0, 9)], [np.empty(100, np.int32)]
        )


def deltas(count: int, first: int) -> bytes:
    """DELTA_BINARY_PACKED: one number again and again."""
    return b"".join([varint(1 << 20), varint(4), varint(count), zigzag(first), zigzag(0), bytes(4)])


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (7, deltas(1 << 20, 100) + deltas(1 << 20, 0)),  # each begins with 100 bytes of the last
        (6, deltas((1 << 24) + 1, 0)),
    ],
)
def test_few_bytes_that_stand_for_many_take_no_memory(
    tmp_path: Path, encoding: int, body: bytes
) -> None:
    rows = (1 << 20) if encoding == 7 else (1 << 24) + 1
    path = tmp_path / "raw.parquet"
    text = {1: 6, 6: 0}
    chunk = {1: 6, 2: [encoding]}
    write_by_hand(path, [v1(body, rows, encoding)], rows, element=text, chunk=chunk)
    file = _core.ParquetFile(str(path))

    with pytest.raises(ValueError, match="bytes as PLAIN ones; at most are 67108864"):
        file.read_encoded(["x"], 0, 1, [_core.hash_encoder(0, 9)], [np.empty(rows, np.int32)])


@pytest.mark.parametrize(
    "values",
    [
        pa.array([[1]], pa.list_(pa.int64())),
        pa.array([1], pa.uint64()),
        pa.array([b"x"], pa.binary(1)),
        pa.array([True]),
        pa.array([1], pa.date32()),
    ],
    ids=lambda values: str(values.type),
)
def test_other_columns_are_left_alone(tmp_path: Path, values: pa.Array) -> None:
    path = tmp_path / "raw.parquet"
    pq.write_table(pa.table({"raw": values}), path)

    file = _core.ParquetFile(str(path))
    assert not file.is_encodable("raw", 0, 1)
    with pytest.raises(ValueError, match="column raw holds no raw values that can be read here"):
        file.read_encoded(["raw"], 0, 1, [_core.hash_encoder(0, 9)], [np.empty(1, np.int32)])


def test_bytes_are_texts(tmp_path: Path) -> None:
    texts = pa.array(["a", None, "", "b" * 300, "a"])
    found = []
    for kind in (pa.string(), pa.binary()):
        pq.write_table(pa.table({"raw": texts.cast(kind)}), path := tmp_path / f"{kind}.parquet")
        found.append(np.empty(5, np.int32))
        file = _core.ParquetFile(str(path))
        file.read_encoded(["raw"], 0, 1, [_core.hash_encoder(0, 9)], [found[-1]])
    assert found[0].tolist() == found[1].tolist()


def test_values_that_a_feature_has_no_code_for_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "raw.parquet"
    pq.write_table(pa.table({"raw": ["a"]}), path)

    with pytest.raises(ValueError, match="column raw: the feature takes no strings"):
        _core.ParquetFile(str(path)).read_encoded(
            ["raw"], 0, 1, [_core.modulo_encoder(9)], [np.empty(1, np.int32)]
        )
