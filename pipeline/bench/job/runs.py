"""One run of the job and one of the peer, each as its user starts it, timed from outside."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pydantic import BaseModel

from pipeline.bench.engine.agreement import TOLERANCES
from pipeline.bench.job.case import Inputs, JobCase
from pipeline.bench.job.monitor import Usage, Watched, environment, run_watched, usage
from pipeline.bench.job.ray_data_peer import PeerSettings
from pipeline.bench.job.throughput import Event, Rates, Stage, bottleneck, rates, stages
from pipeline.config.job import SCORE_COLUMN
from pipeline.data.parquet_layouts import KEY_COLUMNS
from pipeline.errors import DpiframeError
from pipeline.own_module import own_module
from pipeline.publishing.records import Manifest, OutputLayout, read_json
from pipeline.tracking.metrics import STAGES

SAMPLED_UNITS = 4
PEER_PROGRAM = "import sys; from pipeline.bench.job.ray_data_peer import main; main(sys.argv[1])"


class JobRun(BaseModel):
    """The figures of one run of the job. Seconds count from the command."""

    identity: str
    rows: int
    files: int
    units: int
    gpus: int
    cores: int
    rates: Rates
    planned_s: float  # contract and bundle checked, Ray started, the output claimed
    first_unit_read_s: float  # Ray and a scorer are up, and the first unit is read
    # None in files of before. When `start`, `plan` and `sizes` are logged; what the first file of
    # scores waited for once it was read, which is the engine.
    imported_s: float | None = None
    plan_s: float | None = None
    connected_s: float | None = None
    engine_wait_s: float | None = None
    exit_s: float
    stages: list[Stage]
    limit: str
    usage: Usage


def run_ours(case: JobCase, inputs: Inputs, folder: Path, rows: int, gpus: int) -> JobRun:
    """Score `rows` rows on that many GPUs (0: the CPU) into `folder`/scores."""
    files = inputs.listed(rows)
    config = folder / "job.yaml"
    config.write_text(yaml.safe_dump(job_keys(case, inputs, folder, files, gpus)))
    cores = first_cores(gpus * case.cores_per_gpu)
    output = OutputLayout(folder / "scores")
    shutil.rmtree(output.root, ignore_errors=True)
    command = [*own_module("jobs.cli"), "score", "--log-format", "json", str(config), *case.keys]
    log = folder / "job.log"
    watched = run_watched(command, gpu_environment(gpus), cores, log, output.root)
    manifest = read_json(output.manifest, Manifest)
    if manifest is None:
        raise DpiframeError(f"the job left no manifest in {output.root}; see {log}")
    run = summarise_run(manifest, output, watched, len(files), gpus, len(cores))
    told = {event: moment - watched.began for event, moment in event_times(log).items()}
    names = {"imported_s": "start", "plan_s": "plan", "connected_s": "sizes"}
    return run.model_copy(update={name: told.get(event) for name, event in names.items()})


def event_times(log: Path) -> dict[str, float]:
    """Event -> when a job first logged it, epoch seconds."""
    found: dict[str, float] = {}
    for line in log.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):  # not all is of the job
            told = json.loads(line)
            found.setdefault(told["event"], datetime.fromisoformat(told["time"]).timestamp())
    return found


def summarise_run(
    manifest: Manifest, output: OutputLayout, watched: Watched, files: int, gpus: int, cores: int
) -> JobRun:
    """The figures of a finished run, from its output and the samples of its resources."""
    events = [Event(rename_time(output.root / unit.part), unit.rows) for unit in manifest.units]
    found = rates(events, watched.began, rename_time(output.success))
    parts = stages(manifest.units, [e.time for e in events], found.steady_window, cores)
    used = usage(watched, found.steady_window)
    first, unit = min(zip((e.time for e in events), manifest.units, strict=True), key=itemgetter(0))
    behind = [stage for stage in STAGES if stage not in ("read", "encode")]
    stages_s = sum(getattr(unit, f"{stage}_s") for stage in behind)
    return JobRun(
        identity=manifest.identity,
        rows=manifest.rows,
        files=files,
        units=len(manifest.units),
        gpus=gpus,
        cores=cores,
        rates=found,
        planned_s=rename_time(output.identity) - watched.began,
        first_unit_read_s=min(unit.started for unit in manifest.units) - watched.began,
        engine_wait_s=max(0.0, first - unit.started - stages_s),
        exit_s=watched.ended - watched.began,
        stages=parts,
        limit=bottleneck(parts, used.steady_cores(), cores, used.stolen_cores),
        usage=used,
    )


def job_keys(
    case: JobCase, inputs: Inputs, folder: Path, files: Sequence[str], gpus: int
) -> dict[str, object]:
    """The job's configuration; all other keys keep their defaults."""
    keys: dict[str, object] = {
        "bundle": inputs.bundle,
        "input": list(files),
        "output": str(folder / "scores"),
        "form": case.form,
        "key_columns": [KEY_COLUMNS["criteo"].name],
        "device": case.device,
        "precision": case.precision,
        "experiment": case.experiment,
        "mlflow_uri": case.mlflow_uri,
        "run_name": f"dpiframe {case.model} {case.precision} {case.form} x{max(gpus, 1)}",
    }
    if gpus != 1:  # the runner of one GPU is left to the job
        keys["ray_address"] = "local"
    return keys | ({"num_scorers": gpus} if gpus else {})


