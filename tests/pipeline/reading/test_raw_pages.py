"""Raw units whose columns stay pages for a GPU, by the portable form of its kernels: the codes of
the reader that encodes, or that reader takes the unit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from column_pages import decode
from job_cases import damage, unit_of, worker_plan
from model_zoo import random_model

from dpiframe_core import FieldSpec, _core, save_bundle
from dpiframe_core.bundle.reading import Bundle
from dpiframe_core.features import CategoricalFeature, DenseFeature, Encoder, FeatureSchema
from dpiframe_core.features.datasets import avazu_schema, criteo_schema
from dpiframe_core.features.fit import fit_schema
from dpiframe_core.features.schema import HashEncoding, LogBucketEncoding
from dpiframe_core.model.builtin import Deep, Features, wdl
from pipeline.data.convert import ConvertOptions, convert
from pipeline.errors import UnitFailedError
from pipeline.planning.columns import Columns
from pipeline.planning.job_plan import WorkerPlan
from pipeline.planning.units import Unit
from pipeline.reading.joined import join_pages
from pipeline.reading.reader import read_unit
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_data import UnitColumns, UnitPages
from pipeline.reading.unpacking import ANY_PAGES, Unpacking

SCHEMA = FeatureSchema(
    dataset="made",
    fields=(
        CategoricalFeature(name="W", column="word", encoding=HashEncoding(modulus=101)),
        CategoricalFeature(name="V", column="word", encoding=HashEncoding(modulus=7, seed=3)),
        CategoricalFeature(
            name="C", column="count", values="integer", encoding=LogBucketEncoding(max_bucket=9)
        ),
    ),
    dense=(DenseFeature(name="N", column="count", mean=1.0, std=2.0),),
)


def table_of(rows: int, first: int = 0) -> pa.Table:
    random = np.random.default_rng(first)
    texts = np.array([*(f"{n:08x}" for n in range(50)), "", "short", "x" * 40], object)
    words = pa.array(random.choice(texts, rows), mask=random.random(rows) < 0.1)
    counts = pa.array(random.integers(-3, 2000, rows), pa.int32(), mask=random.random(rows) < 0.4)
    return pa.table({"key": np.arange(first, first + rows), "word": words, "count": counts})


@pytest.fixture(name="plan", scope="module")
def _plan(tmp_path_factory: pytest.TempPathFactory) -> WorkerPlan:
    folder = tmp_path_factory.mktemp("raw") / "bundle"
    fields = [FieldSpec(name=each.name, rows=each.rows, dim=4) for each in SCHEMA.fields]
    model = random_model(wdl(Features(fields, ["N"], "raw"), Deep(hidden=(5,))))
    bundle: Bundle = save_bundle(folder, model.spec, model.state_dict(), SCHEMA)
    columns = Columns(
        form="raw", key_columns=("key",), carry_columns=(), source_columns=SCHEMA.source_columns
    )
    return worker_plan(columns, str(folder), bundle.digest)


def written(path: Path, table: pa.Table, **options: Any) -> Unit:
    pq.write_table(table, path, **{"compression": "zstd", "row_group_size": 1500} | options)
    groups = pq.read_metadata(path).num_row_groups
    return unit_of(path, 0, groups, 0, table.num_rows)


def as_pages(unit: Unit, plan: WorkerPlan, unpacking: Unpacking | None = None) -> UnitPages:
    found = read_unit(unit, plan, UnitBuffer(unpacking=unpacking), pages=True)
    assert isinstance(found, UnitPages), found.facts
    return found


@pytest.mark.parametrize("compression", ["zstd", "snappy", "lz4", "none"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_codes_are_those_of_the_encoder(
    tmp_path: Path, plan: WorkerPlan, compression: str, dictionary: bool, version: str
) -> None:
    table = table_of(4001)
    options = {"use_dictionary": dictionary, "data_page_version": version}
    unit = written(tmp_path / "a.parquet", table, compression=compression, **options)

    found = as_pages(unit, plan)

    expected = Encoder(SCHEMA).encode(table)
    np.testing.assert_array_equal(decode(found.ids, found.memory), expected.ids)
    np.testing.assert_array_equal(found.dense, expected.dense)
    assert found.published.equals(table.select(["key"]))
    assert found.facts.read_by == "gpu"
    unpacked = as_pages(unit, plan, ANY_PAGES)
    np.testing.assert_array_equal(decode(unpacked.ids, unpacked.memory.copy()), expected.ids)
    more = unpacked.ids.compressed_bytes - found.ids.compressed_bytes
    if version == "1.0":  # in version 2 a page that would be no smaller is not compressed
        assert (more > 0) == (compression != "none")


def test_files_of_a_joined_unit(tmp_path: Path, plan: WorkerPlan) -> None:
    tables = [table_of(rows, first=rows) for rows in (19, 1111, 7)]
    units = [written(tmp_path / str(i), table) for i, table in enumerate(tables)]

    found = join_pages([as_pages(unit, plan) for unit in units], UnitBuffer())

    expected = Encoder(SCHEMA).encode(pa.concat_tables(tables).combine_chunks())
    np.testing.assert_array_equal(decode(found.ids, found.memory.copy()), expected.ids)
    np.testing.assert_array_equal(found.dense, expected.dense)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_other_units_are_encoded_by_the_reader(
    tmp_path: Path, plan: WorkerPlan, compression: str
) -> None:
    table = table_of(100)
    if compression == "zstd":  # a null key
        table = table.set_column(0, "key", pa.array([None, *range(99)], pa.int64()))

    unit = written(tmp_path / "a.parquet", table, compression=compression)
    found = read_unit(unit, plan, UnitBuffer(), pages=True)

    assert isinstance(found, UnitColumns)
    assert found.facts.read_by == "cpu"
    np.testing.assert_array_equal(found.ids, Encoder(SCHEMA).encode(table).ids)


def test_a_damaged_page_is_told_with_its_place(tmp_path: Path, plan: WorkerPlan) -> None:
    path = tmp_path / "a.parquet"
    written(path, table_of(30_000), row_group_size=15_000)
    damage(path, group=1, column=1)
    unit = unit_of(path, 0, 2, 0, 30_000)

    found = as_pages(unit, plan)  # whoever decodes it finds out

    with pytest.raises(ValueError, match=r"corrupt|does not decompress"):
        decode(found.ids, found.memory)
    with pytest.raises(UnitFailedError, match=r"corrupt parquet: .*a\.parquet") as error:
        read_unit(unit, plan, UnitBuffer())
    assert error.value.kind == "corrupt"


@pytest.mark.parametrize("dataset", ["criteo", "avazu"])
@pytest.mark.parametrize("categoricals", ["hash", "vocabulary"])
def test_real_rows(tmp_path: Path, shared_data: Path, dataset: str, categoricals: str) -> None:
    source = next(shared_data.glob(f"{dataset}_*.[ct]sv"))
    convert(ConvertOptions(dataset=dataset, inputs=(source,), output=tmp_path / "rows"))  # type: ignore[arg-type]
    (path,) = (tmp_path / "rows").glob("*.parquet")
    table = pq.read_table(path)
    made = {"modulus": 1000, "categoricals": categoricals}
    schema = criteo_schema("buckets", **made) if dataset == "criteo" else avazu_schema(**made)
    encoder = Encoder(*fit_schema(schema, [table]))

    pq.write_table(table, tmp_path / "again", row_group_size=3000)  # snappy
    for each in (path, tmp_path / "again"):
        names = [field.column for field in schema.fields]
        file = _core.ParquetFile(str(each))
        groups = (0, len(file.group_rows))
        encoders, _ = encoder.value_encoders
        memory = np.empty(file.encoded_pages_bytes(names, *groups, encoders), np.uint8)
        stored = file.read_encoded_pages(names, *groups, encoders, memory)
        np.testing.assert_array_equal(decode(stored, memory), encoder.encode(table).ids)
