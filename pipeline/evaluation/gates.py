"""Verdicts on a candidate against a base, which know noise; gates that a schedule can stop at."""

from __future__ import annotations

import math
from typing import NamedTuple

from pipeline.tracking.compare import RunView

# A difference counts where it is larger than so many standard errors.
SIGNIFICANT = 2.0


class Verdict(NamedTuple):
    """What holds of a figure, in words; `relative` and `noise` are of the base's value."""

    figure: str
    relative: float | None  # candidate / base - 1
    noise: float | None  # two standard errors of it
    text: str


class Gates(NamedTuple):
    """Limits that a candidate must keep; None: not asked."""

    max_psi: float | None = None
    min_auc_ratio: float | None = None
    max_slowdown: float | None = None


def throughput_verdict(base: RunView, candidate: RunView) -> Verdict:
    """Whether the candidate is faster or slower in steady state."""
    name = "rows_per_second_steady"
    rates = [view.metrics.get(name) for view in (base, candidate)]
    errors = [view.metrics.get(f"{name}_error") for view in (base, candidate)]
    for view, rate, error in zip((base, candidate), rates, errors, strict=True):
        if not rate or error is None:
            reason = f"cannot tell: {view.label} has no steady rate (20 units and 10 s are needed)"
            return Verdict("throughput", None, None, reason)
    (slow, fast), (slow_error, fast_error) = map(_floats, (rates, errors))
    relative = fast / slow - 1
    noise = SIGNIFICANT * (fast / slow) * math.hypot(slow_error / slow, fast_error / fast)
    return Verdict("throughput", relative, noise, in_words(relative, noise, "faster", "slower"))


def auc_verdict(base: RunView, candidate: RunView) -> Verdict:
    """Whether the candidate ranks better or worse, as if the rows of both were not the same."""
    aucs = [view.metrics.get("auc") for view in (base, candidate)]
    for view, auc in zip((base, candidate), aucs, strict=True):
        if auc is None:
            return Verdict("AUC", None, None, f"cannot tell: {view.label} has no AUC")
    low, high = _floats(aucs)
    errors = [auc_standard_error(view) for view in (base, candidate)]
    relative = high / low - 1
    noise = SIGNIFICANT * math.hypot(*errors) / low
    return Verdict("AUC", relative, noise, in_words(relative, noise, "better", "worse"))


def auc_standard_error(view: RunView) -> float:
    """The standard error of an AUC, by Hanley and McNeil (1982)."""
    auc = view.metrics["auc"]
    rows = view.metrics.get("labelled_rows", 0.0)
    clicks = view.metrics.get("labelled_clicks", 0.0)
    others = rows - clicks
    if clicks <= 0 or others <= 0:
        return math.inf
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (clicks - 1) * (q1 - auc**2) + (others - 1) * (q2 - auc**2)
    return math.sqrt(max(variance, 0.0) / (clicks * others))


def broken(gates: Gates, base: RunView, candidate: RunView, psi: float | None) -> list[str]:
    """The limits that the candidate breaks, or of which it cannot be told, a sentence each."""
    found: list[str] = []
    if gates.max_psi is not None:
        if psi is None:
            found.append("PSI: cannot tell: one of the outputs has no scores")
        elif psi > gates.max_psi:
            found.append(f"PSI: {psi:.4f} is above --max-psi {gates.max_psi:g}")
    if gates.min_auc_ratio is not None:
        verdict = auc_verdict(base, candidate)
        if verdict.relative is None:
            found.append(f"AUC: {verdict.text}")
        elif 1 + verdict.relative < gates.min_auc_ratio:
            ratio = 1 + verdict.relative
            found.append(
                f"AUC: {candidate.metrics['auc']:.5f} is {ratio:.5f} of {base.metrics['auc']:.5f}, "
                f"below --min-auc-ratio {gates.min_auc_ratio:g}"
            )
    if gates.max_slowdown is not None:
        found += too_slow(gates.max_slowdown, throughput_verdict(base, candidate))
    return found


def too_slow(limit: float, verdict: Verdict) -> list[str]:
    """What breaks a limit of how much slower the candidate may be, as of `broken`."""
    if verdict.relative is None or verdict.noise is None:
        return [f"{verdict.figure}: {verdict.text}"]
    slowdown = -verdict.relative
    if slowdown > limit:
        return [f"{verdict.figure}: {verdict.text}, more than --max-slowdown {limit:g} allows"]
    if verdict.noise > limit and slowdown + verdict.noise > limit:
        return [
            f"{verdict.figure}: cannot tell: the noise, {verdict.noise:.1%}, exceeds {limit:.1%}"
        ]
    return []


def in_words(relative: float, noise: float, better: str, worse: str) -> str:
    """A change against the noise, as text."""
    if abs(relative) <= noise:
        return f"no difference beyond noise ({relative:+.2%}, noise {noise:.2%})"
    return f"{better if relative > 0 else worse} by {abs(relative):.2%} (noise {noise:.2%})"


def _floats(values: list[float | None]) -> tuple[float, float]:
    first, second = (float(value or 0.0) for value in values)
    return first, second
