"""Encoded list columns: whole jobs against the engine on lists padded row by row, and bad rows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_cases import job_keys, outcomes, read_scores, score_here
from list_models import (
    HISTORY,
    ROWS,
    list_bundle,
    list_spec,
    list_table,
    model_inputs,
    random_lists,
)

from dpiframe_core import load_engine
from dpiframe_core.features import CategoricalFeature, DenseFeature, Encoder, FeatureSchema
from dpiframe_core.features.schema import Elements, HashEncoding
from dpiframe_core.model.builtin import Deep, Features, deepfm
from pipeline.config.job import JobConfig
from pipeline.errors import ConfigError, ContractError
from pipeline.planning.plan import make_plan
from pipeline.publishing.records import OutputLayout
from pipeline.scoring.dry_run import describe_plan, output_state

LIST_TYPES = [
    pa.list_(pa.int64()),
    pa.large_list(pa.uint8()),
    pa.list_(pa.uint32()),
    pa.list_(pa.int16()),
    pa.list_view(pa.int32()),
    pa.large_list_view(pa.uint64()),
]


def write(folder: Path, *tables: pa.Table, group: int = 19) -> None:
    (folder / "input").mkdir(parents=True, exist_ok=True)
    for i, table in enumerate(tables):
        pq.write_table(table, folder / f"input/{i}.parquet", row_group_size=group)


def refused(folder: Path, **keys: Any) -> str:
    with pytest.raises((ContractError, ConfigError)) as error:
        make_plan(JobConfig.model_validate(job_keys(folder, **keys)))
    return str(error.value)


def with_history(rows: int, history: list[Any], kind: pa.DataType) -> pa.Table:
    filled = [*history, *[[1, 2, 3]] * (rows - len(history))]
    return list_table(rows, history=pa.array(filled, kind))


@pytest.mark.parametrize("side", ["behind", "before"])
@pytest.mark.parametrize("keep", ["first", "last"])
def test_scores_are_the_engines_of_padded_lists(tmp_path: Path, side: str, keep: str) -> None:
    spec = list_spec(side, keep)
    list_bundle(tmp_path / "bundle", spec)
    tables = [list_table(rows, seed=rows) for rows in (111, 1, 40)]
    write(tmp_path, *tables)

    manifest = score_here(tmp_path, unit_rows=40)

    table = pa.concat_tables(tables)
    expected = load_engine(tmp_path / "bundle", device="cpu").score(*model_inputs(spec, table))
    scores = read_scores(tmp_path / "output").column("score").to_numpy()
    np.testing.assert_allclose(scores, expected, atol=1e-6)  # batches of other sizes round apart
    assert {unit.read_by for unit in manifest.units} == {"cpu"}


@pytest.mark.parametrize("kind", LIST_TYPES, ids=str)
def test_lists_of_every_type(tmp_path: Path, kind: pa.DataType) -> None:
    spec = list_spec()
    list_bundle(tmp_path / "bundle", spec)
    table = list_table(60)
    history = pa.array(table.column("history").to_pylist(), kind)
    write(tmp_path, table.set_column(3, "history", history))

    score_here(tmp_path)

    expected = load_engine(tmp_path / "bundle", device="cpu").score(*model_inputs(spec, table))
    scores = read_scores(tmp_path / "output").column("score").to_numpy()
    np.testing.assert_allclose(scores, expected, atol=1e-6)


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.null()), pa.large_list(pa.null()), pa.null()], ids=str
)
@pytest.mark.parametrize("column", ["history", "prices"])
def test_files_without_any_element(tmp_path: Path, column: str, kind: pa.DataType) -> None:
    """What a writer makes of empty lists that say no type, beside a file that has elements."""
    list_bundle(tmp_path / "bundle", list_spec())
    lists = [None if pa.types.is_null(kind) or row % 2 else [] for row in range(19)]
    empty, usual = pa.array(lists, kind), list_table(19, seed=7)
    typed = empty.cast(usual.schema.field(column).type)
    outputs = []
    for name, first in (("typed", typed), ("untyped", empty)):
        shutil.rmtree(tmp_path / "input", ignore_errors=True)
        write(tmp_path, list_table(19, seed=3, **{column: first}), usual)
        score_here(tmp_path, output=str(tmp_path / name))
        outputs.append(read_scores(tmp_path / name))
    assert outputs[0] == outputs[1] and outputs[0].column("score").null_count == 0


@pytest.mark.parametrize("size", [2, 5, 7])
def test_lists_of_a_fixed_size(tmp_path: Path, size: int) -> None:
    spec = list_spec("before", "last")
    list_bundle(tmp_path / "bundle", spec)
    values = np.random.default_rng(size).integers(0, ROWS, 40 * size)
    table = list_table(40, history=pa.FixedSizeListArray.from_arrays(values, size))
    write(tmp_path, table)

    score_here(tmp_path)

    expected = load_engine(tmp_path / "bundle", device="cpu").score(*model_inputs(spec, table))
    scores = read_scores(tmp_path / "output").column("score").to_numpy()
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_null_rows_of_fixed_size_lists_are_empty_lists(tmp_path: Path) -> None:
    spec = list_spec()
    list_bundle(tmp_path / "bundle", spec)
    table = list_table(3, history=pa.array([[1], None, [2]], pa.list_(pa.int64(), 1)))
    write(tmp_path, table)

    score_here(tmp_path)

    expected = load_engine(tmp_path / "bundle", device="cpu").score(*model_inputs(spec, table))
    scores = read_scores(tmp_path / "output").column("score").to_numpy()
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_null_rows_of_fixed_size_lists_that_pyarrow_reads_are_told(tmp_path: Path) -> None:
    list_bundle(tmp_path / "bundle", list_spec())
    write(tmp_path, list_table(3, history=pa.array([[1], None, [2]], pa.list_(pa.uint64(), 1))))

    (outcome,) = outcomes(make_plan(JobConfig.model_validate(job_keys(tmp_path))))
    assert "write such a column as list" in outcome.message


def rejected(folder: Path, **keys: Any) -> list[tuple[int, str, str | None, str]]:
    """Row, column, value and reason of each rejected row."""
    score_here(folder, on_bad_row="reject", max_rejected_fraction=1.0, **keys)
    parts = sorted(OutputLayout(folder / "output").rejected.glob("*.parquet"))
    rows = pa.concat_tables([pq.read_table(part) for part in parts]).to_pylist()
    return [(row["row"], row["column"], row["value"], row["reason"]) for row in rows]


def test_a_null_in_a_list_is_a_bad_row_where_it_counts(tmp_path: Path) -> None:
    list_bundle(tmp_path / "bundle", list_spec())
    beyond = [1, 2, 3, 4, 5, None]
    write(tmp_path, with_history(40, [[1, None], [], beyond, None], pa.list_(pa.int32())))

    assert rejected(tmp_path) == [(0, "history", None, "null in a list")]
    scores = read_scores(tmp_path / "output").column("score")
    assert scores.is_null().to_pylist() == [True] + [False] * 39


@pytest.mark.parametrize(
    ("side", "keep", "short", "long"),
    [
        ("behind", "first", "clicks[1]", "clicks[2]"),
        ("before", "last", "clicks[-2]", "clicks[-4]"),
        ("before", "first", "clicks[3 of 5 padded]", "clicks[2 of 5 padded]"),
    ],
)
def test_an_id_outside_its_table_is_named_by_its_position(
    tmp_path: Path, side: str, keep: str, short: str, long: str
) -> None:
    list_bundle(tmp_path / "bundle", list_spec(side, keep))
    lists = [[1], [1, 77, 3], [9, 9, -5, 9, 9, 9]]
    kind = pa.list_(pa.int64())
    table = with_history(40, lists, kind).rename_columns({"history": "clicks"})
    write(tmp_path, table)

    found = rejected(tmp_path, field_columns={"history": "clicks"})

    reason = "id outside its table of 19 rows (valid: 0 to 18)"
    assert found == [(1, short, "77", reason), (2, long, "-5", reason)]


def test_ids_beyond_the_length_are_not_read(tmp_path: Path) -> None:
    list_bundle(tmp_path / "bundle", list_spec())
    write(tmp_path, with_history(40, [[1, 2, 3, 4, 5, 10**6]], pa.list_(pa.int32())))

    assert score_here(tmp_path).scored == 40


def test_a_number_that_is_not_finite_is_named(tmp_path: Path) -> None:
    list_bundle(tmp_path / "bundle", list_spec())
    prices = [[1.0, float("nan")], [1e39]] + [[0.5]] * 38
    write(tmp_path, list_table(40, prices=pa.array(prices)))

    reason = "dense value is not finite"
    assert rejected(tmp_path) == [(0, "prices[1]", "nan", reason), (1, "prices[0]", "inf", reason)]


def test_a_bad_row_stops_a_job_that_says_so(tmp_path: Path) -> None:
    list_bundle(tmp_path / "bundle", list_spec())
    write(tmp_path, with_history(40, [[1], [None]], pa.list_(pa.int32())))

    plan = make_plan(JobConfig.model_validate(job_keys(tmp_path)))
    (outcome,) = outcomes(plan)
    assert "row 1 of the file: column 'history' holds null: null in a list" in outcome.message


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"history": [1] * 19}, "column history: type is int64, expected a list of integer ids"),
        ({"history": [["a"]] * 19}, "type is list<element: string>, expected a list of integer"),
        ({"prices": [["a"]] * 19}, "column prices: type is list<element: string>, expected a list"),
        ({"C": [[1]] * 19}, "column C: type is list<element: int64>, expected integer ids"),
        ({"I": [[0.5]] * 19}, "column I: type is list<element: double>, expected a number"),
        ({"history": None, "histori": [[1]] * 19}, "history: missing (nearest is histori)"),
    ],
)
def test_columns_that_do_not_fit(tmp_path: Path, columns: dict[str, Any], told: str) -> None:
    list_bundle(tmp_path / "bundle", list_spec())
    write(tmp_path, list_table(19, **columns))
    assert told in refused(tmp_path)


def test_field_columns_name_lists_and_not_their_elements(tmp_path: Path) -> None:
    list_bundle(tmp_path / "bundle", list_spec())
    write(tmp_path, list_table(19))
    told = refused(tmp_path, field_columns={"h0": "history"})
    assert "'h0', an element of the list 'history'; name the column of the list" in told
    assert "did you mean 'history'" in refused(tmp_path, field_columns={"histori": "x"})


def test_a_plan_counts_the_elements_and_names_the_columns(tmp_path: Path) -> None:
    list_bundle(tmp_path / "bundle", list_spec())
    write(tmp_path, list_table(111))

    plan = make_plan(JobConfig.model_validate(job_keys(tmp_path)))

    # row_id 8, label 1, C 8, elements of int32, and four numbers of float32
    assert plan.row_bytes == 8 + 1 + 8 + 4 * len(HISTORY) + 4 * 4
    text = describe_plan(plan, output_state(plan))
    assert "features   C, history, I, prices\n" in text


def test_raw_lists_are_encoded_and_padded(tmp_path: Path) -> None:
    elements = Elements(features=HISTORY, side="before", keep="last")
    field = CategoricalFeature(
        name="h", column="words", encoding=HashEncoding(modulus=17), elements=elements
    )
    vector = Elements(features=("x", "y"))
    dense = DenseFeature(name="v", column="vector", transform="none", elements=vector)
    schema = FeatureSchema(dataset="d", fields=(field,), dense=(dense,))
    spec = deepfm(Features.of_schema(schema, dim=4), Deep(hidden=(5,)))
    list_bundle(tmp_path / "bundle", spec, schema)
    words = [[f"w{i}" for i in found or []] for found in random_lists(60, 5, 9, seed=1)]
    vectors = [[1.0, float("inf")], None, *[[0.5, 2.0]] * 58]
    table = pa.table({"row_id": np.arange(60), "words": words, "vector": vectors})
    write(tmp_path, table)

    found = rejected(tmp_path, carry_columns=[])

    assert found == [(0, "vector[1]", "inf", "dense value is not finite")]
    good = Encoder(schema).encode(table.slice(1))
    expected = load_engine(tmp_path / "bundle", device="cpu").score(good.ids, good.dense)
    scores = read_scores(tmp_path / "output").column("score").to_numpy()[1:]
    np.testing.assert_allclose(scores, expected, atol=1e-6)
