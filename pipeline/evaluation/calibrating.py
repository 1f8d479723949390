"""Fitting a calibration: the curve from a model's logits to those that agree with labels."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dpiframe_core.bundle.reading import Bundle, open_bundle
from dpiframe_core.bundle.writing import save_bundle
from dpiframe_core.errors import BundleError
from dpiframe_core.model.calibrated import (
    Curve,
    calibrated,
    curve_expression,
    straight,
    uncalibrated,
)
from dpiframe_core.program.expression import evaluate
from pipeline.errors import ConfigError, ContractError
from pipeline.evaluation.evaluate import evaluated
from pipeline.evaluation.question import Question
from pipeline.evaluation.score_counts import ScoreCounts
from pipeline.publishing.scores import finished_manifest

Method = Literal["platt", "temperature", "isotonic"]
Numbers = npt.NDArray[np.float64]
MOST_LOGIT = 30.0
ISOTONIC_KNOTS = 64
MOST_STEPS = 100
LEAST_SCALE = 1e-6


class Fit(NamedTuple):
    """Rows, and how well scores agree with their labels."""

    rows: int
    logloss: float
    calibration: float


class Counted(NamedTuple):
    """Distinct logits in ascending order, clicks and rows of each."""

    logits: Numbers
    clicks: Numbers
    rows: Numbers


def calibrate_bundle(
    output: str | Path,
    bundle: str | Path,
    calibrated_bundle: str | Path,
    question: Question,
    method: Method,
) -> tuple[Fit, Fit]:
    """Fit a calibration to what a bundle scored, and write a bundle that has it as its last step.

    Returns how well the scores agree with the labels before and after. ConfigError: the output is
    not of this bundle, or the bundle has a calibration. ContractError as of `fit`.
    """
    base = _uncalibrated_bundle(bundle, output)
    counts = evaluated(output, question).tally.scores
    curve = fit(method, counts)
    scores, clicks, rows = counts.by_score()
    x = logit(scores)
    try:
        save_bundle(
            calibrated_bundle,
            calibrated(base.spec, curve),
            base.weights(),
            base.schema,
            base.vocabularies,
            base.report(),
        )
    except BundleError as error:
        raise ConfigError(str(error)) from None
    counted = Counted(x, clicks.astype(np.float64), rows.astype(np.float64))
    return _fit_of(counted, x), _fit_of(counted, _evaluate(curve, x))


def _uncalibrated_bundle(bundle: str | Path, output: str | Path) -> Bundle:
    try:
        base = open_bundle(bundle)
    except (BundleError, OSError) as error:
        raise ConfigError(f"the bundle cannot be used: {error}") from None
    scored_by = finished_manifest(output).bundle_digest
    if base.digest != scored_by:
        raise ConfigError(
            f"{output} was scored by the bundle {scored_by[:12]}, but {bundle} is "
            f"{base.digest[:12]}: name the bundle that scored it"
        )
    if uncalibrated(base.spec) is not base.spec:
        raise ConfigError(f"{bundle} has a calibration: score with the bundle that it came from")
    return base


def _evaluate(curve: Curve, x: Numbers) -> Numbers:
    tensor = torch.from_numpy(x)
    found: Numbers = evaluate(curve_expression(curve), [tensor]).numpy()
    return found


def _fit_of(counted: Counted, z: Numbers) -> Fit:
    rows, clicks = counted.rows.sum(), counted.clicks.sum()
    loss = counted.rows @ np.logaddexp(0, z) - counted.clicks @ z
    mean = counted.rows @ (1 / (1 + np.exp(-z)))
    return Fit(int(rows), float(loss / rows), float(mean / clicks))


def fit(method: Method, counts: ScoreCounts) -> Curve:
    """The curve that fits scores and labels best, by likelihood.

    platt: scale and shift of the logit. temperature: a scale alone. isotonic: any rising curve, as
    straight lines between at most ISOTONIC_KNOTS knots. ContractError: a class is absent.
    """
    scores, clicks, rows = counts.by_score()
    if not 0 < clicks.sum() < rows.sum():
        raise ContractError("a calibration needs rows of both classes, with a label and a score")
    counted = Counted(logit(scores), clicks.astype(np.float64), rows.astype(np.float64))
    if method == "isotonic":
        return _isotonic(counted)
    return straight(*_linear(counted, with_shift=method == "platt"))


def logit(scores: npt.NDArray[np.float64]) -> Numbers:
    """Logits of probabilities, at most MOST_LOGIT in size."""
    with np.errstate(divide="ignore"):
        found: Numbers = np.log(scores) - np.log1p(-scores)
    return np.clip(found, -MOST_LOGIT, MOST_LOGIT)


def _linear(counted: Counted, with_shift: bool) -> tuple[float, float]:
    """Scale and shift by Newton's method, halving steps that make the loss larger."""
    x = np.stack([counted.logits, np.ones_like(counted.logits)])[: 1 + with_shift]
    weights = np.array([1.0, 0.0])[: 1 + with_shift]

    def loss(w: Numbers) -> float:
        z = w @ x
        return float(counted.rows @ np.logaddexp(0, z) - counted.clicks @ z)

    now = loss(weights)
    for _ in range(MOST_STEPS):
        p = 1 / (1 + np.exp(-(weights @ x)))
        gradient = x @ (counted.rows * p - counted.clicks)
        curvature = (x * (counted.rows * p * (1 - p))) @ x.T
        step = np.linalg.lstsq(curvature, gradient, rcond=None)[0]
        while (then := loss(weights - step)) > now and np.abs(step).max() > 1e-12:
            step = step / 2
        weights = weights - step
        if abs(now - then) <= 1e-12 * abs(now):
            break
        now = then
    if weights[0] > LEAST_SCALE:
        return float(weights[0]), float(weights[1]) if with_shift else 0.0
    # A curve rises, whatever the labels say; without a slope the shift is their mean's logit.
    rate = counted.clicks.sum() / counted.rows.sum()
    return LEAST_SCALE, float(logit(np.array([rate]))[0]) if with_shift else 0.0


