"""The report of `dpiframe bench job`: as text for a terminal, and as a Markdown page."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from pipeline.bench.job.case import Inputs, JobCase
from pipeline.bench.job.monitor import KINDS, Usage
from pipeline.bench.job.runs import JobRun, PeerRun
from pipeline.bench.job.throughput import STEADY_TEXT

Run = JobRun | PeerRun
Row = list[str]  # a table's row: its name, then a cell a run; empty where there is no value
MB = 1e6
VERSIONS = ("driver", "cuda", "torch", "ray", "pyarrow", "mlflow", "python")


class JobReport(BaseModel):
    """Everything that one `bench job` measured, and on what machine."""

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
        c = self.case
        where = self.machine.get("gpu") or self.machine["cpu"]
        hidden = "-".join(map(str, c.hidden))
        return (
            f"{c.model}, {self.inputs.table_rows:,} table rows x {c.dim}, MLP {hidden}, "
            f"{c.precision}; {c.form} rows{c.written}, {self.inputs.rows:,} distinct, "
            f"{self.storage}; {where}"
        )

    def speed_ups(self) -> dict[int, float]:
        """Steady rows/s of each number of GPUs over those of the first; 0 without steady state."""
        first = self.runs[0]
        others = [run for run in self.runs[1:] if run.gpus != first.gpus]
        return {run.gpus: speed_up(run, first, steady=True) for run in others}

    def over_peer(self) -> dict[str, float]:
        """Rows/s of our first run over the peer's: from the command on, and steady."""
        if self.peer is None:
            return {}
        ratios = {"from the command on": speed_up(self.runs[0], self.peer)}
        steady = speed_up(self.runs[0], self.peer, steady=True)
        return ratios | ({"steady": steady} if steady else {})


def speed_up(run: Run, other: Run, steady: bool = False) -> float:
    """Rows/s of one run over another's; 0 where one has no steady state."""
    if not steady:
        return run.rates.rows_per_s / other.rates.rows_per_s
    ours, theirs = run.rates.steady_rows_per_s, other.rates.steady_rows_per_s
    return ours / theirs if ours and theirs else 0.0


def sentences(report: JobReport) -> Iterator[str]:
    """Conclusions from the figures: bottlenecks, memory growth, speed-ups, agreement."""
    for run in report.runs:
        yield f"{run_name(run)}, {run.rows:,} rows: {run.limit}"
    for run in [run for run in report.runs[1:] if run.gpus == report.runs[0].gpus]:
        yield f"memory, {report.runs[0].rows:,} and {run.rows:,} rows: {peaks(report.runs[0], run)}"
    for gpus, ratio in report.speed_ups().items():
        yield f"{gpus} GPUs are {ratio:.2f} times as fast as {report.runs[0].gpus}, steady"
    for name, ratio in report.over_peer().items():
        yield f"ours is {ratio:.1f} times as fast as the peer, {name}"
    if report.peer is not None:
        same = report.peer.agreement
        yield (
            f"scores of ours and the peer agree on {same.rows:,} sampled rows: logits differ by "
            f"{same.largest_difference:.1e} at most ({same.tolerance} tolerated)"
        )


def peaks(*runs: JobRun) -> str:
    """Peak private memory of all processes, and peak size of the object store."""
    private = (f"{run.usage.peak_bytes() / 1e6:,.0f}" for run in runs)
    store = (f"{run.usage.peak_store_bytes / 1e6:,.0f}" for run in runs)
    return f"{' and '.join(private)} MB of all processes, {' and '.join(store)} MB of object store"


def run_name(run: Run) -> str:
    """Whose run, and on what hardware."""
    return f"{'ours' if isinstance(run, JobRun) else 'peer'}, {hardware(run)}"


def hardware(run: Run) -> str:
    """The GPUs of a run, or the CPU."""
    return f"{run.gpus} GPU" if run.gpus else "CPU"


def show(report: JobReport) -> str:
    """A report for a terminal."""
    tables = [*aligned(figure_rows(report)), "", *aligned(stage_rows(report.runs[0])), ""]
    return "\n".join([report.title(), "", *tables, *sentences(report), STEADY_TEXT])


def page(reports: Sequence[JobReport]) -> str:
    """Reports as Markdown, one after another."""
    gpu = next((r.machine["gpu"] for r in reports if "gpu" in r.machine), "CPU")
    lines = [f"# The whole job, {gpu}", ""]
    lines += ["Made by `dpiframe bench page`; [how to read it](../bench_job.md).", ""]
    for report in reports:
        lines += [f"## {report.title()}", "", _origin(report), "", *piped(figure_rows(report)), ""]
        for run in report.runs:
            lines += [f"{run_name(run)}, {run.rows:,} rows:", "", *piped(stage_rows(run)), ""]
        lines += [*(f"- {sentence}" for sentence in sentences(report)), ""]
    return "\n".join(lines).rstrip() + "\n"


