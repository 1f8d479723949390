"""Reading: units ready for the engine, rows in order, faults by kind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_cases import unit_of, worker_plan
from model_zoo import random_model

from dpiframe_core import FieldSpec, save_bundle
from dpiframe_core.features import CategoricalFeature, DenseFeature, Encoder, FeatureSchema
from dpiframe_core.features.schema import HashEncoding, VocabularyEncoding
from dpiframe_core.model.builtin import Deep, Features, wdl
from pipeline.errors import UnitFailedError
from pipeline.planning.columns import Columns
from pipeline.planning.units import Unit
from pipeline.reading.arrow_file import dictionaries
from pipeline.reading.reader import read_unit
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_data import UnitColumns


def shard(path: Path, rows: int = 111, group: int = 19) -> pa.Table:
    words = [None if i % 7 == 0 else f"w{i % 5}" for i in range(rows)]
    table = pa.table({"key": np.arange(rows), "word": words, "more": np.ones(rows)})
    pq.write_table(table, path, row_group_size=group)
    return table


def read(unit: Unit, bundle: str = "", digest: str = "", **columns: Any) -> UnitColumns:
    uses: dict[str, Any] = {"form": "encoded", "key_columns": ("key",), "carry_columns": ()}
    plan = worker_plan(Columns(**uses | columns), bundle, digest)
    return read_unit(unit, plan, UnitBuffer())


def error_of(unit: Unit, **columns: Any) -> tuple[str, str]:
    """Kind and message."""
    with pytest.raises(UnitFailedError) as error:
        read(unit, **columns)
    return error.value.kind, str(error.value)


@pytest.mark.parametrize(("first", "stop", "rows"), [(0, 1, 19), (1, 4, 57), (5, 6, 16)])
def test_a_unit_has_its_rows_in_order(tmp_path: Path, first: int, stop: int, rows: int) -> None:
    table = shard(tmp_path / "s.parquet")
    unit = unit_of(tmp_path / "s.parquet", first, stop, first * 19, rows)

    found = read(unit, id_columns=("key",), dense_columns=("more",), carry_columns=("word",))

    expected = table.select(["key", "word"]).slice(first * 19, rows)
    assert found.published.equals(expected)
    assert found.ids[0].tolist() == expected.column("key").to_pylist()
    assert found.dense[0].dtype == np.float32 and found.dense[0].tolist() == [1.0] * rows
    assert (len(found.facts.group_rows), sum(found.facts.group_rows)) == (stop - first, rows)
    assert found.findings == []


def raw_bundle(folder: Path) -> tuple[FeatureSchema, str]:
    """A bundle of a hashed string and a dense number; its schema and digest."""
    word = CategoricalFeature(name="W", column="word", encoding=HashEncoding(modulus=11))
    dense = DenseFeature(name="N", column="more", mean=1.0, std=2.0)
    schema = FeatureSchema(dataset="words", fields=(word,), dense=(dense,))
    features = Features([FieldSpec(name="W", rows=word.rows, dim=4)], ["N"], "raw")
    model = random_model(wdl(features, Deep(hidden=(5,))))
    bundle = save_bundle(folder, model.spec, model.state_dict(), schema)
    return schema, bundle.digest


def test_raw_columns_are_encoded_where_they_are_read(tmp_path: Path) -> None:
    schema, digest = raw_bundle(tmp_path / "bundle")
    table = shard(tmp_path / "s.parquet")
    unit = unit_of(tmp_path / "s.parquet", 1, 4, 19, 57)
    columns = {"form": "raw", "source_columns": schema.source_columns}

    found = read(unit, bundle=str(tmp_path / "bundle"), digest=digest, **columns)

    expected = Encoder(schema).encode(table.slice(19, 57))
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.dense, expected.dense)
    assert found.published.column_names == ["key"]
    assert found.facts.read_by == "cpu"


def test_a_raw_dense_value_that_is_not_finite_is_told(tmp_path: Path) -> None:
    schema, digest = raw_bundle(tmp_path / "bundle")
    table = pa.table({"key": [1, 2], "word": ["a", "b"], "more": [np.nan, -np.inf]})
    pq.write_table(table, tmp_path / "s.parquet")
    unit = unit_of(tmp_path / "s.parquet", 0, 1, 0, 2)
    columns = {"form": "raw", "source_columns": schema.source_columns}

    found = read(unit, bundle=str(tmp_path / "bundle"), digest=digest, **columns)

    assert [(each.column, each.rows.tolist()) for each in found.findings] == [("more", [1])]
    assert found.findings[0].values.to_pylist() == ["-inf"] and found.facts.read_by == "arrow"


def test_a_bundle_that_is_not_the_planned_one_is_an_outcome(tmp_path: Path) -> None:
    _, digest = raw_bundle(tmp_path / "bundle")
    shard(tmp_path / "s.parquet")
    unit = unit_of(tmp_path / "s.parquet", 0, 1, 0, 19)
    columns = {"form": "raw", "source_columns": ("word", "more")}

    other = error_of(unit, bundle=str(tmp_path / "bundle"), digest="0" * 64, **columns)
    (tmp_path / "bundle/model.json").write_text("{}")
    changed = error_of(unit, bundle=str(tmp_path / "bundle"), digest=digest, **columns)

    assert (other[0], changed[0]) == ("bundle", "bundle")
    assert f"expected {'0' * 64}" in other[1] and "model.json has 2 bytes" in changed[1]


def test_a_value_that_no_vocabulary_can_hold_is_a_bad_row(tmp_path: Path) -> None:
    encoding = VocabularyEncoding(size=1)
    field = CategoricalFeature(name="W", column="key", values="integer", encoding=encoding)
    schema = FeatureSchema(dataset="numbers", fields=(field,))
    features = Features([FieldSpec(name="W", rows=field.rows, dim=4)], [], "raw")
    model = random_model(wdl(features, Deep(hidden=(5,))))
    weights, vocabularies = model.state_dict(), {"W": pa.array([5])}
    bundle = save_bundle(tmp_path / "bundle", model.spec, weights, schema, vocabularies)
    pq.write_table(pa.table({"key": pa.array([5, 2**64 - 1], pa.uint64())}), tmp_path / "s.parquet")
    unit = unit_of(tmp_path / "s.parquet", 0, 1, 0, 2)

    where, digest = str(tmp_path / "bundle"), bundle.digest
    kind, message = error_of(unit, bundle=where, digest=digest, form="raw", source_columns=("key",))

    assert kind == "bad_row" and "s.parquet: column key: " in message


def test_dictionaries_are_kept_where_they_save_work(tmp_path: Path) -> None:
    few, many = [f"{i % 19:08x}" for i in range(2000)], [f"{i:08x}" for i in range(2000)]
    table = pa.table({"number": np.arange(2000), "few": few, "many": many})
    pq.write_table(table, tmp_path / "s.parquet", row_group_size=1000)

    kept = dictionaries(pq.read_metadata(tmp_path / "s.parquet"), [0, 1], table.column_names)

    assert kept == ["few"]


def test_a_read_task_does_not_import_torch() -> None:
    code = "import sys, pipeline.reading.reader; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code]).returncode == 0


def test_a_removed_file_is_an_outcome(tmp_path: Path) -> None:
    shard(tmp_path / "s.parquet")
    unit = unit_of(tmp_path / "s.parquet", 0, 1, 0, 19)
    (tmp_path / "s.parquet").unlink()

    kind, message = error_of(unit)

    assert kind == "removed"
    assert str(tmp_path / "s.parquet") in message


def test_a_changed_file_is_an_outcome(tmp_path: Path) -> None:
    shard(tmp_path / "s.parquet")
    unit = unit_of(tmp_path / "s.parquet", 0, 1, 0, 19)
    os.utime(tmp_path / "s.parquet", ns=(1, 1))

    assert error_of(unit)[0] == "changed"


def test_a_corrupt_page_is_an_outcome(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    shard(path)
    start = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 40] = b"\xff" * 40
    path.write_bytes(content)

    kind, message = error_of(unit_of(path, 1, 2, 19, 19))

    assert kind == "corrupt"
    assert "row groups 1 to 1" in message


def test_a_page_that_its_checksum_disproves_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    table = pa.table({"key": np.arange(111)})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    column = pq.read_metadata(path).row_group(0).column(0)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)

    kind, message = error_of(unit_of(path, 0, 1, 0, 111))

    assert kind == "corrupt"
    assert "CRC" in message
