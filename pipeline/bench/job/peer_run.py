"""One run of the peer, timed as ours is, and whether its scores are ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from pipeline.bench.engine.command import TOLERANCES
from pipeline.bench.job.case import JobCase
from pipeline.bench.job.inputs import Inputs
from pipeline.bench.job.peer import PeerSettings
from pipeline.bench.job.rates import Event, Rates, rates
from pipeline.bench.job.run import changed, on_gpus, use_cores
from pipeline.bench.job.usage import Usage, usage
from pipeline.bench.job.watch import run_watched
from pipeline.config.job import SCORE_COLUMN
from pipeline.errors import DpiframeError
from pipeline.publishing.records import Manifest, OutputLayout, read_json

SAMPLED_UNITS = 4
PROGRAM = "import sys; from pipeline.bench.job.peer import main; main(sys.argv[1])"


class Agreement(BaseModel):
    """Scores of ours and the peer on the same rows: the largest difference of the logits, scaled
    by max(1, |logit|), and what is tolerated."""

    rows: int
    largest_difference: float
    tolerance: float


class PeerRun(BaseModel):
    """What the peer showed; figures as in `JobRun`."""

    rows: int
    files: int
    gpus: int
    cores: int
    rates: Rates
    usage: Usage
    agreement: Agreement


def run_peer(case: JobCase, inputs: Inputs, folder: Path, gpus: int, ours: pa.Table) -> PeerRun:
    """Score the files of `peer_files`; compare with `ours`.

    Raises DpiframeError when it fails, loses rows, or its scores are others.
    """
    files = peer_files(case, inputs)
    cores = use_cores(gpus * case.cores_per_gpu)
    output, settings = folder / "peer", folder / "peer.json"
    text = peer_settings(case, inputs, files, output, (gpus, len(cores))).model_dump_json()
    settings.write_text(text)
    command = [sys.executable, "-c", PROGRAM, str(settings)]
    # Ray counts the machine's cores, not those that a process may use.
    resources = json.dumps({"CPU": len(cores), "GPU": gpus})
    env = on_gpus(gpus) | {"RAY_OVERRIDE_RESOURCES": resources}
    watched = run_watched(command, env, cores, folder / "peer.log", output)
    parts = sorted(output.glob("*.parquet"))
    events = [Event(changed(part), pq.read_metadata(part).num_rows) for part in parts]
    rows, expected = sum(event.rows for event in events), len(files) * inputs.rows_per_file
    if rows != expected:
        raise DpiframeError(f"the peer wrote {rows:,} of {expected:,} rows")
    found = rates(events, watched.began, changed(output / "_SUCCESS"))
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
    """The peer's orders; `size`: GPUs and cores."""
    return PeerSettings(
        files=list(files),
        output=str(output),
        bundle=inputs.bundle,
        spec=case.spec(),
        key=case.features().key_columns[0],
        device=case.device,
        precision=case.precision,
        actors=max(size[0], 1),
        cores=size[1],
        batch=case.peer_batch,
    )


def peer_files(case: JobCase, inputs: Inputs) -> list[str]:
    """What the peer reads: each file once, as Ray Data reads one that is listed twice once."""
    return inputs.listed(min(case.peer_rows, case.rows, inputs.rows))


def sample_scores(output: OutputLayout, files: Sequence[str]) -> pa.Table:
    """Keys and scores of a few published units, spread over those that are of these files."""
    manifest = read_json(output.manifest, Manifest)
    assert manifest is not None
    units = [unit for unit in manifest.units if unit.path in set(files)]
    chosen = units[:: max(1, len(units) // SAMPLED_UNITS)][:SAMPLED_UNITS]
    columns = [manifest.key_columns[0], SCORE_COLUMN]
    return pa.concat_tables(pq.read_table(output.root / u.part, columns=columns) for u in chosen)


def agreement(ours: pa.Table, parts: Sequence[Path], rows: int, tolerance: float) -> Agreement:
    """Compare our sample with the peer's files by key; keys are 0 to `rows` - 1."""
    theirs = np.full(rows, np.nan)
    for part in parts:
        table = pq.read_table(part)
        theirs[table.column(0).to_numpy()] = table.column(1).to_numpy()
    wanted = logits(ours.column(1).to_numpy())
    apart = np.abs(logits(theirs[ours.column(0).to_numpy()]) - wanted)
    largest = float((apart / np.maximum(1, np.abs(wanted))).max())
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
