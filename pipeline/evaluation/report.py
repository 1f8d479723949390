"""An evaluation as text, and as the file that lies beside the scores."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.evaluation.differences import Differences
from pipeline.evaluation.evaluate import Evaluation, Quality
from pipeline.publishing.output import open_output
from pipeline.publishing.records import EVALUATION

SLICES_PRINTED = 20
MISSING = "-"


def write_evaluation(output: str | Path, found: Evaluation) -> None:
    """Put an evaluation beside the scores. ResumableError: the output cannot be written."""
    place = open_output(output)
    with place.errors():
        place.write(EVALUATION, (found.model_dump_json(indent=1) + "\n").encode())


def read_evaluation(output: str | Path) -> Evaluation | None:
    """The evaluation beside the scores; None where there is none that this version wrote."""
    try:
        with open_output(output).open(EVALUATION) as file:
            document = json.loads(file.read())
        for each in (document, *document.get("others", {}).values()):
            each.pop("metrics", None)  # computed
        return Evaluation.model_validate(document)
    except (FileNotFoundError, ValueError):
        return None


def as_text(found: Evaluation, output: str) -> str:
    """The figures, the reliability curve and the largest slices."""
    quality = found.quality
    auc = _number(quality.auc, 6)
    if quality.auc_error:
        auc += f" (the exact one is at most {quality.auc_error:.1g} away)"
    lines = [
        f"{output}: {quality.rows:,} rows with a label, {quality.clicks:,} clicks",
        f"  AUC                 {auc}",
        f"  logloss             {_number(quality.logloss, 6)}",
        f"  normalised entropy  {_number(quality.normalised_entropy, 4)}",
        f"  calibration         {_number(quality.calibration, 4)} (mean score / mean label)",
        f"  ECE                 {_number(found.ece, 5)}",
        f"  Brier score         {_number(quality.brier, 6)}",
    ]
    if found.question.group is not None:
        lines.append(
            f"  AUC by {found.question.group}: {_number(found.gauc, 6)}, of "
            f"{found.groups_with_both:,} of {found.groups:,} groups, which have both classes"
        )
    if found.without_score or found.without_label:
        lines.append(
            f"  left out: {found.without_score:,} rows without a score, {found.without_label:,} "
            "without a label"
        )
    for columns, slices in found.slices.items():
        lines += ["", f"by {columns}", _header()]
        lines += [_row(", ".join(one.values), one) for one in slices[:SLICES_PRINTED]]
        left = len(slices) - SLICES_PRINTED + found.slices_left_out.get(columns, 0)
        if left > 0:
            lines.append(f"  and {left:,} more with fewer rows")
    for bundle, other in found.others.items():
        lines += ["", as_text(other, f"{output}, score_{bundle}")]
    return "\n".join(lines)


def _header() -> str:
    return f"  {'':30} {'rows':>14} {'clicks':>12} {'AUC':>9} {'logloss':>9} {'calibr.':>8}"


def _row(name: str, one: Quality) -> str:
    short = name if len(name) <= 30 else f"{name[:27]}..."
    return (
        f"  {short:30} {one.rows:>14,} {one.clicks:>12,} {_number(one.auc, 5):>9} "
        f"{_number(one.logloss, 5):>9} {_number(one.calibration, 3):>8}"
    )


def _number(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"


def differences_text(found: Differences) -> str:
    """Differences of two outputs, and the rows that differ most."""
    lines = [
        f"rows that both have scored: {found.rows:,}, of which {found.differing:,} differ",
        f"  difference: largest {found.largest:.3g}, mean {found.mean:.3g}, 99.9% at most "
        f"{found.p999:.3g}",
        f"  rank correlation: {_number(found.rank_correlation, 6)} of {found.rank_rows:,} rows",
        f"  rows only in the base: {found.only_in_base:,}, only in the candidate: "
        f"{found.only_in_candidate:,}, rejected by one: {found.one_is_null:,}",
    ]
    if found.worst:
        lines.append("  the rows that differ most:")
    for row in found.worst:
        key = ", ".join(f"{name}={value!r}" for name, value in row.key.items())
        lines.append(f"    {key}: {_number(row.base, 7)}, {_number(row.candidate, 7)}")
    return "\n".join(lines)
