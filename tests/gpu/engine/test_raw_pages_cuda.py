"""Raw columns as parquet files store them, decoded to codes on the GPU: those of the reader that
encodes on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cuda_cases import cuda_engine, large_model

from dpiframe_core import _core
from dpiframe_core.features import Encoder, fit_schema
from dpiframe_core.features.datasets import avazu_schema, criteo_schema
from pipeline.data.convert import ConvertOptions, convert
from pipeline.data.synth import SynthOptions, synth

Decode = Callable[[_core.ColumnPages, np.ndarray], np.ndarray | None]
NAMES = ["words", "texts", "count", "words"]
ENCODERS = [
    _core.hash_encoder(7, 1_000_003),
    _core.hash_encoder(0, 1000),
    _core.bucket_encoder(-3, np.arange(2, 9, dtype=np.int32), np.array([100, 1000])),
    _core.hash_encoder(1, 2**31 - 3),
]


@pytest.fixture(name="decode", scope="module")
def _decode() -> Iterator[Decode]:
    engine = cuda_engine(large_model("wdl"), max_batch=64, threads=1)
    scorers: dict[int, _core.PageScorer] = {}

    def decode(stored: _core.ColumnPages, memory: np.ndarray) -> np.ndarray | None:
        make = lambda: _core.PageScorer(engine._native, engine._ring, stored.columns, 0, 1)  # noqa: E731
        scorer = scorers.get(stored.columns) or scorers.setdefault(stored.columns, make())
        out = np.full((stored.columns, stored.rows), -7, np.int32)
        why = scorer.decode(stored, memory, out.reshape(-1).view(np.uint8))
        print(why)
        return None if why else out

    yield decode
    scorers.clear()
    engine.close()


def stored_pages(
    path: Path, names: list[str], encoders: list[_core.ValueEncoder]
) -> tuple[_core.ColumnPages, np.ndarray, np.ndarray]:
    """The pages, the memory they are in, and the codes [columns, rows] that the CPU gives."""
    file = _core.ParquetFile(str(path))
    groups = (0, len(file.group_rows))
    memory = np.zeros(file.encoded_pages_bytes(names, *groups, encoders), np.uint8)
    stored = file.read_encoded_pages(names, *groups, encoders, memory)
    wanted = np.full((len(names), sum(file.group_rows)), -7, np.int32)
    file.read_encoded(names, *groups, encoders, list(wanted))
    return stored, memory, wanted


def table_of(rows: int, nulls: float, seed: int = 0) -> pa.Table:
    """Texts of eight bytes, texts of 0 to 70, and integers, in runs and one by one."""
    random = np.random.default_rng(seed)
    words = np.char.mod("%08x", random.integers(0, 5000, rows))
    lengths = np.where(np.arange(rows) // 500 % 2, random.integers(0, 71, rows), 7)
    texts = ["abcdefghij"[n % 10] * n for n in lengths.tolist()]
    count = np.repeat(random.integers(-9, 3000, rows), random.integers(1, 40, rows))[:rows]

    def absent() -> np.ndarray:
        runs = np.repeat(random.random(rows) < nulls, random.integers(1, 30, rows))[:rows]
        return np.where(np.arange(rows) // 3000 % 2, runs, random.random(rows) < nulls)

    columns = {"words": words, "texts": texts, "count": count}
    kinds = [pa.string(), pa.string(), pa.int32()]
    arrays = zip(columns, columns.values(), kinds, strict=True)
    return pa.table({name: pa.array(each, kind, mask=absent()) for name, each, kind in arrays})


@pytest.mark.parametrize("nulls", [0, 0.01, 0.4, 1])
@pytest.mark.parametrize("rows", [1, 31, 1023, 1024, 1025, 4097, 65_537])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "none"},
        {"compression": "snappy", "data_page_version": "2.0"},
        {"compression": "lz4", "use_dictionary": False},
        {"use_dictionary": False, "data_page_version": "2.0"},
        {"use_dictionary": False, "data_page_size": 1 << 20, "write_batch_size": 1 << 20},
        {"dictionary_pagesize_limit": 3000, "data_page_size": 3000, "write_batch_size": 64},
    ],
)
def test_codes_are_those_of_the_cpu(
    decode: Decode, tmp_path: Path, rows: int, options: dict[str, Any], nulls: float
) -> None:
    path = tmp_path / "raw.parquet"
    options = {"compression": "zstd", "row_group_size": 30_000} | options
    pq.write_table(table_of(rows, nulls), path, **options)
    stored, memory, wanted = stored_pages(path, NAMES, ENCODERS)

    np.testing.assert_array_equal(decode(stored, memory), wanted)


@pytest.mark.parametrize("dataset", ["criteo", "avazu"])
@pytest.mark.parametrize("written", ["published", "synth", "pyarrow"])
def test_rows_of_the_data_sets(
    decode: Decode, tmp_path: Path, shared_data: Path, dataset: str, written: str
) -> None:
    folder = tmp_path / "rows"
    if written == "published":
        source = next(shared_data.glob(f"{dataset}_*.[ct]sv"))
        convert(ConvertOptions(dataset=dataset, inputs=(source,), output=folder))  # type: ignore[arg-type]
    else:
        synth(SynthOptions(dataset=dataset, output=folder, rows=300_000))  # type: ignore[arg-type]
    (path,) = folder.glob("*.parquet")
    table = pq.read_table(path)
    if written == "pyarrow":
        pq.write_table(table, path)
    made = {"categoricals": "hash", "modulus": 999_983}
    schema = criteo_schema("buckets", **made) if dataset == "criteo" else avazu_schema(**made)
    fields, _ = Encoder(*fit_schema(schema, [table])).value_encoders

    stored, memory, wanted = stored_pages(path, [f.column for f in schema.fields], fields)

    np.testing.assert_array_equal(decode(stored, memory), wanted)


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_damaged_pages_are_refused_or_as_on_the_host(
    decode: Decode, tmp_path: Path, compression: str
) -> None:
    path = tmp_path / "raw.parquet"
    pq.write_table(table_of(6000, 0.3), path, compression=compression, row_group_size=2500)
    stored, whole, wanted = stored_pages(path, NAMES, ENCODERS)
    random = np.random.default_rng(7)
    refused = 0
    for _ in range(300):
        memory = whole.copy()
        places = random.integers(0, stored.compressed_bytes, random.integers(1, 20))
        memory[places] = random.integers(0, 256, len(places))
        host: np.ndarray | None = np.full_like(wanted, -7)
        try:
            stored.decode(memory, host)
        except ValueError:
            host = None
        found = decode(stored, memory)
        refused += found is None
        if found is not None:
            assert host is not None, "the GPU takes what the host refuses"
            np.testing.assert_array_equal(found, host)

    assert refused > 20
    np.testing.assert_array_equal(decode(stored, whole), wanted)
