"""The table that ends a job: rows, speed, where the scores are."""

from __future__ import annotations

from pipeline.scoring.job import JobResult


def summary(result: JobResult) -> str:
    """A job's result as aligned lines."""
    lines = {
        "status": result.status,
        "rows": f"{result.rows:,}",
        "scored": f"{result.scored:,}",
        "rejected": f"{result.rejected:,}",
        "segments": segments(result),
        "quarantined": f"{result.quarantined:,}" if result.quarantined else "",
        "units": f"{result.units:,}" + resumed(result),
        "duplicate keys": "" if result.duplicate_keys is None else f"{result.duplicate_keys:,}",
        "decoded by": decoders(result),
        "seconds": f"{result.seconds:.1f}",
        "rows/s": f"{result.rows_per_s:,.0f}" if result.rows_per_s else "",
        "AUC": _number(result.evaluation.get("auc")),
        "logloss": _number(result.evaluation.get("logloss")),
        "calibration": _number(result.evaluation.get("calibration")),
        **other_aucs(result),
        "cost": cost(result),
        "output": result.output,
        "identity": result.identity,
        "MLflow run": result.run_url or result.run_id or "",
    }
    shown = {name: text for name, text in lines.items() if text}
    width = max(map(len, shown))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in shown.items())


def other_aucs(result: JobResult) -> dict[str, str]:
    """The AUC of each bundle or task beside the job's own scores."""
    found = {name.removeprefix("auc_"): value for name, value in result.evaluation.items()}
    return {f"AUC {name}": _number(found.get(name)) for name in (*result.bundles, *result.outputs)}


def segments(result: JobResult) -> str:
    """Rows of each segment, and those of `bundle`."""
    if not result.segments:
        return ""
    rows = {**result.segments, "others": result.rows - sum(result.segments.values())}
    return ", ".join(f"{value} {count:,}" for value, count in rows.items())


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"


def cost(result: JobResult) -> str:
    """What this start cost, where a price is configured."""
    if result.cost is None:
        return ""
    text = f"{result.cost:.4g}"
    if result.cost_per_million_rows is not None:
        text += f", {result.cost_per_million_rows:.4g} per million rows"
    if result.cost_per_million_rows_without_startup is not None:
        text += f", {result.cost_per_million_rows_without_startup:.4g} without start-up"
    return text


def decoders(result: JobResult) -> str:
    """How many units each way of reading took: the GPU's is the quickest, pyarrow's the slowest."""
    names = {"gpu": "the GPU", "cpu": "the CPU", "arrow": "pyarrow"}
    known = {names[way]: result.read_by[way] for way in names if way in result.read_by}
    return ", ".join(f"{name} {units:,}" for name, units in known.items())


def resumed(result: JobResult) -> str:
    """How many units an earlier start had published."""
    if not result.resumed_units or result.status == "complete before":
        return ""
    return f" ({result.resumed_units:,} were published before)"