def _isotonic(counted: Counted) -> Curve:
    """Pool adjacent violators, then straight lines between the means of the blocks."""
    blocks = _thinned(_pooled(counted))
    # A block without clicks (or of clicks alone) has a rate that its rows allow, not 0 (or 1).
    rates = np.clip(blocks.clicks / blocks.rows, 0.5 / blocks.rows, 1 - 0.5 / blocks.rows)
    right = np.maximum.accumulate(logit(rates))
    knots = list(zip(blocks.logits.tolist(), right.tolist(), strict=True))
    apart = [knots[0]]
    for x, y in knots[1:]:
        if x > apart[-1][0] + 1e-6:
            apart.append((x, y))
    return Curve(tuple(apart))


def _pooled(counted: Counted) -> Counted:
    """Neighbours whose rates fall are one block, until all rates rise."""
    logits: list[float] = []
    clicks: list[float] = []
    rows: list[float] = []
    for x, c, n in zip(*(column.tolist() for column in counted), strict=True):
        x, c, n = x * n, c, n
        while rows and clicks[-1] * n >= c * rows[-1]:
            x, c, n = x + logits.pop(), c + clicks.pop(), n + rows.pop()
        logits.append(x)
        clicks.append(c)
        rows.append(n)
    total = np.array(rows)
    return Counted(np.array(logits) / total, np.array(clicks), total)


def _thinned(blocks: Counted) -> Counted:
    """At most ISOTONIC_KNOTS blocks, neighbours of few rows joined."""
    if len(blocks.rows) <= ISOTONIC_KNOTS:
        return blocks
    before = np.cumsum(blocks.rows) - blocks.rows
    position = before * ISOTONIC_KNOTS // blocks.rows.sum()
    starts = np.flatnonzero(np.r_[True, position[1:] != position[:-1]])
    rows = np.add.reduceat(blocks.rows, starts)
    logits = np.add.reduceat(blocks.logits * blocks.rows, starts) / rows
    return Counted(logits, np.add.reduceat(blocks.clicks, starts), rows)
