"""The scorer, called as the actor pool calls it: scores, rejected rows, errors as outcomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from job_cases import (
    encoded_table,
    job_keys,
    outcomes,
    read_scores,
    reference_scores,
    score_here,
    tiny_bundle,
    tiny_spec,
    with_value,
)
from model_zoo import random_model

from dpiframe_core import CTRModel, FieldSpec, save_bundle
from dpiframe_core.features import Encoder, FeatureSchema
from dpiframe_core.features.schema import CategoricalFeature, DenseFeature, HashEncoding
from dpiframe_core.model.builtin import Deep, Features, wdl
from pipeline.config.job import JobConfig
from pipeline.planning.plan import make_plan
from pipeline.publishing.records import Manifest, UnitError


def write(folder: Path, table: pa.Table, group: int = 19) -> None:
    (folder / "input").mkdir(exist_ok=True)
    # Without statistics the planner cannot see bad values: they are found while scoring.
    pq.write_table(table, folder / "input/a.parquet", row_group_size=group, write_statistics=False)


def first_error(folder: Path, **keys: Any) -> UnitError:
    plan = make_plan(JobConfig.model_validate(job_keys(folder, **keys)))
    errors = [outcome for outcome in outcomes(plan) if isinstance(outcome, UnitError)]
    return errors[0]


@pytest.mark.parametrize("rows", [1, 19, 111])
def test_scores_are_those_of_the_torch_model_in_order(tmp_path: Path, rows: int) -> None:
    model = tiny_bundle(tmp_path / "bundle")
    table = encoded_table(rows)
    write(tmp_path, table)

    score_here(tmp_path, unit_rows=40)

    found = read_scores(tmp_path / "output")
    assert found.column_names == ["row_id", "label", "score"]
    assert found.schema.field("score").type == pa.float32()
    assert found.column("row_id").equals(table.column("row_id"))
    assert found.column("label").equals(table.column("label"))
    expected = reference_scores(model, table)
    np.testing.assert_allclose(found.column("score").to_numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.uint32(), pa.int64(), pa.uint64()])
def test_every_integer_type_scores_alike(tmp_path: Path, kind: pa.DataType) -> None:
    tiny_bundle(tmp_path / "bundle")
    table = encoded_table(111)
    write(tmp_path, table)
    score_here(tmp_path)
    expected = read_scores(tmp_path / "output")
    index = table.schema.get_field_index("C3")
    write(tmp_path, table.set_column(index, "C3", table.column("C3").cast(kind)))

    score_here(tmp_path, output=str(tmp_path / "again"))

    assert read_scores(tmp_path / "again").equals(expected)


BAD = [
    ("row_id", None, "null key", None),
    ("C2", None, "null id", None),
    ("C2", -1, "id outside its table of 7 rows", "-1"),
    ("C2", 7, "id outside its table of 7 rows", "7"),
    ("I2", None, "null dense value", None),
    ("I2", float("inf"), "dense value is not finite", "inf"),
    ("I2", float("nan"), "dense value is not finite", "nan"),
]


@pytest.mark.parametrize(("column", "value", "reason", "text"), BAD)
def test_a_bad_row_stops_the_job_and_is_named(
    tmp_path: Path, column: str, value: Any, reason: str, text: str | None
) -> None:
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path, with_value(encoded_table(111), column, 60, value))

    error = first_error(tmp_path, unit_rows=40)

    assert error.kind == "bad_row"
    shown = "null" if text is None else repr(text)
    where = f"a.parquet, row group 3, row 60 of the file: column {column!r} holds {shown}: {reason}"
    assert where in error.message
    assert not list((tmp_path / "output").glob(f"*{error.unit}*"))


@pytest.mark.parametrize(("column", "value", "reason", "text"), BAD)
def test_a_bad_row_can_be_rejected(
    tmp_path: Path, column: str, value: Any, reason: str, text: str | None
) -> None:
    model = tiny_bundle(tmp_path / "bundle")
    table = encoded_table(111)
    write(tmp_path, with_value(table, column, 60, value))

    manifest = score_here(tmp_path, unit_rows=40, on_bad_row="reject", max_rejected_fraction=0.1)

    assert (manifest.rows, manifest.scored, manifest.rejected) == (111, 110, 1)
    scores = read_scores(tmp_path / "output").column("score").to_pylist()
    assert [row for row, score in enumerate(scores) if score is None] == [60]
    good = np.delete(np.array(scores, dtype=float), 60)
    np.testing.assert_allclose(good, np.delete(reference_scores(model, table), 60), atol=1e-5)
    (rejected,) = rejected_rows(manifest)
    assert (rejected["column"], rejected["value"]) == (column, text)
    assert (rejected["row"], rejected["source_row"]) == (60 - 38, 60)
    assert rejected["reason"].startswith(reason)


def rejected_rows(manifest: Manifest) -> list[dict[str, Any]]:
    output = Path(manifest.config["output"])
    parts = [output / r.rejected_part for r in manifest.units if r.rejected_part]
    return [row for part in parts for row in pq.read_table(part).to_pylist()]


def test_many_bad_rows_are_listed_once_each(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    table = with_value(encoded_table(111), "C2", 5, 99)
    table = with_value(with_value(table, "I1", 5, float("inf")), "C4", 110, None)
    write(tmp_path, table)

    manifest = score_here(tmp_path, on_bad_row="reject", max_rejected_fraction=0.1)

    rows = [(row["row"], row["column"]) for row in rejected_rows(manifest)]
    assert rows == [(5, "C2"), (110, "C4")]


def test_statistics_of_a_unit_are_those_of_its_scores(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path, encoded_table(111))

    (record,) = score_here(tmp_path).units

    scores = read_scores(tmp_path / "output").column("score").to_numpy()
    logits = np.log(scores) - np.log1p(-scores)
    edges = np.concatenate([[-np.inf], np.linspace(-10, 10, 201), [np.inf]])
    assert record.score_min == scores.min()
    assert record.score_max == scores.max()
    assert record.score_sum == pytest.approx(scores.sum(dtype=np.float64))
    assert sum(record.score_histogram) == 111
    counts = np.histogram(logits, edges)[0]
    # A logit on an edge may fall on either side of it.
    assert np.abs(np.cumsum(counts) - np.cumsum(record.score_histogram)).max() <= 1


def test_a_changed_bundle_is_an_outcome(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path, encoded_table(19))
    plan = make_plan(JobConfig.model_validate(job_keys(tmp_path)))
    tampered = tmp_path / "bundle/weights.safetensors"
    tampered.write_bytes(tampered.read_bytes()[:-1] + b"\0")

    (error,) = outcomes(plan)

    assert isinstance(error, UnitError)
    assert error.kind == "bundle"


def raw_table(rows: int) -> pa.Table:
    """Raw rows: a string with nulls that is also a carried column, an integer with nulls."""
    words = [None if i % 7 == 0 else f"w{i % 13}" for i in range(rows)]
    counts = pa.array([None if i % 5 == 0 else i - 3 for i in range(rows)], pa.int32())
    return pa.table({"id": np.arange(rows, dtype=np.uint64), "word": words, "count": counts})


def test_the_raw_form_is_encoded_by_the_schema_of_the_bundle(tmp_path: Path) -> None:
    word = CategoricalFeature(name="W", column="word", encoding=HashEncoding(modulus=11))
    schema = FeatureSchema(
        dataset="words",
        key_columns=("id",),
        fields=(word,),
        dense=(DenseFeature(name="N", column="count", mean=1.0, std=2.0),),
    )
    features = Features([FieldSpec(name="W", rows=word.rows, dim=4)], ["N"], "raw")
    model = random_model(wdl(features, Deep(hidden=(5,))))
    save_bundle(tmp_path / "bundle", model.spec, model.state_dict(), schema)
    table = raw_table(111)
    write(tmp_path, table)

    score_here(tmp_path, key_columns=[], carry_columns=["word"], unit_rows=40)

    found = read_scores(tmp_path / "output")
    assert found.select(["id", "word"]).equals(table.select(["id", "word"]))
    encoded = Encoder(schema).encode(table)
    with torch.no_grad():
        ids = torch.from_numpy(np.stack(encoded.ids)).long()
        logits = model(ids, torch.from_numpy(np.stack(encoded.dense)))
    expected = torch.sigmoid(logits).numpy()
    np.testing.assert_allclose(found.column("score").to_numpy(), expected, atol=1e-5)


def endless_bundle(path: Path) -> CTRModel:
    """The tiny model, where C1 takes any whole number and C2 any that is not negative."""
    spec = tiny_spec()
    periods = {"C1": lambda f: f.rows, "C2": lambda f: f.rows - 2}
    fields = [
        f.model_copy(update={"period": periods[f.name](f)}) if f.name in periods else f
        for f in spec.fields
    ]
    model = random_model(spec.model_copy(update={"fields": tuple(fields)}))
    save_bundle(path, model.spec, model.state_dict())
    return model


@pytest.mark.parametrize("statistics", [False, True])
def test_ids_of_fields_with_a_period_have_no_end(tmp_path: Path, statistics: bool) -> None:
    model = endless_bundle(tmp_path / "bundle")
    table = encoded_table(111)
    random = np.random.default_rng(7)
    for name, least in (("C1", -(2**62)), ("C2", 0)):
        ids = pa.array(random.integers(least, 2**62, len(table)))
        table = table.set_column(table.schema.get_field_index(name), name, ids)
    (tmp_path / "input").mkdir()
    pq.write_table(table, tmp_path / "input/a.parquet", write_statistics=statistics)

    score_here(tmp_path)

    found = read_scores(tmp_path / "output")
    np.testing.assert_allclose(
        found.column("score").to_numpy(), reference_scores(model, table), atol=1e-5
    )


@pytest.mark.parametrize("column", ["C2", "C3"])
def test_a_bad_id_beside_ids_without_an_end_is_rejected_alone(tmp_path: Path, column: str) -> None:
    endless_bundle(tmp_path / "bundle")
    table = with_value(encoded_table(40), column, 9, -5)
    index = table.schema.get_field_index("C1")
    table = table.set_column(index, "C1", pa.array(np.arange(40) - 2**40))
    write(tmp_path, table)

    manifest = score_here(tmp_path, on_bad_row="reject", max_rejected_fraction=0.1)

    (rejected,) = rejected_rows(manifest)
    assert (rejected["row"], rejected["column"], rejected["value"]) == (9, column, "-5")
