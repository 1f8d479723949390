"""Demo: the whole path on synthetic raw rows: train on some, score the rest, verify, compare."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pipeline.config.job import JobConfig
from pipeline.data.synth import SynthOptions, synth
from pipeline.errors import ConfigError, DpiframeError
from pipeline.models.training import TrainOptions, train
from pipeline.publishing.verify import verify_output
from pipeline.scoring.job import JobResult, run_job

SHARD_ROWS = 100_000
MARK = ".dpiframe-demo"  # marks a folder that a demo made and may empty


class DemoResult(NamedTuple):
    """The job, whose rows were not trained on, and where it is tracked."""

    job: JobResult
    mlflow_uri: str


def run_demo(folder: Path, rows: int, train_rows: int, say: Callable[[str], None]) -> DemoResult:
    """Run every stage in `folder`, replacing an earlier demo's files; `say` prints progress."""
    clear(folder)
    made = synth(
        SynthOptions(dataset="criteo", output=folder / "rows", rows=rows, rows_per_shard=SHARD_ROWS)
    )
    say(f"1 synth   {made.rows:,} raw Criteo-shaped rows in {made.seconds:.1f} s")
    shards = sorted((folder / "rows").glob("*.parquet"))
    seen = shards[: max(1, train_rows // SHARD_ROWS)]
    options = TrainOptions(
        input=tuple(seen), output=folder / "bundle", max_rows=train_rows, hidden=(128, 64)
    )
    trained = train(options)
    say(f"2 train   DeepFM on {trained.rows:,} rows: AUC {trained.auc:.4f} on them")
    say(f"3 export  {trained.bundle.path} ({trained.bundle.digest[:16]})")
    uri = f"sqlite:///{(folder / 'mlflow.db').absolute()}"
    job = run_job(
        JobConfig(
            bundle=str(folder / "bundle"),
            input=[str(path) for path in shards[len(seen) :]],
            output=str(folder / "scores"),
            label_column="label",
            unit_rows=SHARD_ROWS,
            mlflow_uri=uri,
            experiment="dpiframe-demo",
        )
    )
    say(f"4 score   {job.rows:,} other rows in {job.units} units, {job.seconds:.1f} s")
    problems = verify_output(folder / "scores").problems
    if problems:
        raise DpiframeError(f"the demo's output does not verify: {problems}")
    say("5 verify  every hash and every row count is right")
    return DemoResult(job, uri)


def clear(folder: Path) -> None:
    """Make the folder, or remove an earlier demo's files; ConfigError if it holds other files."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise ConfigError(f"{folder} holds files that no demo made; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()
    for name in ("rows", "bundle", "scores"):
        shutil.rmtree(folder / name, ignore_errors=True)


def show(result: DemoResult) -> str:
    """The summary, and where to look next."""
    lines = {
        "rows scored": f"{result.job.scored:,}",
        "rows/s": f"{result.job.rows_per_s:,.0f} with start-up ({result.job.seconds:.1f} s)",
        "AUC": f"{result.job.evaluation['auc']:.4f}",
        "logloss": f"{result.job.evaluation['logloss']:.4f}",
        "scores": result.job.output,
        "MLflow": f"mlflow ui --backend-store-uri {result.mlflow_uri}",
    }
    return "\n".join(f"{name:<12} {text}" for name, text in lines.items())
