"""The result of `dpiframe bench job`, and its table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from pipeline.bench.job_case import JobCase
from pipeline.bench.job_inputs import Inputs
from pipeline.bench.job_peer_run import PeerRun
from pipeline.bench.job_rates import STEADY_TEXT
from pipeline.bench.job_run import JobRun
from pipeline.bench.job_usage import KINDS, Usage

MB = 1e6


class JobReport(BaseModel):
    """Everything that was measured in one call, and where."""

    case: JobCase
    inputs: Inputs
    storage: str
    runs: list[JobRun]
    peer: PeerRun | None
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

    def over_peer(self) -> dict[str, float]:
        """Rows/s of our first run over the peer's: from the command on, and steady."""
        if self.peer is None:
            return {}
        ours, theirs = self.runs[0].rates, self.peer.rates
        ratios = {"from the command on": ours.rows_per_s / theirs.rows_per_s}
        if ours.steady_rows_per_s and theirs.steady_rows_per_s:
            ratios["steady"] = ours.steady_rows_per_s / theirs.steady_rows_per_s
        return ratios

    def speed_ups(self) -> dict[int, float]:
        """Rows/s of each number of GPUs over those of the first, at the same rows."""
        first = self.runs[0].rates.rows_per_s
        alike = [run for run in self.runs[1:] if run.gpus != self.runs[0].gpus]
        return {run.gpus: run.rates.rows_per_s / first for run in alike}


def show(report: JobReport) -> str:
    """The report as a short table."""
    lines = [report.title(), "", *_figures(report), "", *_stages(report.runs[0]), ""]
    lines += [f"limit: {report.runs[0].limit}", *sentences(report), STEADY_TEXT]
    return "\n".join(lines)


def sentences(report: JobReport) -> Iterator[str]:
    """What follows from the figures."""
    for gpus, ratio in report.speed_ups().items():
        yield f"{gpus} GPUs: {ratio:.2f}x of {report.runs[0].gpus}"
    for name, ratio in report.over_peer().items():
        yield f"over the peer, {name}: {ratio:.1f}x"
    if report.peer is not None:
        same = report.peer.agreement
        yield (
            f"scores agree on {same.rows:,} sampled rows: logits differ by "
            f"{same.largest_difference:.1e} at most ({same.tolerance} tolerated)"
        )


def _figures(report: JobReport) -> Iterator[str]:
    """A line a figure, a column a run, the peer's last."""
    ours = report.runs
    runs: list[JobRun | PeerRun] = [*ours, *([report.peer] if report.peer else [])]
    names = [f"{'peer' if run is report.peer else 'ours'}, {_device(run.gpus)}" for run in runs]
    rates = [run.rates for run in runs]
    yield _line("", names)
    yield _line("rows", [f"{run.rows:,}" for run in runs])
    yield _line("cores", [str(run.cores) for run in runs])
    yield _line("units", [f"{run.units:,}" for run in ours])
    yield _line("s to _SUCCESS", [f"{r.seconds:.1f}" for r in rates])
    yield _line("M rows/s", [_millions(r.rows_per_s) for r in rates])
    yield _line("M rows/s, steady", [_millions(r.steady_rows_per_s) for r in rates])
    yield _line("s to a plan", [f"{run.planned_s:.1f}" for run in ours])
    yield _line("s to a unit at a scorer", [f"{run.first_unit_started_s:.1f}" for run in ours])
    yield _line("s to a file of scores", [f"{r.first_s:.1f}" for r in rates])
    yield _line("s of tail", [f"{r.tail_s:.1f}" for r in rates])
    yield from _usage([run.usage for run in runs])


def _usage(used: Sequence[Usage]) -> Iterator[str]:
    for kind, name in KINDS.items():
        own = [u.processes.get(kind) for u in used]
        if any(own):
            yield _line(
                f"{name}, peak MB", [f"{u.peak_bytes / MB:,.0f}" if u else "-" for u in own]
            )
            yield _line(f"{name}, cores", [_number(u.steady_cores if u else None) for u in own])
    yield _line("object store, peak MB", [f"{u.peak_store_bytes / MB:,.0f}" for u in used])
    gpus = [u.gpus or [] for u in used]
    if any(gpus):
        yield _line("GPU busy", [" ".join(_percent(g.busy) for g in own) for own in gpus])
        memory = [max((g.peak_memory_mib for g in own), default=0.0) for own in gpus]
        yield _line("GPU memory, peak MiB", [f"{mib:,.0f}" for mib in memory])


def _stages(run: JobRun) -> Iterator[str]:
    yield f"{'stage':<10}{'where':<12}{'s per M rows':>13}{'units in it':>13}{'of places':>11}"
    for s in run.stages:
        share = f"{s.share:.0%} of {s.places}"
        yield f"{s.name:<10}{s.where:<12}{s.seconds_per_million:>13.3f}{s.busy:>13.2f}{share:>11}"


def _device(gpus: int) -> str:
    return f"{gpus} GPU" if gpus else "CPU"


def _line(name: str, cells: Sequence[str]) -> str:
    return f"{name:<26}" + "".join(f"{cell:>16}" for cell in cells)


def _millions(rows_per_s: float | None) -> str:
    return "-" if rows_per_s is None else f"{rows_per_s / 1e6:.3f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
