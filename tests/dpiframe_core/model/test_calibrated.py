"""A calibration as a model's last step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from job_cases import encoded_table, tiny_bundle

from dpiframe_core import load_engine
from dpiframe_core.bundle.reading import open_bundle
from dpiframe_core.bundle.writing import save_bundle
from dpiframe_core.errors import SpecError
from dpiframe_core.model.calibrated import (
    Curve,
    calibrated,
    curve_expression,
    straight,
    uncalibrated,
)
from dpiframe_core.model.spec import ModelSpec
from dpiframe_core.program.expression import evaluate

KNOTS = ((-4.0, -3.5), (-2.0, -2.5), (0.0, -2.5), (0.5, 1.0))


def at(curve: Curve, x: np.ndarray) -> np.ndarray:
    return evaluate(curve_expression(curve), [torch.from_numpy(x)]).numpy()


def test_the_curve_goes_through_its_knots_and_on_with_its_slopes():
    x = np.linspace(-8, 5, 1001)
    expected = np.interp(x, *zip(*KNOTS, strict=True))
    expected = np.where(x < -4, -3.5 + 0.5 * (x + 4), expected)
    expected = np.where(x > 0.5, 1.0 + 2 * (x - 0.5), expected)
    assert np.allclose(at(Curve(KNOTS, 0.5, 2.0), x), expected, atol=1e-12)
    assert np.allclose(at(straight(0.8, -0.3), x), 0.8 * x - 0.3, atol=1e-12)


@pytest.mark.parametrize("knots", [(), ((0.0, 0.0), (0.0, 1.0)), ((0.0, 1.0), (1.0, 0.5))])
def test_knots_rise(knots: tuple[tuple[float, float], ...]):
    with pytest.raises(SpecError, match="knots"):
        curve_expression(Curve(knots))


def test_a_calibrated_bundle_scores_the_corrected_logit(tmp_path: Path):
    tiny_bundle(tmp_path / "base")
    base = open_bundle(tmp_path / "base")
    curve = Curve(KNOTS, 0.5, 2.0)
    spec = calibrated(base.spec, curve)
    assert ModelSpec.parse(spec.model_dump(mode="json")) == spec
    assert uncalibrated(spec) == base.spec and uncalibrated(base.spec) is base.spec
    assert set(spec.parameters()) == set(base.spec.parameters())
    save_bundle(tmp_path / "new", spec, base.weights(), base.schema, base.vocabularies)
    table = encoded_table(999)
    ids = np.stack([table.column(field.name).to_numpy() for field in spec.fields])
    dense = np.stack([table.column(name).to_numpy() for name in spec.dense])
    engines = [load_engine(tmp_path / name, device="cpu") for name in ("base", "new")]
    before, after = (engine.score(ids, dense) for engine in engines)
    logits = np.log(before.astype(np.float64)) - np.log1p(-before.astype(np.float64))
    assert np.allclose(after, 1 / (1 + np.exp(-at(curve, logits))), atol=2e-6)
