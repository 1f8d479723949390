"""Runs the fuzzers of tests/fuzz, whose cases are guided by the code that they reach (libFuzzer).

    python tests/helpers/run_guided_fuzz.py --seed 7 --runs 1000000 --folder build/fuzz/guided

Each begins with cases of the fuzzing script of its name, and keeps every case that reaches
something new in `folder`/NAME/corpus. Those the scripts then read again, to compare with pyarrow:
the differences that a fuzzer cannot see. Prints what came of the cases; where one fails, it stays
in `folder`/NAME, and the exit code is 1. `make fuzz-guided` builds the fuzzers and does this.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fuzz_frames
import fuzz_other_columns
import fuzz_parquet
import numpy as np
from fuzzing import CASE_SECONDS
from run_fuzz import ROOT, replay

FUZZERS = ROOT / "build" / "fuzzers"
SEEDS = 1000  # cases to begin with
MOST_BYTES = 16 << 10  # of a case: small ones are many
SCRIPTS = {
    "parquet": ["column_pages", "other_columns", "arrow"],
    "frames": ["frames"],
    "features": [],
}


def write_seeds(name: str, folder: Path, seed: int) -> None:
    """Cases of the fuzzing script of this name; random bytes where there is none."""
    work = folder.parent
    makers = {
        "parquet": [fuzz_parquet.parquet_cases, fuzz_other_columns.cases],
        "frames": [fuzz_frames.frame_cases],
    }
    makes = [write(work) for write in makers.get(name, [])]
    makes = makes or [lambda path, random: path.write_bytes(random.bytes(300))]
    for number in range(SEEDS):
        path = folder / f"seed-{number}"
        makes[number % len(makes)](path, np.random.default_rng([seed, number]))
        if path.stat().st_size > MOST_BYTES:
            path.unlink()


def fuzz(name: str, folder: Path, *, seed: int, seconds: float, runs: int) -> dict[str, Any]:
    """What a fuzzer says at its end; AssertionError with what it said before, if a case failed."""
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    if not any(corpus.iterdir()):  # one that is there is gone on with
        write_seeds(name, corpus, seed)
    options = {
        "seed": seed,
        "max_total_time": max(1, round(seconds)),
        "runs": runs or -1,
        "max_len": MOST_BYTES,
        "timeout": CASE_SECONDS,
        "rss_limit_mb": 2048,
        "malloc_limit_mb": 128,
        "artifact_prefix": f"{folder}/",
        "verbosity": 0,
        "entropic": 0,  # a quarter faster
    }
    command = [FUZZERS / f"fuzz_{name}", *(f"-{key}={value}" for key, value in options.items())]
    # Faster without the places of allocations: `fuzz_NAME FILE` shows them of a case that failed.
    own = {"ASAN_OPTIONS": "malloc_context_size=0:quarantine_size_mb=16"}
    # The peak that rss_limit_mb bounds starts at that of the process that was forked: not a test
    # run's gigabytes, but a shell's.
    forked = ["sh", "-c", '"$@"; exit $?', "sh"]
    done = subprocess.run(
        [*forked, *command, corpus],
        env=os.environ | own,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    told = re.search(r"^RESULT (.*)$", done.stderr, re.MULTILINE)
    assert done.returncode == 0 and told is not None, (
        f"{folder}: exit code {done.returncode}: {done.stderr[-4000:]}"
    )
    found: dict[str, Any] = json.loads(told[1])
    return {"seed": seed} | found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1800, help="of each fuzzer at most")
    parser.add_argument("--runs", type=int, default=0, help="cases of each at most; 0: any number")
    parser.add_argument("--only", choices=list(SCRIPTS), help="one fuzzer")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the cases lie")
    options = parser.parse_args()
    code = 0
    for name in [options.only] if options.only else SCRIPTS:
        folder = options.folder.resolve() / name
        limits = {"seconds": options.seconds, "runs": options.runs}
        try:
            found = fuzz(name, folder, seed=options.seed, **limits)
            print(f"{name}: {json.dumps(found, indent=1)}", flush=True)
            for script in SCRIPTS[name]:
                seen = replay(f"fuzz_{script}.py", folder / "corpus", folder)
                print(f"{name}, corpus read by fuzz_{script}: {json.dumps(seen)}", flush=True)
        except AssertionError as error:
            print(f"{name}: {error}", flush=True)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
