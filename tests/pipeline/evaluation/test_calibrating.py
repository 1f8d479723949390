"""Fitting a calibration, and a bundle that has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from job_cases import encoded_table, score_here, tiny_bundle
from sklearn.linear_model import LogisticRegression

from dpiframe_core.bundle.reading import open_bundle
from jobs.calibrate import command
from pipeline.errors import ConfigError, ContractError
from pipeline.evaluation.calibrating import fit, logit
from pipeline.evaluation.evaluate import evaluate_output
from pipeline.evaluation.question import Question
from pipeline.evaluation.ranking import pack
from pipeline.evaluation.score_counts import ScoreCounts


def counts_of(scores: np.ndarray, labels: np.ndarray) -> ScoreCounts:
    counts = ScoreCounts()
    counts.add(pack(scores.astype(np.float32), labels.astype(bool)))
    return counts


def samples(right: object, rows: int = 60_000) -> tuple[np.ndarray, np.ndarray]:
    """Scores, and labels whose logits are `right` of the scores'."""
    random = np.random.default_rng(0)
    z = random.normal(-1.5, 1.2, rows)
    labels = random.random(rows) < 1 / (1 + np.exp(-right(z)))  # type: ignore[operator]
    return 1 / (1 + np.exp(-z)), labels


def test_platt_is_a_logistic_regression_of_the_logit():
    scores, labels = samples(lambda z: 0.7 * z - 0.4)
    curve = fit("platt", counts_of(scores, labels))
    exact = logit(scores.astype(np.float32).astype(np.float64))[:, None]
    expected = LogisticRegression(C=1e12, tol=1e-10).fit(exact, labels)
    assert curve.slope_above == pytest.approx(expected.coef_[0, 0], rel=1e-4)
    assert curve.knots[0][1] == pytest.approx(expected.intercept_[0], rel=1e-4)


def test_a_temperature_has_no_shift():
    curve = fit("temperature", counts_of(*samples(lambda z: 0.6 * z)))
    assert curve.knots == ((0.0, 0.0),) and curve.slope_above == pytest.approx(0.6, abs=0.02)


def test_isotonic_follows_any_rising_curve():
    def right(z: np.ndarray) -> np.ndarray:
        return np.where(z < -1, 2 * z + 1, 0.3 * z - 0.7)

    curve = fit("isotonic", counts_of(*samples(right, 400_000)))
    assert 10 < len(curve.knots) <= 64
    x, y = np.array(curve.knots).T
    inside = (x > -3.5) & (x < 1)
    assert np.abs(y - right(x))[inside].max() < 0.5
    assert (np.diff(x) > 0).all() and (np.diff(y) >= 0).all()


def test_one_class_is_refused():
    with pytest.raises(ContractError, match="both classes"):
        fit("platt", counts_of(np.array([0.1, 0.2]), np.array([0, 0])))


def test_scores_of_the_calibrated_bundle_agree_with_the_labels(tmp_path: Path):
    tiny_bundle(tmp_path / "bundle")
    (tmp_path / "input").mkdir()
    table = encoded_table(6_000)
    labels = pa.array((np.arange(6_000) % 3 == 0).astype(np.int8))
    pq.write_table(table.set_column(1, "label", labels), tmp_path / "input/x.parquet")
    score_here(tmp_path)
    question = Question(label="label")
    before = evaluate_output(tmp_path / "output", question)
    arguments = [tmp_path / name for name in ("output", "bundle", "calibrated")]
    options = ["--label", "label", "--method", "platt"]
    result = CliRunner().invoke(command, [*map(str, arguments), *options], catch_exceptions=False)
    assert result.exit_code == 0 and "calibration" in result.output
    score_here(tmp_path, bundle=str(tmp_path / "calibrated"), output=str(tmp_path / "after"))
    after = evaluate_output(tmp_path / "after", question)
    assert after.quality.logloss is not None and before.quality.logloss is not None
    assert after.quality.logloss < before.quality.logloss
    assert after.quality.calibration == pytest.approx(1, abs=1e-4)
    with pytest.raises(ConfigError, match="was scored by the bundle"):
        arguments = [tmp_path / name for name in ("output", "calibrated", "again")]
        CliRunner().invoke(command, [*map(str, arguments), *options], catch_exceptions=False)
    with pytest.raises(ConfigError, match="has a calibration"):
        arguments = [tmp_path / name for name in ("after", "calibrated", "again")]
        CliRunner().invoke(command, [*map(str, arguments), *options], catch_exceptions=False)
    assert open_bundle(tmp_path / "calibrated").spec.output == "calibration"
    assert not (tmp_path / "again").exists()
