"""Scores of two outputs, row by row."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from finished_outputs import write_output
from scipy.stats import spearmanr

from pipeline.errors import ConfigError, ContractError
from pipeline.evaluation import differences
from pipeline.evaluation.differences import compare_scores

ROWS = 30_000


def scores_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(ROWS, np.float32)


def table_of(scores: np.ndarray, keys: np.ndarray | None = None) -> pa.Table:
    keys = np.arange(len(scores)) if keys is None else keys
    return pa.table({"key": keys, "day": ["monday"] * len(keys), "score": scores})


def output(folder: Path, table: pa.Table, *cuts: int) -> Path:
    edges = [0, *cuts, len(table)]
    parts = [table.slice(a, b - a) for a, b in itertools.pairwise(edges)]
    return write_output(folder, parts, ("key", "day"))


@pytest.mark.parametrize("order", ["the same", "another"])
def test_differences_are_those_of_numpy(tmp_path: Path, order: str):
    base = scores_of(0)
    change = np.random.default_rng(1).normal(0, 1e-3, ROWS).astype(np.float32)
    change[::3] = 0
    change[17] = -0.5 if base[17] > 0.5 else 0.4
    candidate = np.clip(base + change, 0, 1).astype(np.float32)
    table = table_of(candidate)
    if order == "another":
        table = table.take(np.random.default_rng(2).permutation(ROWS))
    found = compare_scores(
        output(tmp_path / "a", table_of(base), 5, 20_000),
        output(tmp_path / "b", table, 4_000, 4_001, 9_000),
    )
    expected = np.abs(candidate.astype(np.float64) - base)
    assert (found.rows, found.only_in_base, found.only_in_candidate) == (ROWS, 0, 0)
    assert found.differing == np.count_nonzero(expected)
    assert found.largest == expected.max()
    assert found.mean == pytest.approx(expected.mean(), rel=1e-12)
    assert found.p999 == pytest.approx(np.quantile(expected, 0.999, method="higher"), rel=2e-3)
    assert found.rank_correlation == pytest.approx(spearmanr(base, candidate)[0], abs=1e-12)
    assert found.worst[0].key == {"key": 17, "day": "monday"}
    worst = np.sort(expected)[::-1][:10]
    assert [abs(w.candidate - w.base) for w in found.worst] == pytest.approx(worst.tolist())


def test_rows_of_one_output_only_and_rejected_rows(tmp_path: Path):
    base, candidate = scores_of(0), scores_of(0)
    left = table_of(base[:25_000])
    right = table_of(candidate[5_000:], np.arange(5_000, ROWS))
    score = pa.array(candidate[5_000:], mask=np.arange(25_000) % 1_000 == 0)
    right = right.set_column(2, "score", score)
    found = compare_scores(output(tmp_path / "a", left), output(tmp_path / "b", right))
    assert (found.only_in_base, found.only_in_candidate) == (5_000, 5_000)
    assert (found.rows, found.one_is_null) == (20_000 - 20, 20)
    assert (found.differing, found.largest, found.p999, found.worst) == (0, 0, 0, [])
    assert found.rank_correlation == pytest.approx(1)


def test_ranks_of_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(differences, "SAMPLE_ROWS", 5_000)
    base = scores_of(0)
    candidate = np.where(scores_of(1) < 0.2, scores_of(2), base)
    found = compare_scores(
        output(tmp_path / "a", table_of(base), 100), output(tmp_path / "b", table_of(candidate))
    )
    assert 2_500 <= found.rank_rows <= 5_000
    assert found.rank_correlation == pytest.approx(spearmanr(base, candidate)[0], abs=0.05)


def test_outputs_that_cannot_be_matched(tmp_path: Path):
    table = table_of(scores_of(0))
    good = output(tmp_path / "a", table)
    with pytest.raises(ConfigError, match="key columns"):
        compare_scores(good, write_output(tmp_path / "b", [table], ("key",)))
    with pytest.raises(ConfigError, match="holds no finished job"):
        compare_scores(good, tmp_path)
    with pytest.raises(ContractError, match="has 2 rows of key=3"):
        twice = pa.concat_tables([table.slice(3, 1), table])
        compare_scores(good, output(tmp_path / "c", twice))


def test_empty_outputs(tmp_path: Path):
    table = table_of(scores_of(0)).slice(0, 0)
    found = compare_scores(output(tmp_path / "a", table), output(tmp_path / "b", table))
    assert (found.rows, found.mean, found.rank_correlation) == (0, 0, None)
