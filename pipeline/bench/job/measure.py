"""`dpiframe bench job`: make rows and a model, run the job on them, say where the time goes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pyarrow as pa

from pipeline.bench.gpu.results import now
from pipeline.bench.job.case import Inputs, JobCase, bench_folder, make_inputs, where
from pipeline.bench.job.report import JobReport, hardware
from pipeline.bench.job.runs import JobRun, PeerRun, peer_files, run_ours, run_peer, sample_scores
from pipeline.bench.job.tracking import log_ours, log_peer
from pipeline.bench.machine import commit, machine
from pipeline.publishing.records import OutputLayout
from pipeline.storage.mlflow_access import resolve_uri

Say = Callable[[str], None]


def bench_job(case: JobCase, folder: Path | None, keep: bool, say: Say) -> JobReport:
    """Measure a case in a folder that is removed afterwards; `say` prints progress.

    ConfigError for a folder that is not empty, DpiframeError for a run that fails, or when the
    peer's scores are not ours.
    """
    asked = case  # what is recorded: the store's place on this machine is nobody else's
    # Resolved here, so that runs in other working directories log into the same store.
    case = case.model_copy(update={"mlflow_uri": resolve_uri(case.mlflow_uri)})
    with bench_folder(folder, case.disk_bytes(), keep, say) as made:
        inputs = make_inputs(case, made)
        say(
            f"data    {inputs.rows:,} distinct rows in {len(inputs.files)} files, "
            f"{inputs.data_bytes / 1e9:.2f} GB, {inputs.data_s:.1f} s"
        )
        say(f"bundle  {case.model}, {inputs.table_rows:,} table rows, {inputs.bundle_s:.1f} s")
        runs, sample = [], None
        for gpus, rows in sizes(case):
            runs.append(_ours(case, inputs, made, rows, gpus, say))
            if sample is None:
                sample = sample_scores(OutputLayout(made / "scores"), peer_files(case, inputs))
            shutil.rmtree(made / "scores")
        return JobReport(
            case=asked,
            inputs=inputs,
            storage=where(made),
            runs=runs,
            peer=_peer(case, inputs, made, sample, say) if case.has_peer and sample else None,
            commit=commit(),
            time=now(),
            machine=machine(case.device) | versions("ray", "pyarrow", "mlflow"),
        )


def versions(*packages: str) -> dict[str, str]:
    """The packages' versions; "unknown" where a package has no metadata."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def sizes(case: JobCase) -> list[tuple[int, int]]:
    """(GPUs, rows) of each run; 0 GPUs: the CPU. The first run is repeated at `repeat_at` rows."""
    counts = case.gpus if case.device == "cuda" else (0,)
    again = [(counts[0], case.repeat_at)] if case.repeat_at else []
    return [(counts[0], case.rows), *again, *((count, case.rows) for count in counts[1:])]


def _ours(case: JobCase, inputs: Inputs, folder: Path, rows: int, gpus: int, say: Say) -> JobRun:
    run = run_ours(case, inputs, folder, rows, gpus)
    _tell("ours", run, say)
    _log(lambda: log_ours(case, run), say)
    return run


def _peer(case: JobCase, inputs: Inputs, folder: Path, sample: pa.Table, say: Say) -> PeerRun:
    run = run_peer(case, inputs, folder, sizes(case)[0][0], sample)
    _tell("peer", run, say)
    _log(lambda: log_peer(case, run), say)
    return run


def _tell(name: str, run: JobRun | PeerRun, say: Say) -> None:
    say(
        f"{name}    {run.rows:,} rows on {hardware(run)}: "
        f"{run.rates.seconds:.1f} s, {run.rates.rows_per_s / 1e6:.3f} M rows/s"
    )


def _log(log: Callable[[], str | None], say: Say) -> None:
    """Log a run in MLflow; a store that fails does not fail the benchmark."""
    try:
        run_id = log()
        say(f"        MLflow run {run_id}" if run_id else "        MLflow has no run of the job")
    except Exception as error:
        say(f"        MLflow did not take it: {error}")
