"""One run of the job as its user starts it: the command line, timed from outside."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import BaseModel

from pipeline.bench.job.case import JobCase
from pipeline.bench.job.inputs import Inputs
from pipeline.bench.job.rates import Event, Rates, rates
from pipeline.bench.job.stages import Stage, limit, stages
from pipeline.bench.job.usage import Usage, usage
from pipeline.bench.job.watch import Watched, environment, run_watched
from pipeline.errors import DpiframeError
from pipeline.publishing.records import Manifest, OutputLayout, read_json


class JobRun(BaseModel):
    """What one run showed. Seconds count from the command."""

    identity: str
    rows: int
    files: int
    units: int
    gpus: int
    cores: int
    rates: Rates
    planned_s: float  # imports, footers, contract, bundle checked; the output claimed
    first_unit_read_s: float  # Ray and a scorer are up, and the first unit is read
    exit_s: float
    stages: list[Stage]
    limit: str
    usage: Usage


def run_ours(case: JobCase, inputs: Inputs, folder: Path, rows: int, gpus: int) -> JobRun:
    """Score `rows` rows on that many GPUs (0: the CPU) into `folder`/scores."""
    files = inputs.listed(rows)
    config = folder / "job.yaml"
    config.write_text(yaml.safe_dump(job_keys(case, inputs, folder, files, gpus)))
    cores = use_cores(gpus * case.cores_per_gpu)
    output = OutputLayout(folder / "scores")
    shutil.rmtree(output.root, ignore_errors=True)
    command = [sys.executable, "-m", "jobs.cli", "score", str(config), *case.keys]
    log = folder / "job.log"
    watched = run_watched(command, on_gpus(gpus), cores, log, output.root)
    manifest = read_json(output.manifest, Manifest)
    if manifest is None:
        raise DpiframeError(f"the job left no manifest in {output.root}; see {log}")
    return digest(manifest, output, watched, len(files), gpus, len(cores))


def digest(
    manifest: Manifest, output: OutputLayout, watched: Watched, files: int, gpus: int, cores: int
) -> JobRun:
    """What the finished output and the samples tell of a run."""
    # A file's change time is when it got its final name: its scores were published.
    events = [Event(changed(output.root / unit.part), unit.rows) for unit in manifest.units]
    found = rates(events, watched.began, changed(output.success))
    parts = stages(manifest.units, [e.time for e in events], found.steady_window, cores)
    used = usage(watched, found.steady_window)
    return JobRun(
        identity=manifest.identity,
        rows=manifest.rows,
        files=files,
        units=len(manifest.units),
        gpus=gpus,
        cores=cores,
        rates=found,
        planned_s=changed(output.identity) - watched.began,
        first_unit_read_s=min(unit.started for unit in manifest.units) - watched.began,
        exit_s=watched.ended - watched.began,
        stages=parts,
        limit=limit(parts, used.steady_cores(), cores, used.stolen_cores),
        usage=used,
    )


def job_keys(
    case: JobCase, inputs: Inputs, folder: Path, files: Sequence[str], gpus: int
) -> dict[str, object]:
    """The job's configuration; the rest of the keys keep their defaults."""
    keys: dict[str, object] = {
        "bundle": inputs.bundle,
        "input": list(files),
        "output": str(folder / "scores"),
        "form": case.form,
        "device": case.device,
        "precision": case.precision,
        "ray_address": "local",
        "experiment": case.experiment,
        "mlflow_uri": case.mlflow_uri,
        "run_name": f"dpiframe {case.model} {case.precision} {case.form} x{max(gpus, 1)}",
    }
    return keys | ({"num_scorers": gpus} if gpus else {})


def use_cores(wanted: int) -> set[int]:
    """The first `wanted` cores that this process may use (0: all); fewer where there are fewer."""
    usable = sorted(os.sched_getaffinity(0))
    return set(usable[: wanted or None])


def on_gpus(gpus: int) -> dict[str, str]:
    """The environment in which a command finds the first GPUs alone; 0: whatever there is."""
    env = environment()
    if gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        env["CUDA_VISIBLE_DEVICES"] = ",".join(visible.split(",")[:gpus])
    return env


def changed(path: Path) -> float:
    """When a file got its name or its content, in epoch seconds."""
    return path.stat().st_ctime
