"""Evaluation against scikit-learn, on outputs of many parts."""

from __future__ import annotations

import itertools
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from finished_outputs import write_output
from sklearn import metrics

from pipeline.errors import ConfigError, ContractError, ResumableError
from pipeline.evaluation import evaluate, kept_tally, part_counter, score_counts, tally, workers
from pipeline.evaluation.evaluate import Evaluation, evaluate_output
from pipeline.evaluation.part_counter import Part
from pipeline.evaluation.question import Question
from pipeline.evaluation.score_counts import Resolution


def impressions(rows: int, seed: int = 0) -> pa.Table:
    """Scores with ties and labels that follow them; users, sites and hours."""
    random = np.random.default_rng(seed)
    logits = random.normal(-2, 1.5, rows)
    scores = (1 / (1 + np.exp(-logits))).astype(np.float32)
    scores[::7] = np.round(scores[::7], 2)
    site = random.integers(0, 6, rows)
    return pa.table(
        {
            "key": pa.array(random.permutation(rows)),
            "click": pa.array((random.random(rows) < scores * 0.8).astype(np.int8)),
            "user": pa.array([f"user {n}" for n in random.zipf(1.3, rows) % 500]),
            "site": pa.array([None if n == 5 else f"site {n}" for n in site]),
            "hour": pa.array(random.integers(0, 24, rows), pa.int32()),
            "score": pa.array(scores),
        }
    )


def in_parts(table: pa.Table, *cuts: int) -> list[pa.Table]:
    edges = [0, *cuts, len(table)]
    return [table.slice(a, b - a) for a, b in itertools.pairwise(edges)]


def gauc_of(table: pa.Table, group: str) -> tuple[float, int]:
    """By scikit-learn, one group after another."""
    weighted, rows, both = 0.0, 0, 0
    for _, found in table.to_pandas().groupby(group, dropna=False):
        if found.click.nunique() == 2:
            weighted += len(found) * metrics.roc_auc_score(found.click, found.score)
            rows += len(found)
            both += 1
    return weighted / rows, both


@cache
def gauc_of_all(group: str) -> tuple[float, int]:
    return gauc_of(impressions(20_000), group)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return impressions(20_000)


