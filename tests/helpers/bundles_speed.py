"""How long one job of four bundles takes on this machine, beside four jobs of one; and one of four
segments, each row scored by one of the bundles.

    python tests/helpers/bundles_speed.py [--rows 2000000] [--hidden 64,32] [--rounds 3]
        [--device cpu]

Raw Criteo-shaped rows, hashed; each job is a process of its own, its start-up included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import yaml

from dpiframe_core import CTRModel, FieldSpec, save_bundle
from dpiframe_core.features.datasets import criteo_schema
from dpiframe_core.model.builtin import Deep, Features, dcn, dcnv2, deepfm, wdl
from pipeline.data.synth import SynthOptions, synth

MODELS = {"deepfm": deepfm, "wdl": wdl, "dcn": dcn, "dcnv2": dcnv2}


class Seconds(NamedTuple):
    """By the clock, and of all cores."""

    wall: float
    cores: float


def seconds_of(folder: Path, name: str, **keys: object) -> Seconds:
    """The time that a job takes."""
    config = folder / f"{name}.yaml"
    output = folder / name
    job = {"input": str(folder / "rows"), "output": str(output), "form": "raw", **keys}
    job |= {"runner": "local", "tracking": False, "overwrite": True}
    config.write_text(yaml.safe_dump(job))
    subprocess.run(["rm", "-rf", str(output)], check=True)
    command = "import sys; sys.argv[1:] = ['score', {!r}]; from jobs.cli import main; main()"
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", command.format(str(config))], check=True, stdout=-3)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Seconds(time.perf_counter() - began, used)


def share(whole: list[float], part: list[float]) -> float:
    """The median over the rounds."""
    return round(statistics.median(b / a for a, b in zip(whole, part, strict=True)), 2)


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--hidden", default="64,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    wanted = parser.parse_args()
    hidden = tuple(map(int, wanted.hidden.split(",")))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        synth(SynthOptions(output=folder / "rows", dataset="criteo", form="raw", rows=wanted.rows))
        schema = criteo_schema("buckets", "hash", modulus=10_000, max_bucket=40)
        fields = [FieldSpec(name=f.name, rows=f.rows, dim=8) for f in schema.fields]
        bundles = {}
        for model, build in MODELS.items():
            spec = build(Features(fields=fields), Deep(hidden=hidden))
            save_bundle(folder / model, spec, CTRModel(spec).state_dict(), schema)
            bundles[model] = str(folder / model)
        first, *others = bundles
        segments = {"column": "I1", "bundles": dict(enumerate(others))}
        on = {"device": wanted.device}
        apart, together, by_segment = [], [], []
        for _ in range(wanted.rounds):
            each = [seconds_of(folder, f"of-{m}", bundle=bundles[m], **on) for m in MODELS]
            apart.append(Seconds(*map(sum, zip(*each, strict=True))))
            more = {m: bundles[m] for m in others}
            keys = {"bundle": bundles[first], "bundles": more, **on}
            together.append(seconds_of(folder, "all", **keys))
            by_segment.append(seconds_of(folder, "segments", segments=segments, **keys))
    report = {
        "cores": len(os.sched_getaffinity(0)),
        "device": wanted.device,
        "rows": wanted.rows,
        "hidden": hidden,
        "four jobs, s": [round(s.wall, 1) for s in apart],
        "one job, s": [round(s.wall, 1) for s in together],
        "one job of segments, s": [round(s.wall, 1) for s in by_segment],
        "share": share([s.wall for s in apart], [s.wall for s in together]),
        "share of the cores' time": share([s.cores for s in apart], [s.cores for s in together]),
        "the same of segments": share([s.cores for s in apart], [s.cores for s in by_segment]),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
