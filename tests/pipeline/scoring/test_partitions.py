"""Partition columns beside scores, and as features, by every way of reading."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_cases import encoded_table, reference_scores, score_here, tiny_bundle, tiny_spec

from pipeline.publishing.scores import open_scores
from pipeline.publishing.verify import verify_output


def test_days_and_hours_are_published(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    for i, hour in enumerate(("05", "06", "__HIVE_DEFAULT_PARTITION__")):
        path = tmp_path / f"input/date=2026-11-19/hour={hour}/x.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(encoded_table(19, seed=i), path)
    score_here(tmp_path, key_columns=["date", "row_id"], carry_columns=["hour", "label"])
    table = open_scores(tmp_path / "output").to_table()
    assert table.schema.names == ["date", "row_id", "hour", "label", "score"]
    assert table.column("date").to_pylist() == ["2026-11-19"] * 57
    assert table.column("hour").to_pylist() == [5] * 19 + [6] * 19 + [None] * 19
    assert table.schema.field("hour").type == pa.int32()
    assert verify_output(tmp_path / "output").problems == []


@pytest.mark.parametrize("published", [False, True])
def test_a_partition_column_is_a_feature(tmp_path: Path, published: bool) -> None:
    model = tiny_bundle(tmp_path / "bundle")
    name = next(field.name for field in tiny_spec().fields if field.rows > 1)
    tables = []
    for i in (0, 1):
        path = tmp_path / f"input/{name}={i}/x.parquet"
        path.parent.mkdir(parents=True)
        table = encoded_table(19, first_key=19 * i, seed=i)
        pq.write_table(table.drop_columns([name]), path)
        index = table.schema.get_field_index(name)
        tables.append(table.set_column(index, name, pa.array([i] * 19, pa.int32())))
    score_here(tmp_path, carry_columns=[name] if published else [])
    scores = open_scores(tmp_path / "output").to_table()
    expected = reference_scores(model, pa.concat_tables(tables))
    np.testing.assert_allclose(scores.column("score").to_numpy(), expected, atol=1e-5)


def held_by_files(folder: Path, name: str, texts: list[str], values: pa.Array) -> None:
    """A file of 19 rows a folder that hold its value, as Polars writes them."""
    for i, text in enumerate(texts):
        path = folder / f"input/{name}={text}/x.parquet"
        path.parent.mkdir(parents=True)
        rows = encoded_table(19, first_key=19 * i).append_column(
            name, values.take(pa.array([i] * 19))
        )
        pq.write_table(rows, path)


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["5", "-6"], pa.array([5, -6], pa.int64())),
        (["05", "x"], pa.array(["05", "x"])),
        (["05", "06"], pa.array(["05", "06"], pa.large_string())),
        (["05", "__HIVE_DEFAULT_PARTITION__"], pa.array([5, None], pa.uint8())),
        (["2026-11-19", "2026-11-20"], pa.array([date(2026, 11, 19), date(2026, 11, 20)])),
        (["a%2Fb%3D", "%C3%A4"], pa.array(["a/b=", "ä"]).dictionary_encode()),
        (["true", "False"], pa.array([True, False])),
        (["0.50", "1e3"], pa.array([0.5, 1000.0])),  # of which no folder's name has one text
    ],
)
def test_values_of_files_are_those_of_their_folders(
    tmp_path: Path, texts: list[str], values: pa.Array
) -> None:
    tiny_bundle(tmp_path / "bundle")
    held_by_files(tmp_path, "part", texts, values)
    score_here(tmp_path, carry_columns=["part"])
    found = open_scores(tmp_path / "output").to_table().sort_by("row_id").column("part")
    assert found.to_pylist() == values.take(pa.array([0] * 19 + [1] * 19)).to_pylist()


@pytest.mark.parametrize("key", [False, True])
def test_a_value_that_is_not_the_folders_makes_a_bad_row(tmp_path: Path, key: bool) -> None:
    tiny_bundle(tmp_path / "bundle")
    held_by_files(tmp_path, "hour", ["5", "6", "7"], pa.array([5, 4, 7], pa.int32()))
    use = {"key_columns": ["hour", "row_id"]} if key else {"carry_columns": ["hour"]}
    with pytest.raises(AssertionError, match=r"'hour' holds '4': its folder's name says hour=6"):
        score_here(tmp_path, **use)
    keys = {"on_bad_row": "reject", "max_rejected_fraction": 0.5, "overwrite": True}
    score_here(tmp_path, **use, **keys)
    scores = open_scores(tmp_path / "output").to_table().column("score")
    assert scores.is_null().to_pylist() == [False] * 19 + [True] * 19 + [False] * 19