def first_cores(wanted: int) -> set[int]:
    """The first `wanted` cores of this process's affinity mask (0: all), or as many as it has."""
    usable = sorted(os.sched_getaffinity(0))
    return set(usable[: wanted or None])


def gpu_environment(gpus: int) -> dict[str, str]:
    """The environment of a run that sees only the first `gpus` GPUs; 0 leaves it as it is."""
    env = environment()
    if gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        env["CUDA_VISIBLE_DEVICES"] = ",".join(visible.split(",")[:gpus])
    return env


def rename_time(path: Path) -> float:
    """A file's change time in epoch seconds: when it was renamed to its final name."""
    return path.stat().st_ctime


class Agreement(BaseModel):
    """Ours and the peer's logits on the same rows: their largest difference, scaled by
    max(1, |logit|), and the tolerance."""

    rows: int
    largest_difference: float
    tolerance: float


class PeerRun(BaseModel):
    """The figures of a run of the peer, as in `JobRun`."""

    rows: int
    files: int
    gpus: int
    cores: int
    rates: Rates
    usage: Usage
    agreement: Agreement


def run_peer(case: JobCase, inputs: Inputs, folder: Path, gpus: int, ours: pa.Table) -> PeerRun:
    """Score the files of `peer_files`; compare with `ours`.

    Raises DpiframeError when it fails, loses rows, or its scores differ.
    """
    files = peer_files(case, inputs)
    cores = first_cores(gpus * case.cores_per_gpu)
    output, settings = folder / "peer", folder / "peer.json"
    text = peer_settings(case, inputs, files, output, (gpus, len(cores))).model_dump_json()
    settings.write_text(text)
    command = [sys.executable, "-c", PEER_PROGRAM, str(settings)]
    # Ray counts the machine's cores, not those that a process may use.
    resources = json.dumps({"CPU": len(cores), "GPU": gpus})
    env = gpu_environment(gpus) | {"RAY_OVERRIDE_RESOURCES": resources}
    watched = run_watched(command, env, cores, folder / "peer.log", output)
    parts = sorted(output.glob("*.parquet"))
    events = [Event(rename_time(part), pq.read_metadata(part).num_rows) for part in parts]
    rows, expected = sum(event.rows for event in events), len(files) * inputs.rows_per_file
    if rows != expected:
        raise DpiframeError(f"the peer wrote {rows:,} of {expected:,} rows")
    found = rates(events, watched.began, rename_time(output / "_SUCCESS"))
    return PeerRun(
        rows=rows,
        files=len(files),
        gpus=gpus,
        cores=len(cores),
        rates=found,
        usage=usage(watched, found.steady_window),
        agreement=agreement(ours, parts, inputs.rows, TOLERANCES[case.precision]),
    )


def peer_settings(
    case: JobCase, inputs: Inputs, files: Sequence[str], output: Path, size: tuple[int, int]
) -> PeerSettings:
    """The settings of the peer's process; `size`: GPUs and cores."""
    return PeerSettings(
        files=list(files),
        output=str(output),
        bundle=inputs.bundle,
        spec=case.spec(),
        key=KEY_COLUMNS["criteo"].name,
        device=case.device,
        precision=case.precision,
        actors=max(size[0], 1),
        cores=size[1],
        batch=case.peer_batch,
    )


def peer_files(case: JobCase, inputs: Inputs) -> list[str]:
    """The peer's input: each file once, because Ray Data reads a file that is listed twice once."""
    return inputs.listed(min(case.peer_rows, case.rows, inputs.rows))


def sample_scores(output: OutputLayout, files: Sequence[str]) -> pa.Table:
    """Keys and scores of a few published units, spread over the units of these files."""
    manifest = read_json(output.manifest, Manifest)
    assert manifest is not None
    known = set(files)
    units = [unit for unit in manifest.units if all(path in known for path, *_ in unit.files)]
    chosen = units[:: max(1, len(units) // SAMPLED_UNITS)][:SAMPLED_UNITS]
    columns = [manifest.key_columns[0], SCORE_COLUMN]
    return pa.concat_tables(pq.read_table(output.root / u.part, columns=columns) for u in chosen)


def agreement(ours: pa.Table, parts: Sequence[Path], rows: int, tolerance: float) -> Agreement:
    """Compare our sampled scores with the peer's by key; keys are 0 to `rows` - 1."""
    theirs = np.full(rows, np.nan)
    for part in parts:
        table = pq.read_table(part)
        theirs[table.column(0).to_numpy()] = table.column(1).to_numpy()
    expected = logits(ours.column(1).to_numpy())
    differences = np.abs(logits(theirs[ours.column(0).to_numpy()]) - expected)
    largest = float((differences / np.maximum(1, np.abs(expected))).max())
    if not largest <= tolerance:
        raise DpiframeError(
            f"the logits of the peer differ from ours by {largest:.1e}, tolerated is {tolerance}"
        )
    return Agreement(rows=len(ours), largest_difference=largest, tolerance=tolerance)


def logits(scores: np.ndarray) -> np.ndarray:
    """Logits [B] float64 of probabilities [B]."""
    wide = scores.astype(np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(wide) - np.log1p(-wide))
