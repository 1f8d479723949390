"""The report of an output as one HTML page: text, tables and SVG, nothing fetched from anywhere."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.redaction import redacted
from pipeline.report import charts
from pipeline.report.facts import Facts, gather, shares_by_stage
from pipeline.report.style import STYLE
from pipeline.tracking.drift import population_stability_index
from pipeline.tracking.metrics import STAGES
from pipeline.tracking.plot_data import largest_slices
from pipeline.words import shortened, size

MOST_ROWS = 40  # of a table
MISSING = "-"
# Quality figures and whether more is better; calibration is best at 1, so it is neither.
QUALITY = {
    "auc": ("AUC", True),
    "gauc": ("AUC by group", True),
    "logloss": ("logloss", False),
    "normalised_entropy": ("normalised entropy", False),
    "calibration": ("calibration (mean score / mean label)", None),
    "ece": ("expected calibration error", False),
    "brier": ("Brier score", False),
}
SPEED = {
    "rows_per_second": ("rows/s, start-up included", True),
    "rows_per_second_steady": ("rows/s, steady", True),
    "rows_per_second_per_gpu": ("rows/s a GPU", True),
    "wall_seconds": ("seconds", False),
    "startup_seconds": ("seconds of start-up", False),
    "batch_latency_p50_ms": ("batch latency, median (ms)", False),
    "batch_latency_p95_ms": ("batch latency, 95% (ms)", False),
    "batch_latency_p99_ms": ("batch latency, 99% (ms)", False),
    "scorer_busy_fraction": ("scorers busy", True),
    "cpu_busy_fraction": ("CPUs busy", None),
    "gpu_busy_fraction": ("GPUs busy", None),
    "gpu_memory_peak_bytes": ("GPU memory, most (bytes)", None),
    "gpu_power_mean_watts": ("GPU power, mean (W)", None),
}
COST = {
    "cost_per_million_rows": ("cost per million rows", False),
    "cost_per_million_rows_without_startup": ("the same without start-up", False),
}
# Settings that name a run rather than say how it scores.
NAMES_OF_A_RUN = ("output", "run_name", "baseline_run", "experiment", "mlflow_uri", "overwrite")


def write_report(output: str | Path, baseline: str | Path | None, target: Path) -> None:
    """Write the report of an output. ConfigError: an output is not finished. OSError."""
    facts = gather(output)
    target.write_text(page(facts, gather(baseline) if baseline else None), encoding="utf-8")


def page(facts: Facts, base: Facts | None = None) -> str:
    """The whole page."""
    sections = [
        what_ran(facts),
        what_came_out(facts, base),
        how_good(facts, base),
        beside(facts),
        how_fast(facts),
        what_it_cost(facts),
        what_differs(facts, base),
    ]
    title = f"{facts.bundle} {facts.date or ''}".strip()
    made = f"Made by dpiframe {version('dpiframe')}; identity {facts.manifest.identity}."
    body = "\n".join(section for section in sections if section)
    text = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}: report</title><style>{STYLE}</style></head><body><main>"
        f"{header(facts, title)}{tiles(facts)}{body}<footer>{escape(made)}</footer>"
        "</main></body></html>\n"
    )
    return redacted(text)


def header(facts: Facts, title: str) -> str:
    """Title, state, where the scores are."""
    done = facts.run.status == "FINISHED"
    state = "finished" if done else facts.run.status.lower()
    kind = "state" if done else "state bad"
    return (
        f'<h1>{escape(title)}<span class="{kind}">{escape(state)}</span></h1>'
        f'<p class="under"><code>{escape(facts.address)}</code></p>'
    )


def tiles(facts: Facts) -> str:
    """The figures that people look for first."""
    manifest, metrics = facts.manifest, facts.run.metrics
    rejected = manifest.rejected / max(manifest.rows, 1)
    found = [
        (f"{manifest.scored:,}", "rows scored", f"of {manifest.rows:,}"),
        (f"{manifest.rejected:,}", "rejected", f"{100 * rejected:.3g}% of the rows"),
    ]
    if "auc" in metrics:
        error = metrics.get("auc_error", 0.0)
        found.append((f"{metrics['auc']:.4f}", "AUC", f"± {error:.1g}" if error else "exact"))
    if "calibration" in metrics:
        found.append((f"{metrics['calibration']:.3f}", "calibration", "mean score / mean label"))
    rate = metrics.get("rows_per_second_steady", metrics.get("rows_per_second"))
    if rate is not None:
        steady = "steady" if "rows_per_second_steady" in metrics else "start-up included"
        found.append((shortened(int(rate)), "rows/s", steady))
    if "wall_seconds" in metrics:
        startup = metrics.get("startup_seconds")
        note = "" if startup is None else f"{duration(startup)} of it start-up"
        found.append((duration(metrics["wall_seconds"]), "from begin to end", note))
    if "cost_per_million_rows" in metrics:
        found.append((f"{metrics['cost_per_million_rows']:.3g}", "cost per million rows", ""))
    inner = "".join(
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b>'
        f"<i>{escape(note) or '&nbsp;'}</i></div>"
        for value, name, note in found
    )
    return f'<div class="tiles">{inner}</div>'


def what_ran(facts: Facts) -> str:
    """Model, input, machine."""
    manifest, params, tags = facts.manifest, facts.run.params, facts.run.tags
    config = manifest.config
    modules = Counter(str(one.get("op")) for one in _list(facts.model, "modules"))
    fields = _list(facts.model, "fields")
    model = {
        "bundle": config.get("bundle"),
        "digest": f"{manifest.bundle_digest[:16]}…",
        "model": _model(facts),
        "modules": ", ".join(
            f"{count} {kind}" if count > 1 else kind for kind, count in modules.items()
        ),
        "fields": f"{len(fields):,}" if fields else "",
        "rows of their tables": f"{sum(int(f['rows']) for f in fields):,}" if fields else "",
        "input form": config.get("form"),
        "precision": config.get("precision"),
    }
    places = config.get("input")
    listed = places if isinstance(places, list) else [places]
    shown = ", ".join(str(one) for one in listed[:2])
    ran = {
        "input": shown + (f" and {len(listed) - 2:,} more" if len(listed) > 2 else ""),
        "files": f"{len(manifest.files):,} ({size(sum(file.size for file in manifest.files))})",
        "units": f"{len(manifest.units):,}",
        "device": params.get("resolved_device", config.get("device")),
        "GPUs": tags.get("gpu"),
        "scorers": params.get("resolved_num_scorers"),
        "rows a batch": params.get("resolved_max_batch"),
        "CPU threads a scorer": params.get("resolved_threads"),
        "host": tags.get("host"),
        "versions": ", ".join(
            f"{name.removesuffix('_version')} {tags[name]}"
            for name in ("dpiframe_version", "torch_version", "ray_version", "pyarrow_version")
            if name in tags
        ),
        "commit": tags.get("git_sha", "")[:12],
    }
    return section("What ran", pair(facts_table(model), facts_table(ran)) + _imported(facts))


def _model(facts: Facts) -> str:
    spec = facts.model.get("spec", {})
    return str(spec.get("name", "")) if facts.model else "not known: the bundle has moved"


def _list(spec: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = spec.get("spec", {}).get(key, [])
    return [one for one in found if isinstance(one, dict)]


def _imported(facts: Facts) -> str:
    """The import report: how the bundle compares with the module that it was made of."""
    if not facts.imported:
        return ""
    flat = dict(_flat(facts.imported))
    return "<h3>Import report: the bundle against its PyTorch module</h3>" + facts_table(flat)


def _flat(data: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield f"{prefix}{key}", text


def what_came_out(facts: Facts, base: Facts | None) -> str:
    """Scores, rejected rows, what was left out."""
    picture = ""
    if facts.histogram.sum():
        baseline = base.histogram if base else None
        picture = charts.score_histogram(facts.histogram, baseline)
        metrics = facts.run.metrics
        text = ", ".join(
            f"{name} {metrics[f'score_{name}']:.4g}"
            for name in ("mean", "min", "max")
            if f"score_{name}" in metrics
        )
        outline = " The outline is the baseline's." if base else ""
        picture += f'<p class="note">Scores: {escape(text)}.{outline}</p>'
    parts = [_counts(facts), _rejected(facts)]
    bad_ids: Counter[str] = Counter()
    for unit in facts.manifest.units:
        bad_ids.update(unit.bad_ids)
    if bad_ids:
        rows = [[name, f"{count:,}"] for name, count in bad_ids.most_common(MOST_ROWS)]
        parts.append("<h3>Ids outside their table</h3>" + table(["field", "ids"], rows, {1}))
    if facts.manifest.quarantined:
        rows = [[one.path, f"{one.rows:,}", one.reason] for one in facts.manifest.quarantined]
        parts.append("<h3>Left out</h3>" + table(["file", "rows", "why"], rows[:MOST_ROWS], {1}))
    return section("What came out", pair(picture, "".join(parts)))


def _counts(facts: Facts) -> str:
    manifest, sizes = facts.manifest, (unit.bytes for unit in facts.manifest.units)
    by = manifest.bundle_of
    segments = [
        f"{value} by {by[value]}: {rows:,}" for value, rows in manifest.segment_rows.items()
    ]
    return facts_table(
        {
            "rows": f"{manifest.rows:,}",
            "scored": f"{manifest.scored:,}",
            "rejected": f"{manifest.rejected:,}",
            "parts": f"{len(manifest.units):,} ({size(sum(sizes))})",
            "columns beside the score": ", ".join([*manifest.key_columns, *manifest.carry_columns]),
            "rows of segments": "; ".join(segments),
        }
    )


def _rejected(facts: Facts) -> str:
    if not facts.rejected:
        return '<p class="note">No row was rejected.</p>'
    rows = [
        [one.reason, one.column, f"{one.rows:,}", one.example] for one in facts.rejected[:MOST_ROWS]
    ]
    found = "<h3>Rejected, and why</h3>" + table(["reason", "column", "rows", "such as"], rows, {2})
    if facts.rejected_read < facts.manifest.rejected:
        found += f'<p class="note">Of the first {facts.rejected_read:,} rejected rows.</p>'
    return found


def how_good(facts: Facts, base: Facts | None) -> str:
    """Figures against labels, calibration, slices; nothing without an evaluation."""
    evaluation = facts.evaluation
    if evaluation is None:
        return section(
            "How good",
            '<p class="note">The scores were not evaluated: name the label, with '
            "<code>label_column</code> in the job or <code>dpiframe evaluate OUTPUT --label "
            "COLUMN</code>.</p>",
        )
    curves: list[tuple[str, Sequence[Sequence[float]]]] = [("dot", evaluation["reliability"])]
    if base is not None and base.evaluation:
        curves.insert(0, ("dot2", base.evaluation["reliability"]))
    quality = evaluation["quality"]
    labelled = f"{quality['rows']:,} rows with a label, {quality['clicks']:,} clicks."
    figures = metrics_table(facts, base, QUALITY) + f'<p class="note">{labelled}</p>'
    chart = charts.calibration(curves) if any(len(curve) for _, curve in curves) else ""
    rings = " Rings: the baseline." if len(curves) > 1 else ""
    note = f'<p class="note">Clicks against scores, a point a twentieth of the rows.{rings}</p>'
    return section("How good", pair(figures, chart + note) + _slices(evaluation))


def beside(facts: Facts) -> str:
    """What the job made of the same rows beside `score`; nothing where it made nothing."""
    manifest, metrics = facts.manifest, facts.run.metrics
    config = manifest.config
    rows = []
    for name in (*manifest.beside, *manifest.outputs):
        width = manifest.outputs.get(name, 1)
        of = config.get("bundles", {}).get(name) or config.get("outputs", {}).get(name) or ""
        figures = [f"{f}_{name}" for f in ("score_mean", "score_psi", "auc", "logloss")]
        found = [metrics.get(figure) for figure in figures]
        made = "score" if width == 1 else f"{width:,} numbers"
        rows.append(
            [name, str(of), made, *("" if value is None else f"{value:.5g}" for value in found)]
        )
    if not rows:
        return ""
    head = ["name", "bundle or module", "is", "mean", "PSI against score", "AUC", "logloss"]
    return section("Beside it", table(head, rows, {3, 4, 5, 6}))


def _slices(evaluation: dict[str, Any]) -> str:
    found = largest_slices(evaluation)
    if not found:
        return ""
    whole = evaluation["quality"]["rows"]
    rows = [
        [name, value, f"{count:,}", meter(count / max(whole, 1)), f"{auc:.4f}"]
        for name, value, count, auc in found
    ]
    head = ["column", "value", "rows", "share", "AUC"]
    return "<h3>By slice</h3>" + table(head, rows, {2, 4}, html={3})


def how_fast(facts: Facts) -> str:
    """Rates, stages, units over time, latency."""
    units = facts.units
    parts = [metrics_table(facts, None, SPEED)]
    stages = shares_by_stage(units)
    total = sum(stages.values())
    if total:
        rows = [
            [swatch(name), f"{seconds:.3g} s", meter(seconds / total)]
            for name, seconds in stages.items()
        ]
        text = table(["stage, summed over units", "", ""], rows, {1}, html={0, 2})
        parts.append(text)
    both = pair(parts[0], "".join(parts[1:]))
    pictures = []
    if len(units.rows) and total:
        pictures.append("<h3>Units over time</h3>" + charts.timeline(units) + legend(stages))
    halves = []
    if len(units.rows) and total:
        note = "Shaded: start-up, until the first unit is scored. Dashed: the mean."
        picture = charts.throughput(units)
        halves.append(f'<h3>Throughput</h3>{picture}<p class="note">{note}</p>')
    if len(units.batches):
        halves.append("<h3>Latency</h3>" + charts.latency(units.batches))
    pictures.append(pair(*halves))
    return section("How fast", both + "".join(pictures))


def what_it_cost(facts: Facts) -> str:
    """Cost, where the job had a price."""
    metrics = facts.run.metrics
    price = facts.manifest.config.get("price_per_hour")
    if price is None or "wall_seconds" not in metrics:
        return section(
            "What it cost",
            '<p class="note">Not known: the job had no <code>price_per_hour</code>, or was not '
            "tracked.</p>",
        )
    machines = max(int(metrics.get("gpus", 0)), 1)
    seconds = metrics["wall_seconds"]
    rows = {
        "price an hour": f"{price:g}, of one {'GPU' if metrics.get('gpus') else 'machine'}",
        "time": f"{duration(seconds)} of {machines}",
        "cost": f"{float(price) * machines * seconds / 3600:.4g}",
    }
    return section("What it cost", facts_table(rows) + metrics_table(facts, None, COST))


def what_differs(facts: Facts, base: Facts | None) -> str:
    """Figures and settings against the baseline's."""
    if base is None:
        return ""
    psi = None
    if facts.histogram.sum() and base.histogram.sum():
        psi = population_stability_index(base.histogram, np.asarray(facts.histogram))
    parts = [f'<p class="under">Baseline: <code>{escape(base.address)}</code></p>']
    if psi is not None:
        word = "stable" if psi < 0.1 else "moved" if psi <= 0.25 else "shifted"
        parts.append(
            f'<p class="note">Scores against the baseline: PSI {psi:.3g} ({word}; below 0.1 is '
            "stable, above 0.25 has shifted).</p>"
        )
    parts.append(metrics_table(facts, base, {**QUALITY, **SPEED, **COST}))
    ours, theirs = _settings(facts), _settings(base)
    names = [n for n in dict.fromkeys([*ours, *theirs]) if ours.get(n) != theirs.get(n)]
    rows = [[name, _cut(theirs.get(name)), _cut(ours.get(name))] for name in names]
    if rows:
        parts.append("<h3>Settings that differ</h3>")
        parts.append(table(["setting", "baseline", "this run"], rows[:MOST_ROWS], set()))
    return section("Against the baseline", "".join(parts))


