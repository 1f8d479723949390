"""The result of `dpiframe bench job`, and the figures of its tables."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from pipeline.bench.job.case import JobCase
from pipeline.bench.job.inputs import Inputs
from pipeline.bench.job.peer_run import PeerRun
from pipeline.bench.job.run import JobRun

Run = JobRun | PeerRun


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
        c = self.case
        where = self.machine.get("gpu") or self.machine["cpu"]
        hidden = "-".join(map(str, c.hidden))
        return (
            f"{c.model}, {self.inputs.table_rows:,} table rows x {c.dim}, MLP {hidden}, "
            f"{c.precision}; {c.form} rows, {self.inputs.rows:,} distinct, {self.storage}; {where}"
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
    """What follows from the figures."""
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
    """Peaks of memory of all processes without what they share, and of the object store."""
    private = (f"{run.usage.peak_bytes() / 1e6:,.0f}" for run in runs)
    store = (f"{run.usage.peak_store_bytes / 1e6:,.0f}" for run in runs)
    return f"{' and '.join(private)} MB of all processes, {' and '.join(store)} MB of object store"


def run_name(run: Run) -> str:
    """A run in two words."""
    return f"{'ours' if isinstance(run, JobRun) else 'peer'}, {on(run)}"


def on(run: Run) -> str:
    """What a run had to compute with."""
    return f"{run.gpus} GPU" if run.gpus else "CPU"
