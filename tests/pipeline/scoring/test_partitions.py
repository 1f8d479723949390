"""Partition columns beside scores, and as features, by every way of reading."""

from __future__ import annotations

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
