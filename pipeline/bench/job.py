"""`dpiframe bench job`: make rows and a model, run the job on them, say where the time goes."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from pipeline.bench.evidence import now
from pipeline.bench.job_case import JobCase, bench_folder, where
from pipeline.bench.job_inputs import Inputs, make_inputs
from pipeline.bench.job_report import JobReport
from pipeline.bench.job_run import JobRun, run_ours
from pipeline.bench.machine import commit, machine
from pipeline.tracking.settings import resolve_uri

Say = Callable[[str], None]


def bench_job(case: JobCase, folder: Path | None, keep: bool, say: Say) -> JobReport:
    """Measure a case in a folder that is removed afterwards; `say` is told what happens.

    ConfigError for a folder that is not empty, DpiframeError for a run that fails.
    """
    # Both runs are logged here, wherever their processes work.
    case = case.model_copy(update={"mlflow_uri": resolve_uri(case.mlflow_uri)})
    with bench_folder(folder, case.room(), keep, say) as made:
        inputs = make_inputs(case, made)
        say(
            f"data    {inputs.rows:,} distinct rows in {len(inputs.files)} files, "
            f"{inputs.data_bytes / 1e9:.2f} GB, {inputs.data_s:.1f} s"
        )
        say(f"bundle  {case.model}, {inputs.table_rows:,} table rows, {inputs.bundle_s:.1f} s")
        runs = [run for gpus in gpu_counts(case) for run in _runs(case, inputs, made, gpus, say)]
        return JobReport(
            case=case,
            inputs=inputs,
            storage=where(made),
            runs=runs,
            commit=commit(),
            time=now(),
            machine=machine(case.device) | {n: version(n) for n in ("ray", "pyarrow", "mlflow")},
        )


def gpu_counts(case: JobCase) -> tuple[int, ...]:
    """Numbers of GPUs to run with; 0 is the CPU."""
    return case.gpus if case.device == "cuda" else (0,)


def _runs(case: JobCase, inputs: Inputs, folder: Path, gpus: int, say: Say) -> list[JobRun]:
    """The run on so many GPUs; the first number of GPUs also at the other number of rows."""
    sizes = [case.rows]
    if case.repeat_at and gpus == gpu_counts(case)[0]:
        sizes.append(case.repeat_at)
    runs = []
    for rows in sizes:
        runs.append(run_ours(case, inputs, folder, rows, gpus))
        rates = runs[-1].rates
        say(
            f"ours    {runs[-1].rows:,} rows on {f'{gpus} GPU' if gpus else 'CPU'}: "
            f"{rates.seconds:.1f} s, {rates.rows_per_s / 1e6:.2f} M rows/s"
        )
    return runs