def figure_rows(report: JobReport) -> list[Row]:
    """A row per figure, a column per run, the peer's last; the first row is the heading."""
    ours = report.runs
    runs: list[Run] = [*ours, *([report.peer] if report.peer else [])]
    rates = [run.rates for run in runs]
    return [
        ["", *map(run_name, runs)],
        ["rows", *(f"{run.rows:,}" for run in runs)],
        ["cores", *(str(run.cores) for run in runs)],
        ["units", *(f"{run.units:,}" for run in ours)],
        ["seconds, command to _SUCCESS", *(f"{r.seconds:.1f}" for r in rates)],
        ["M rows/s", *(_millions(r.rows_per_s) for r in rates)],
        ["M rows/s, steady", *(_millions(r.steady_rows_per_s) for r in rates)],
        *_start_rows(ours),
        ["s to a file of scores", *(f"{r.first_s:.1f}" for r in rates)],
        ["s after the last file", *(f"{r.tail_s:.1f}" for r in rates)],
        *_usage_rows([run.usage for run in runs]),
    ]


def _start_rows(runs: Sequence[JobRun]) -> Iterator[Row]:
    """What the first scores wait for, one after the other; less of it of runs of before."""
    old = all(run.plan_s is None for run in runs)
    if not old:
        yield ["s to its imports", *(_seconds(run.imported_s) for run in runs)]
        yield ["s to a plan", *(_seconds(run.plan_s) for run in runs)]
        yield ["s to Ray, if it is the runner", *(_seconds(run.connected_s) for run in runs)]
    yield ["s to a plan" if old else "s to the output claimed"] + [
        _seconds(run.planned_s) for run in runs
    ]
    yield ["s to a unit read", *(_seconds(run.first_unit_read_s) for run in runs)]
    if not old:
        yield ["s the first file waited for the engine", *(_seconds(r.engine_wait_s) for r in runs)]


def _usage_rows(used: Sequence[Usage]) -> Iterator[Row]:
    for kind, name in KINDS.items():
        own = [u.processes.get(kind) for u in used]
        if any(own):
            yield [f"{name}: peak MB", *(f"{u.peak_bytes / MB:,.0f}" if u else "" for u in own)]
            yield [f"{name}: cores", *(_cores(u.steady_cores) if u else "" for u in own)]
    yield ["object store: peak MB", *(f"{u.peak_store_bytes / MB:,.0f}" for u in used)]
    gpus = [u.gpus or [] for u in used]
    if any(gpus):
        yield ["GPU busy", *(" ".join(_percent(gpu.busy) for gpu in own) for own in gpus)]
        peaks = [max((gpu.peak_memory_mib for gpu in own), default=0.0) for own in gpus]
        yield ["GPU memory: peak MiB", *(f"{mib:,.0f}" for mib in peaks)]


def stage_rows(run: JobRun) -> list[Row]:
    """A row per stage; the first row is the heading."""
    rows = [["stage", "s per M rows", "units in it", "of places"]]
    for s in run.stages:
        share = f"{s.share:.0%} of {s.places} {s.where}"
        rows.append([s.name, f"{s.seconds_per_million:.4f}", f"{s.busy:.2f}", share])
    return rows


def aligned(rows: Sequence[Row]) -> Iterator[str]:
    """The rows as text in columns: the first left-aligned, the others right-aligned."""
    columns = list(itertools.zip_longest(*rows, fillvalue=""))
    widths = [max(map(len, column)) for column in columns]
    for cells in zip(*columns, strict=True):
        first, *rest = zip(cells, widths, strict=True)
        line = f"{first[0]:<{first[1]}}" + "".join(f"  {cell:>{width}}" for cell, width in rest)
        yield line.rstrip()


def piped(rows: Sequence[Row]) -> Iterator[str]:
    """The rows as a Markdown table."""
    full = list(zip(*itertools.zip_longest(*rows, fillvalue=""), strict=True))
    for number, cells in enumerate(full):
        yield "| " + " | ".join(cells) + " |"
        if number == 0:
            yield "|" + "---|" * len(cells)


def _origin(report: JobReport) -> str:
    m = report.machine
    versions = ", ".join(f"{name} {m[name]}" for name in VERSIONS if name in m)
    return f"Commit {report.commit}, {report.time}; {m['cores']} cores of {m['cpu']}; {versions}."


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _millions(rows_per_s: float | None) -> str:
    return "-" if rows_per_s is None else f"{rows_per_s / 1e6:.3f}"


def _cores(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