def _settings(facts: Facts) -> dict[str, str]:
    found = {key: str(value) for key, value in facts.manifest.config.items()}
    found |= {k: v for k, v in facts.run.params.items() if k.startswith("resolved_")}
    found["bundle digest"] = facts.manifest.bundle_digest[:16]
    keys = ("gpu", "host", "git_sha", "dpiframe_version", "torch_version", "ray_version")
    found |= {key: facts.run.tags[key] for key in keys if key in facts.run.tags}
    return {key: value for key, value in found.items() if key not in NAMES_OF_A_RUN}


def _cut(text: str | None) -> str:
    return MISSING if text is None else text if len(text) <= 120 else f"{text[:117]}…"


def metrics_table(
    facts: Facts, base: Facts | None, names: Mapping[str, tuple[str, bool | None]]
) -> str:
    """Figures that this run has; with a baseline, its figures and the change."""
    ours, theirs = facts.run.metrics, base.run.metrics if base else {}
    rows = []
    for key, (name, more_is_better) in names.items():
        if key not in ours:
            continue
        row = [escape(name), figure(ours[key])]
        if base is not None:
            row = [
                escape(name),
                figure(theirs[key]) if key in theirs else MISSING,
                figure(ours[key]),
            ]
            row.append(_change(theirs.get(key), ours[key], more_is_better))
        rows.append(row)
    head = ["", "this run"] if base is None else ["", "baseline", "this run", "change"]
    numbers = {1, 2, 3}
    return table(head, rows, numbers, html={0, 1, 2, 3}) if rows else ""