@pytest.fixture(scope="module")
def output(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_output(tmp_path_factory.mktemp("out"), in_parts(table, 1, 7_000, 7_001, 16_000))


def test_figures_are_those_of_scikit_learn(table: pa.Table, output: Path):
    found = evaluate_output(output, Question(label="click"))
    labels, scores = table["click"].to_numpy(), table["score"].to_numpy().astype(np.float64)
    quality = found.quality
    assert (quality.rows, quality.clicks) == (20_000, int(labels.sum()))
    assert quality.auc == pytest.approx(metrics.roc_auc_score(labels, scores), abs=1e-12)
    assert quality.auc_error == 0
    assert quality.logloss == pytest.approx(metrics.log_loss(labels, scores), rel=1e-9)
    assert quality.brier == pytest.approx(metrics.brier_score_loss(labels, scores), rel=1e-9)
    base = metrics.log_loss(labels, np.full(len(labels), labels.mean()))
    assert quality.normalised_entropy == pytest.approx(quality.logloss / base, rel=1e-9)
    assert quality.calibration == pytest.approx(scores.sum() / labels.sum(), rel=1e-9)
    assert found.metrics["auc"] == quality.auc and "gauc" not in found.metrics


def test_the_reliability_curve_has_all_rows_in_even_bins(table: pa.Table, output: Path):
    found = evaluate_output(output, Question(label="click"))
    rows = [one.rows for one in found.reliability]
    assert sum(rows) == 20_000 and len(rows) == 20 and max(rows) < 1_200
    means = [one.mean_score for one in found.reliability]
    assert means == sorted(means)
    weighted = sum(one.rows * one.click_rate for one in found.reliability)
    assert weighted == pytest.approx(table["click"].to_numpy().sum())
    assert found.ece == pytest.approx(
        sum(n * abs(m - r) for n, m, r in found.reliability) / 20_000, rel=1e-12
    )
    assert 0.005 < found.ece < 0.1  # the labels follow 0.8 of the scores


@pytest.mark.parametrize("group", ["user", "hour", "site"])
@pytest.mark.parametrize("in_memory", [1 << 25, 1_000])
def test_auc_by_group(
    table: pa.Table,
    output: Path,
    tmp_path: Path,
    group: str,
    in_memory: int,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(workers, "ROWS_IN_MEMORY", in_memory)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = evaluate_output(output, Question(label="click", group=group))
    expected, both = gauc_of_all(group)
    assert found.gauc == pytest.approx(expected, rel=1e-12)
    assert found.groups_with_both == both
    assert found.groups == len(set(table[group].to_pylist()))
    assert not list(tmp_path.iterdir())


def test_slices_and_pairs(table: pa.Table, output: Path):
    found = evaluate_output(output, Question(label="click", slices=("site", "hour"), pairs=True))
    assert list(found.slices) == ["site", "hour", "site, hour"]
    frame = table.to_pandas()
    sizes = [one.rows for one in found.slices["site"]]
    assert sizes == sorted(sizes, reverse=True) and sum(sizes) == len(frame)
    for one in found.slices["site"]:
        rows = frame[frame.site.isna() if one.values == ("null",) else frame.site == one.values[0]]
        assert one.auc == pytest.approx(metrics.roc_auc_score(rows.click, rows.score), abs=1e-12)
        assert one.logloss == pytest.approx(metrics.log_loss(rows.click, rows.score), rel=1e-6)
    pair = found.slices["site, hour"][0]
    rows = frame[(frame.site == pair.values[0]) & (frame.hour == int(pair.values[1]))]
    assert (pair.rows, pair.clicks) == (len(rows), rows.click.sum())
    assert len(found.slices["site, hour"]) == 100 and found.slices_left_out["site, hour"] == 44


def test_beyond_the_rows_that_are_kept_the_error_is_stated(
    table: pa.Table, output: Path, monkeypatch: pytest.MonkeyPatch
):
    exact = evaluate_output(output, Question(label="click"))
    made = score_counts.ScoreCounts
    for shift in (8, 15):
        monkeypatch.setattr(tally, "ScoreCounts", lambda s=shift: made(Resolution(5_000, s)))
        monkeypatch.setattr(kept_tally.KeptTally, "_read", lambda *_: None)
        found = evaluate_output(output, Question(label="click"))
        assert found.quality.auc is not None and exact.quality.auc is not None
        assert 0 < found.quality.auc_error < 0.01
        assert abs(found.quality.auc - exact.quality.auc) <= found.quality.auc_error
        assert found.ece == pytest.approx(exact.ece, abs=1e-3)
        assert found.quality.logloss == exact.quality.logloss


@pytest.mark.parametrize("order", ["the same", "another", "fewer"])
def test_labels_in_files_of_their_own(table: pa.Table, tmp_path: Path, order: str):
    output = write_output(tmp_path / "out", in_parts(table.drop_columns("click"), 9_000))
    labels = table.select(["key", "click"])
    if order == "another":
        labels = labels.take(np.random.default_rng(1).permutation(len(labels)))
    if order == "fewer":
        labels = labels.slice(0, 15_000)
        table = table.slice(0, 15_000)
    (tmp_path / "labels").mkdir()
    for number, part in enumerate(in_parts(labels, 4_000, 4_100)):
        pq.write_table(
            part.cast(pa.schema({"key": pa.int32(), "click": pa.bool_()})),
            tmp_path / f"labels/{number}.parquet",
        )
    question = Question(label="click", labels=str(tmp_path / "labels"), keys=("key",), group="user")
    found = evaluate_output(output, question)
    labels, scores = table["click"].to_numpy(), table["score"].to_numpy().astype(np.float64)
    assert found.quality.auc == pytest.approx(metrics.roc_auc_score(labels, scores), abs=1e-12)
    assert found.without_label == 20_000 - len(table)
    expected = gauc_of(table, "user") if order == "fewer" else gauc_of_all("user")
    assert found.gauc == pytest.approx(expected[0], rel=1e-12)


def test_a_key_with_two_labels(table: pa.Table, tmp_path: Path):
    output = write_output(tmp_path / "out", [table.drop_columns("click")])
    labels = table.select(["key", "click"])
    pq.write_table(pa.concat_tables([labels, labels.slice(5, 1)]), tmp_path / "labels.parquet")
    question = Question(label="click", labels=str(tmp_path / "labels.parquet"), keys=("key",))
    with pytest.raises(ContractError, match="has 2 rows of key="):
        evaluate_output(output, question)


def test_rows_without_score_or_label_are_counted_and_left_out(table: pa.Table, tmp_path: Path):
    score = table["score"].to_pylist()
    label = [None if n % 5 == 0 else bool(v) for n, v in enumerate(table["click"].to_pylist())]
    score[3], score[5] = None, None
    changed = pa.table({"score": pa.array(score, pa.float32()), "click": label})
    found = evaluate_output(write_output(tmp_path, [changed]), Question(label="click"))
    kept = np.array([s is not None and v is not None for s, v in zip(score, label, strict=True)])
    assert (found.without_score, found.without_label) == (2, 3_999)
    labels, scores = table["click"].to_numpy()[kept], table["score"].to_numpy()[kept]
    assert found.quality.auc == pytest.approx(metrics.roc_auc_score(labels, scores), abs=1e-12)


def test_one_class_and_no_rows(tmp_path: Path):
    scores = pa.array([0.1, 0.2], pa.float32())
    table = pa.table({"score": scores, "click": [0, 0], "user": [1, 2]})
    question = Question(label="click", slices=("user",), group="user")
    found = evaluate_output(write_output(tmp_path / "a", [table]), question)
    assert (found.quality.auc, found.gauc, found.quality.normalised_entropy) == (None, None, None)
    assert found.quality.logloss is not None and found.groups == 2
    found = evaluate_output(write_output(tmp_path / "b", [table.slice(0, 0)]), question)
    assert (found.quality.rows, found.quality.logloss, found.reliability) == (0, None, [])


@pytest.mark.parametrize(
    ("question", "error", "text"),
    [
        (Question(label="clicks"), ConfigError, "has no column 'clicks' for the label"),
        (Question(label="click", group="who"), ConfigError, "carry_columns: \\[who\\]"),
        (Question(label="user"), ConfigError, "has the type string; labels are 0 and 1"),
        (Question(label="hour"), ContractError, "in row 0; labels are 0 and 1"),
        (Question(label="click", slices=("key",)), ConfigError, "more than 1000 different values"),
        (Question(label="click", labels="x"), ConfigError, "carries a column 'click' already"),
    ],
)
def test_questions_that_are_refused(
    output: Path, question: Question, error: type[Exception], text: str
):
    with pytest.raises(error, match=text):
        evaluate_output(output, question)


EVERYTHING = Question(label="click", slices=("site", "hour"), pairs=True, group="user")


def figures(found: Evaluation) -> dict[str, Any]:
    return found.model_dump(exclude={"seconds"})


@pytest.fixture
def read_parts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts whose rows are read, but for those of which the groups alone are."""
    read: list[str] = []
    take = part_counter.PartCounter.read

    def record(self: Any, part: Part) -> Any:
        if not part.groups_alone:
            read.append(part.name.split()[0])
        return take(self, part)

    monkeypatch.setattr(part_counter.PartCounter, "read", record)
    return read


@pytest.mark.parametrize("in_memory", [100_000, 1_000])  # scores kept as they are, and counted
def test_a_stopped_evaluation_goes_on(
    table: pa.Table,
    tmp_path: Path,
    read_parts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    in_memory: int,
):
    made, fine = score_counts.ScoreCounts, Resolution(in_memory, 8)
    monkeypatch.setattr(tally, "ScoreCounts", lambda resolution=fine: made(resolution))
    parts = in_parts(table, 1, 7_000, 7_001, 16_000)
    whole = evaluate_output(write_output(tmp_path / "whole", parts), EVERYTHING, workers=1)
    output = write_output(tmp_path / "out", parts)
    merge = kept_tally.KeptTally.merge
    read_parts.clear()

    def stop_at_the_fourth(self: Any, found: Any) -> None:
        if len(self.tally.parts) == 3:
            raise KeyboardInterrupt
        merge(self, found)

    with monkeypatch.context() as patched:
        patched.setattr(part_counter, "HAND_OVER_SECONDS", -1)
        patched.setattr(kept_tally.KeptTally, "merge", stop_at_the_fourth)
        with pytest.raises(KeyboardInterrupt):
            evaluate_output(output, EVERYTHING, workers=1)
    read_parts.clear()
    assert figures(evaluate_output(output, EVERYTHING, workers=1)) == figures(whole)
    assert len(read_parts) == 2
    assert figures(evaluate_output(output, EVERYTHING)) == figures(whole)
    assert len(read_parts) == 2
    other = EVERYTHING.model_copy(update={"group": None, "pairs": False})
    assert evaluate_output(output, other).quality == whole.quality
    assert len(read_parts) == 7


def test_processes_find_what_one_finds(
    table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    output = write_output(tmp_path / "out", in_parts(table, 1, 7_000, 7_001, 16_000))
    alone = evaluate_output(output, EVERYTHING, workers=1)
    for kept in output.glob("*.tally"):
        kept.unlink()
    assert figures(evaluate_output(output, EVERYTHING, workers=3)) == figures(alone)
    monkeypatch.setattr(subprocess, "Popen", None)  # none is started where all is tallied
    without_groups = EVERYTHING.model_copy(update={"group": None})
    assert evaluate_output(output, without_groups, workers=3).quality == alone.quality


def test_processes_read_labels_in_order(table: pa.Table, tmp_path: Path):
    rows = in_parts(table.drop("click"), 1, 7_000, 7_001, 16_000)
    output, labels = write_output(tmp_path / "out", rows), tmp_path / "labels.parquet"
    pq.write_table(table.select(["key", "click"]), labels, row_group_size=3_000)
    question = Question(label="click", labels=str(labels), keys=("key",), group="user")
    alone = evaluate_output(output, question, workers=1)
    assert figures(evaluate_output(output, question, workers=2)) == figures(alone)
    assert alone.gauc == pytest.approx(gauc_of_all("user")[0], rel=1e-12)


@pytest.mark.parametrize(
    ("rows", "free", "started"), [(10**9, 64, 8), (10**9, 3, 3), (10**9, 0, 1), (10**7, 64, 1)]
)
def test_so_many_processes_as_rows_cores_and_memory_allow(
    rows: int, free: int, started: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(evaluate, "usable_cores", lambda: 8)
    monkeypatch.setattr(evaluate, "free_memory", lambda: free << 30)
    assert evaluate._useful_workers(rows) == started


def test_what_a_process_raises(output: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ContractError, match="in row 0; labels are 0 and 1"):
        evaluate_output(output, Question(label="hour"), workers=2)
    monkeypatch.setattr(workers.Process, "ask", lambda self, *_: self._process.kill())
    with pytest.raises(ResumableError, match="has ended with code -9"):
        evaluate_output(output, Question(label="click", group="hour"), workers=2)


def test_the_tallies_of_dates_add_up_to_those_of_the_month(
    table: pa.Table, tmp_path: Path, read_parts: list[str]
):
    parts = in_parts(table, 1, 7_000, 7_001, 16_000)
    whole = evaluate_output(write_output(tmp_path / "whole", parts), EVERYTHING)
    first = write_output(tmp_path / "month/date=2026-11-01", parts[:2])
    write_output(tmp_path / "month/date=2026-11-02", parts[2:])
    evaluate_output(first, EVERYTHING)
    read_parts.clear()
    found = evaluate_output(tmp_path / "month", EVERYTHING)
    assert figures(found) == figures(whole) and len(read_parts) == 3
    assert figures(evaluate_output(tmp_path / "month", EVERYTHING)) == figures(whole)
    assert len(read_parts) == 3
    by_date = evaluate_output(tmp_path / "month", Question(label="click", slices=("date",)))
    assert sorted(one.rows for one in by_date.slices["date"]) == [7_000, 13_000]


def test_a_tally_of_other_rows_or_a_damaged_one_is_not_used(
    table: pa.Table, tmp_path: Path, read_parts: list[str]
):
    output = write_output(tmp_path, in_parts(table, 9_000))
    expected = figures(evaluate_output(output, EVERYTHING))
    (kept,) = output.glob("_evaluation-*.tally")
    for damaged in (kept.read_bytes()[:-9], b"", b"PAR1" + bytes(99)):
        kept.write_bytes(damaged)
        assert figures(evaluate_output(output, EVERYTHING)) == expected
    read_parts.clear()
    write_output(output, [table.slice(0, 9_000), table.slice(0, 9_000)])
    assert evaluate_output(output, EVERYTHING).quality.rows == 18_000
    assert len(read_parts) == 2
