"""Numbers of other types than the model takes: decimals, booleans, whole numbers as floats."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_cases import (
    encoded_table,
    read_scores,
    reference_scores,
    score_here,
    tiny_bundle,
    unit_of,
    worker_plan,
)
from model_zoo import random_model

from dpiframe_core import FieldSpec, save_bundle
from dpiframe_core.features import CategoricalFeature, Encoder, FeatureSchema
from dpiframe_core.features.schema import HashEncoding, ModuloEncoding
from dpiframe_core.model.builtin import Deep, Features, wdl
from pipeline.planning.columns import Columns
from pipeline.reading.reader import read_unit
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_data import UnitColumns

FIELD, DENSE = "C2", "I1"


def written(folder: Path, column: str, values: pa.Array, **how: Any) -> pa.Table:
    """Rows of the tiny model whose column holds these values."""
    (folder / "input").mkdir()
    table = encoded_table(len(values))
    table = table.set_column(table.schema.get_field_index(column), column, values)
    pq.write_table(table, folder / "input/a.parquet", row_group_size=19, **how)
    return table


def numbers(kind: pa.DataType, numbers: list[float]) -> pa.Array:
    return pa.array(map(Decimal, numbers) if pa.types.is_decimal(kind) else np.array(numbers), kind)


EIGHTHS = [i % 7 / 8 - 0.25 for i in range(111)]
IDS = [i % 3 for i in range(111)]


@pytest.mark.parametrize("as_integers", [False, True])  # as Spark writes decimals, or parquet-mr
@pytest.mark.parametrize(
    "kind",
    [pa.decimal32(9, 3), pa.decimal128(9, 3), pa.decimal128(18, 3), pa.decimal128(38, 10)],
    ids=str,
)
def test_decimals_are_dense_features(tmp_path: Path, kind: pa.DataType, as_integers: bool) -> None:
    model = tiny_bundle(tmp_path / "bundle")
    table = written(tmp_path, DENSE, numbers(kind, EIGHTHS), store_decimal_as_integer=as_integers)
    score_here(tmp_path, carry_columns=[DENSE])
    scores, at = read_scores(tmp_path / "output"), table.schema.get_field_index(DENSE)
    assert scores.column(DENSE).to_pylist() == table.column(DENSE).to_pylist()
    expected = reference_scores(model, table.set_column(at, DENSE, numbers(pa.float32(), EIGHTHS)))
    np.testing.assert_allclose(scores.column("score").to_numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    "values",
    [
        numbers(pa.float16(), EIGHTHS),
        pa.array([i % 3 == 0 for i in range(111)]),
        pa.array([2**64 - 1 - i for i in range(111)], pa.uint64()),
    ],
    ids=lambda values: str(values.type),
)
def test_other_numbers_are_dense_features(tmp_path: Path, values: pa.Array) -> None:
    model = tiny_bundle(tmp_path / "bundle")
    table = written(tmp_path, DENSE, values)
    score_here(tmp_path)
    at, plain = table.schema.get_field_index(DENSE), np.array(values.to_pylist(), np.float32)
    expected = reference_scores(model, table.set_column(at, DENSE, pa.array(plain)))
    scores = read_scores(tmp_path / "output").column("score").to_numpy()
    np.testing.assert_allclose(scores, expected, atol=1e-5)


@pytest.mark.parametrize(
    "kind",
    [pa.decimal128(38, 0), pa.decimal128(18, 0), pa.decimal128(38, 10), pa.float64(), pa.float16()],
    ids=str,
)
def test_ids_may_be_whole_numbers_of_any_type(tmp_path: Path, kind: pa.DataType) -> None:
    """Spark and Oracle write ids as decimals, pandas as floats where some are null."""
    model = tiny_bundle(tmp_path / "bundle")
    table = written(tmp_path, FIELD, numbers(kind, IDS))
    score_here(tmp_path)
    at = table.schema.get_field_index(FIELD)
    expected = reference_scores(model, table.set_column(at, FIELD, numbers(pa.int64(), IDS)))
    scores = read_scores(tmp_path / "output").column("score").to_numpy()
    np.testing.assert_allclose(scores, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("bad", "kind", "text"),
    [
        (0.5, pa.float64(), "0.5"),
        (float("nan"), pa.float64(), "nan"),
        (float("inf"), pa.float32(), "inf"),
        (2.0**24 + 2, pa.float32(), "16777218"),  # 2^24 + 1 is stored so, too
        (2.0**63, pa.float64(), "9.223372036854776e+18"),
        (Decimal("1.5"), pa.decimal128(38, 10), "1.5000000000"),
        (Decimal(2**64 + 1), pa.decimal128(38, 0), str(2**64 + 1)),
    ],
)
def test_other_numbers_are_no_ids(tmp_path: Path, bad: Any, kind: pa.DataType, text: str) -> None:
    tiny_bundle(tmp_path / "bundle")
    values = [bad if i == 20 else type(bad)(1) for i in range(111)]
    written(tmp_path, FIELD, pa.array(values, kind))
    score_here(tmp_path, on_bad_row="reject", max_rejected_fraction=0.1)
    scores = read_scores(tmp_path / "output").column("score")
    assert np.flatnonzero(scores.is_null()).tolist() == [20]
    (part,) = (tmp_path / "output/_rejected").iterdir()
    (row,) = pq.read_table(part).to_pylist()
    assert (row["column"], row["value"], row["reason"]) == (FIELD, text, "id is no whole number")
    assert row["source_row"] == 20


@pytest.mark.parametrize("pages", [False, True])
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.decimal128(38, 0), pa.bool_()])
def test_raw_whole_numbers_of_other_types(tmp_path: Path, kind: pa.DataType, pages: bool) -> None:
    """No reader takes the bits of a float for those of an integer."""
    columns = {"hashed": HashEncoding(modulus=97), "modulo": ModuloEncoding(modulus=5)}
    fields = tuple(
        CategoricalFeature(name=name, column=name, values="integer", encoding=encoding)
        for name, encoding in columns.items()
    )
    schema = FeatureSchema(dataset="d", fields=fields)
    features = [FieldSpec(name=field.name, rows=field.rows, dim=4) for field in fields]
    model = random_model(wdl(Features(features, []), Deep(hidden=(5,))))
    digest = save_bundle(tmp_path / "b", model.spec, model.state_dict(), schema).digest
    integers = [i % 2 for i in range(111)]
    values = numbers(kind, integers) if kind != pa.bool_() else pa.array(map(bool, integers))
    pq.write_table(pa.table(dict.fromkeys(["key", *columns], values)), tmp_path / "a.parquet")

    found = read_unit(
        unit_of(tmp_path / "a.parquet", 0, 1, 0, 111),
        worker_plan(
            Columns(
                form="raw", key_columns=("key",), carry_columns=(), source_columns=tuple(columns)
            ),
            str(tmp_path / "b"),
            digest,
        ),
        UnitBuffer(),
        pages,
    )

    assert isinstance(found, UnitColumns) and found.facts.read_by == "arrow"
    expected = Encoder(schema).encode(pa.table(dict.fromkeys(columns, integers)))
    np.testing.assert_array_equal(found.ids, expected.ids)
