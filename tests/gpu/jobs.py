"""The job on files of every kind (make gpu-jobs): what each is worth beside the best, and further
GPUs beside one.

    python tests/gpu/jobs.py -o docs/gpu --machine h200 [--only zstd,snappy] [--gpus 1,2]

Writes job_MACHINE_CASE.json for `dpiframe bench pages`, and prints a table at the end; exit code 1
where a case failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from pipeline.bench.job.report import JobReport

PYARROW = ("--writer", "pyarrow", "--row-group-rows", "262144")
CASES = {
    "encoded": (),
    "deepfm": ("--model", "deepfm"),
    "pyarrow": PYARROW,
    "snappy": (*PYARROW, "--compression", "snappy"),
    "lz4": (*PYARROW, "--compression", "lz4"),
    "gzip": (*PYARROW, "--compression", "gzip"),
    "int64v2": (*PYARROW, "--id-type", "int64", "--data-page-version", "2.0"),
    "raw": ("--form", "raw"),
    "rawpyarrow": (*PYARROW, "--form", "raw"),
    "lists": (*PYARROW, "--list-length", "50"),
    "files10000": ("--rows-per-file", "10000", "--row-group-rows", "10000"),
    "files100000": ("--rows-per-file", "100000", "--row-group-rows", "100000"),
    "groups10000": ("--row-group-rows", "10000"),
}
FEWER = {
    "gzip": 4,
    "raw": 4,
    "rawpyarrow": 4,
    "lists": 4,
}  # slower ones score so many times fewer rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--rows", type=int, default=300_000_000)
    parser.add_argument("--gpus", default="1", help="a run for each number of GPUs")
    parser.add_argument("--distinct-rows", type=int, default=5_000_000)
    parser.add_argument("keys", nargs="*", help="further keys of the job")
    options = parser.parse_args()
    found: dict[str, JobReport] = {}
    for name in options.only.split(","):
        began = time.monotonic()
        path = options.output / f"job_{options.machine}_{name}.json"
        command = [sys.executable, "-m", "jobs.cli", "bench", "job", "--json", str(path)]
        command += ["--device", "cuda", "--precision", "fp16", "--no-peer"]
        command += ["--rows", str(options.rows // FEWER.get(name, 1)), "--gpus", options.gpus]
        command += ["--distinct-rows", str(options.distinct_rows), *CASES[name], *options.keys]
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode == 0:
            found[name] = JobReport.model_validate_json(path.read_text())
        said = "" if ended.returncode == 0 else f"failed: {ended.stderr[-500:]}"
        print(f"{name}: {time.monotonic() - began:.0f} s {said}", flush=True)
    for name, report in found.items():
        for run in report.runs:
            steady = run.rates.steady_rows_per_s
            rate = "-" if steady is None else f"{steady / 1e6:.1f}"
            print(
                f"{name:<12} {run.gpus} GPU {run.rows:>13,} rows  {rate:>6} M rows/s steady  "
                f"{run.rates.seconds:6.1f} s  first scores {run.rates.first_s:.1f} s  {run.limit}"
            )
    if len(found) < len(options.only.split(",")):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
