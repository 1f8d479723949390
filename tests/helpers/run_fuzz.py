"""Runs the fuzzing scripts, each in a process of its own, so that a crash fails one of them alone.

    python tests/helpers/run_fuzz.py --seed 1 --seconds 1800 --folder /tmp/fuzz

gives each script its part of the seconds, two at a time, and prints what came of their cases. Where
one fails, its file stays in the folder, and the exit code is 1. `make fuzz` does so with the
compiled part built for the address and undefined-behaviour sanitizers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = ["parquet", "column_pages", "other_columns", "arrow", "frames", "inputs", "archive"]


def start(
    script: str, folder: Path, *more: str, seed: int, count: int, seconds: float
) -> subprocess.CompletedProcess[str]:
    """A script's end; its cases are in `folder`, where one that failed is left."""
    path = ROOT / "tests" / "helpers" / script
    cases = [*more, "--seed", str(seed), "--count", str(count), "--seconds", str(seconds)]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, str(path), *cases, "--folder", str(folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=seconds + 120,
        check=False,
    )


def outcomes_of(script: str, folder: Path, count: int) -> dict[str, int]:
    """How often each outcome came, in `folder`, where a case that crashed is left."""
    return _checked(start(script, folder, seed=1, count=count, seconds=100), folder)


def replay(script: str, cases: Path, folder: Path, seconds: float = 1800) -> dict[str, int]:
    """The same of cases that are there; they stay as they are."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        options = {"seed": 1, "count": 0, "seconds": seconds}
        return _checked(start(script, Path(work), "--replay", str(cases), **options), Path(work))


def _checked(found: subprocess.CompletedProcess[str], folder: Path) -> dict[str, int]:
    left = [path.name for path in folder.iterdir()]
    assert found.returncode == 0, f"{left}: exit code {found.returncode}: {found.stderr[-3000:]}"
    outcomes: dict[str, int] = json.loads(found.stdout)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1800, help="of all scripts together")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the files lie")
    options = parser.parse_args()
    jobs = 2
    share = options.seconds * jobs / len(SCRIPTS)

    def run(name: str) -> int:
        folder = options.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        done = start(f"fuzz_{name}.py", folder, seed=options.seed, count=sys.maxsize, seconds=share)
        told = done.stdout if done.returncode == 0 else done.stderr[-3000:]
        print(f"{name}: exit code {done.returncode} {told}", flush=True)
        return done.returncode

    with ThreadPoolExecutor(jobs) as pool:
        codes = list(pool.map(run, SCRIPTS))
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
