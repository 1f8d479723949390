"""Columns of types and codecs that pyarrow does not know matter only where they are used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from int128_files import write_int128
from job_cases import encoded_table, read_scores, reference_scores, score_here, tiny_bundle

from pipeline.errors import ContractError

# The second is read by pyarrow as well.
TABLES = {
    "numbers": encoded_table(111),
    "texts": encoded_table(111).append_column("text", pa.array(["a", "b", None] * 37)),
}


@pytest.mark.parametrize("kind", TABLES)
def test_an_integer_of_128_bits_is_left_alone(tmp_path: Path, kind: str) -> None:
    model, table = tiny_bundle(tmp_path / "bundle"), TABLES[kind]
    write_int128(tmp_path / "input/a.parquet", table, "wide")
    with pytest.raises(pa.ArrowNotImplementedError):
        pq.read_schema(tmp_path / "input/a.parquet")

    carried = [name for name in ("label", "text") if name in table.column_names]
    score_here(tmp_path, carry_columns=carried)

    scores = read_scores(tmp_path / "output")
    assert scores.select(carried).equals(table.select(carried))
    expected = reference_scores(model, table)
    np.testing.assert_allclose(scores.column("score").to_numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    "use",
    [{"key_columns": ["wide"]}, {"carry_columns": ["wide"]}, {"field_columns": {"I1": "wide"}}],
)
def test_an_integer_of_128_bits_that_is_used_is_named(
    tmp_path: Path, use: dict[str, object]
) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_int128(tmp_path / "input/a.parquet", encoded_table(19), "wide")
    with pytest.raises(ContractError, match=r"a\.parquet: column wide is of a type .* as int64"):
        score_here(tmp_path, **use)


@pytest.mark.parametrize("used", [False, True])
def test_a_codec_that_nobody_knows(tmp_path: Path, used: bool) -> None:
    model, table = tiny_bundle(tmp_path / "bundle"), encoded_table(111)
    (tmp_path / "input").mkdir()
    path = tmp_path / "input/a.parquet"
    pq.write_table(table.append_column("x", table.column("row_id")), path, compression="snappy")
    codec = b"\x19\x18\x01x\x15"  # behind the name: a field of the column chunk's metadata
    snappy, lzo = codec + b"\x02", codec + b"\x06"
    assert path.read_bytes().count(snappy) == 1
    path.write_bytes(path.read_bytes().replace(snappy, lzo))
    if used:
        with pytest.raises(AssertionError, match=r"a\.parquet .*LZO .* is currently not supported"):
            score_here(tmp_path, carry_columns=["x"])
        return
    score_here(tmp_path)
    scores = read_scores(tmp_path / "output").column("score").to_numpy()
    np.testing.assert_allclose(scores, reference_scores(model, table), atol=1e-5)