def _change(before: float | None, after: float, more_is_better: bool | None) -> str:
    if before is None or not before or before == after:
        return "" if before is None else "±0"
    share = after / before - 1
    text = f"{100 * share:+.2f}%" if abs(share) < 1 else f"{after / before:.3g} times"
    if more_is_better is None or abs(share) < 5e-5:
        return text
    better = (share > 0) == more_is_better
    return f'<span class="{"better" if better else "worse"}">{text}</span>'


def section(title: str, inner: str) -> str:
    """A card of the page."""
    return f"<section><h2>{escape(title)}</h2>{inner}</section>"


def pair(*parts: str) -> str:
    """Parts side by side, one below the other on a phone; empty ones are left out."""
    inner = "".join(f"<div>{part}</div>" for part in parts if part)
    return f'<div class="pair">{inner}</div>' if inner else ""


def facts_table(rows: dict[str, Any]) -> str:
    """Names and values; those without a value are left out."""
    shown = {name: str(value) for name, value in rows.items() if value not in (None, "")}
    inner = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in shown.items()
    )
    return f'<table class="facts"><tbody>{inner}</tbody></table>'


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], numbers: set[int], html: Iterable[int] = ()
) -> str:
    """A table; `numbers`: columns of numbers; `html`: columns that are HTML already."""
    raw = set(html)

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if at in numbers else ''}>"
            f"{cell if at in raw and tag == 'td' else escape(cell)}</{tag}>"
            for at, cell in enumerate(row)
        )

    top = f"<thead><tr>{cells(head, 'th')}</tr></thead>" if any(head) else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f'<div class="scroll"><table>{top}<tbody>{body}</tbody></table></div>'


def meter(share: float) -> str:
    """A bar of a share from 0 to 1."""
    return f'<span class="meter"><i style="width:{100 * min(max(share, 0), 1):.1f}%"></i></span>'


def swatch(stage: str) -> str:
    """A stage's name with its colour."""
    box = f'<svg viewBox="0 0 12 12"><rect class="s{STAGES.index(stage)}" width="12" height="12"/>'
    return f'<span class="legend"><span>{box}</svg>{escape(stage.replace("_", " "))}</span></span>'


def legend(stages: Iterable[str]) -> str:
    """The colours of the timeline."""
    return f'<div class="legend">{"".join(swatch(stage) for stage in stages)}</div>'


def figure(value: float) -> str:
    """A number with as many digits as it deserves."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return (
        f"{value:.4g}"
        if abs(value) >= 1
        else f"{value:.5f}"
        if abs(value) > 1e-4
        else f"{value:.3g}"
    )


def duration(seconds: float) -> str:
    """`2.3 s`, `4 min 10 s`, `3 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
