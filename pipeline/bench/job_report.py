"""The result of `dpiframe bench job`, and its table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from pipeline.bench.job_case import JobCase
from pipeline.bench.job_inputs import Inputs
from pipeline.bench.job_rates import STEADY_TEXT
from pipeline.bench.job_run import JobRun
from pipeline.bench.job_usage import KINDS

MB = 1e6


class JobReport(BaseModel):
    """Everything that was measured in one call, and where."""

    case: JobCase
    inputs: Inputs
    storage: str
    runs: list[JobRun]
    commit: str
    time: str
    machine: dict[str, str]

    def title(self) -> str:
        """The case in one line."""
        c, m = self.case, self.machine
        where = m.get("gpu") or m["cpu"]
        hidden = "-".join(map(str, c.hidden))
        return (
            f"{c.model}, {self.inputs.table_rows:,} table rows x {c.dim}, MLP {hidden}, "
            f"{c.precision}; {c.form} rows, {self.inputs.rows:,} distinct, listed again to make "
            f"more, {self.storage}; {where}"
        )


def show(report: JobReport) -> str:
    """The report as a short table."""
    lines = [report.title(), *_columns(report.runs), "", *_stages(report.runs[0]), ""]
    lines += [f"limit: {report.runs[0].limit}", STEADY_TEXT]
    return "\n".join(lines)


def _columns(runs: Sequence[JobRun]) -> Iterator[str]:
    """A line a figure, a column a run."""
    yield _line("", [f"ours, {r.gpus} GPU" if r.gpus else "ours, CPU" for r in runs])
    yield _line("rows", [f"{r.rows:,}" for r in runs])
    yield _line("units, cores", [f"{r.units:,}, {r.cores}" for r in runs])
    yield _line("seconds to _SUCCESS", [f"{r.rates.seconds:.1f}" for r in runs])
    yield _line("M rows/s", [_millions(r.rates.rows_per_s) for r in runs])
    yield _line("M rows/s, steady", [_millions(r.rates.steady_rows_per_s) for r in runs])
    yield _line("s to a plan", [f"{r.planned_s:.1f}" for r in runs])
    yield _line("s to a unit at a scorer", [f"{r.first_unit_started_s:.1f}" for r in runs])
    yield _line("s to a published unit", [f"{r.rates.first_s:.1f}" for r in runs])
    yield _line("s of tail", [f"{r.rates.tail_s:.1f}" for r in runs])
    for kind, name in KINDS.items():
        used = [r.usage.processes.get(kind) for r in runs]
        if any(used):
            yield _line(f"{name}: MB", [f"{u.peak_bytes / MB:,.0f}" if u else "-" for u in used])
            yield _line(f"{name}: cores", [_number(u.steady_cores if u else None) for u in used])
    yield _line("object store: MB", [f"{r.usage.peak_store_bytes / MB:,.0f}" for r in runs])
    gpus = [r.usage.gpus or [] for r in runs]
    if any(gpus):
        yield _line("GPU busy", [" ".join(_percent(g.busy) for g in own) for own in gpus])
        memory = [max((g.peak_memory_mib for g in own), default=0.0) for own in gpus]
        yield _line("GPU memory: MiB", [f"{mib:,.0f}" for mib in memory])


def _stages(run: JobRun) -> Iterator[str]:
    yield f"{'stage':<10}{'where':<12}{'s per M rows':>13}{'units in it':>13}{'of places':>11}"
    for s in run.stages:
        share = f"{s.share:.0%} of {s.places}"
        yield (f"{s.name:<10}{s.where:<12}{s.seconds_per_million:>13.3f}{s.busy:>13.2f}{share:>11}")


def _line(name: str, cells: Sequence[str]) -> str:
    return f"{name:<26}" + "".join(f"{cell:>16}" for cell in cells)


def _millions(rows_per_s: float | None) -> str:
    return "-" if rows_per_s is None else f"{rows_per_s / 1e6:.3f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
