"""Encrypted columns beside a plain footer: refused where they are read, else left alone.

pyarrow would end the process at one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from encrypted_files import write_encrypted
from job_cases import encoded_table, read_scores, reference_scores, score_here, tiny_bundle

from pipeline.errors import ContractError


def table_with_texts(rows: int) -> pa.Table:
    """Texts are published by way of pyarrow."""
    table = encoded_table(rows).append_column("text", pa.array([f"t{i}" for i in range(rows)]))
    return table.append_column("secret", pa.array([f"s{i}" for i in range(rows)]))


def test_one_that_is_not_read_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    model, table = tiny_bundle(tmp_path / "bundle"), table_with_texts(111)
    write_encrypted(tmp_path / "input/a.parquet", table, ["secret"])

    score_here(tmp_path, carry_columns=["text"])

    scored = read_scores(tmp_path / "output")
    assert scored.column("text").to_pylist() == table.column("text").to_pylist()
    scores = scored.column("score").to_numpy()
    np.testing.assert_allclose(scores, reference_scores(model, table), atol=1e-5)


@pytest.mark.parametrize(
    ("column", "keys"),
    [("C3", {}), ("row_id", {}), ("label", {}), ("text", {"carry_columns": ["text"]})],
)
def test_one_that_is_read_is_refused(tmp_path: Path, column: str, keys: dict[str, Any]) -> None:
    (tmp_path / "input").mkdir()
    tiny_bundle(tmp_path / "bundle")
    write_encrypted(tmp_path / "input/a.parquet", table_with_texts(19), [column])

    with pytest.raises(ContractError, match=rf"a\.parquet: column {column} is encrypted"):
        score_here(tmp_path, **keys)
