"""Runs side by side: parameters and tags that differ, metrics with their relative difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.tracking.comparison.run_view import RunView
from pipeline.tracking.metrics import METRICS

# Tags that say what ran where; the others name the run itself.
COMPARED_TAGS = (
    "identity",
    "bundle_digest",
    "host",
    "gpu",
    "git_sha",
    "dpiframe_version",
    "python_version",
    "ray_version",
    "torch_version",
    "pyarrow_version",
    "mlflow_version",
    "baseline_status",
    "problems",
)
WIDEST_CELL = 44
MISSING = "-"


def compare(runs: Sequence[RunView]) -> dict[str, Any]:
    """The comparison as plain data; relative differences are to the first run.

    `params` and `tags` hold only what differs, a value a run (None: the run has none).
    `metrics` holds every metric that any run has: `values`, and `relative` = value / first - 1.
    """
    params = sorted({key for run in runs for key in run.params})
    known = [name for name in METRICS if any(name in run.metrics for run in runs)]
    return {
        "runs": [{"label": run.label, "status": run.status} for run in runs],
        "params": _differing(params, [run.params for run in runs]),
        "tags": _differing(COMPARED_TAGS, [run.tags for run in runs]),
        "metrics": {name: _metric([run.metrics.get(name) for run in runs]) for name in known},
    }


def format_comparison(comparison: dict[str, Any]) -> str:
    """The comparison as a plain text table, a column a run."""
    runs = comparison["runs"]
    lines = [
        ["run", *(_tail(run["label"]) for run in runs)],
        ["status", *(run["status"] for run in runs)],
    ]
    for title in ("params", "tags"):
        if comparison[title]:
            lines.append([f"{title} that differ"])
            lines += [
                [f"  {key}", *(MISSING if value is None else value for value in values)]
                for key, values in comparison[title].items()
            ]
    lines.append(["metrics (difference to the first run)"])
    for name, metric in comparison["metrics"].items():
        pairs = zip(metric["values"], metric["relative"], strict=True)
        lines.append([f"  {name}", *(_cell(value, relative) for value, relative in pairs)])
    return _align(lines)


def _differing(
    keys: Sequence[str], columns: Sequence[dict[str, str]]
) -> dict[str, list[str | None]]:
    rows = {key: [column.get(key) for column in columns] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _metric(values: list[float | None]) -> dict[str, list[float | None]]:
    relative = [None, *(_relative(value, values[0]) for value in values[1:])]
    return {"values": values, "relative": relative}


def _relative(value: float | None, first: float | None) -> float | None:
    return value / first - 1 if value is not None and first else None


def _cell(value: float | None, relative: float | None) -> str:
    if value is None:
        return MISSING
    whole = float(value).is_integer() and abs(value) < 1e15
    text = f"{int(value):,}" if whole else f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if relative is None:
        return text
    return f"{text} (=)" if relative == 0 else f"{text} ({relative:+.1%})"


def _align(lines: list[list[str]]) -> str:
    """Columns as wide as their widest cell; a line of one cell is a heading."""
    cut = [[_shorten(cell) for cell in line] for line in lines]
    rows = [line for line in cut if len(line) > 1]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    text = []
    for line in cut:
        if len(line) == 1:
            text.append(f"\n{line[0]}")
        else:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            text.append("  ".join(cells).rstrip())
    return "\n".join(text)


def _tail(label: str) -> str:
    return label if len(label) <= WIDEST_CELL else f"...{label[3 - WIDEST_CELL :]}"


def _shorten(cell: str) -> str:
    cell = cell.replace("\n", " ")
    return cell if len(cell) <= WIDEST_CELL else f"{cell[: WIDEST_CELL - 3]}..."
