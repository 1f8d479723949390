"""How fast a finished output is evaluated on this machine, and in how much memory.

    python tests/helpers/evaluation_speed.py [--parts 40] [--rows 1000000]

Each question is put by a process of its own: the label alone, slices and their pairs, AUC by group.
Its peak is less what it held before.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from finished_outputs import write_output

from pipeline.evaluation.evaluate import Question, evaluate_output
from pipeline.publishing.records import TALLIES

QUESTIONS = {
    "label": Question(label="label"),
    "slices and pairs": Question(label="label", slices=("site", "hour"), pairs=True),
    "groups": Question(label="label", group="user"),
}


def parts(number: int, rows: int) -> Iterator[pa.Table]:
    """Scores with labels drawn by them, 20 sites, 24 hours, and a user for each 100 rows."""
    for seed in range(number):
        rng = np.random.default_rng(seed)
        scores = rng.beta(2, 60, rows).astype(np.float32)
        yield pa.table(
            {
                "score": scores,
                "label": (rng.random(rows, np.float32) < scores).astype(np.int8),
                "site": rng.integers(0, 20, rows, np.int32),
                "hour": rng.integers(0, 24, rows, np.int32),
                "user": rng.integers(0, number * rows // 100 + 1, rows),
            }
        )


def memory(line: str) -> float:
    """MB of this process: VmRSS now, VmHWM at most."""
    found = re.search(rf"{line}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def ask(output: str, name: str) -> dict[str, float]:
    """Rows a second, by the clock and by the time of a core; the peak of memory; the AUC."""
    for kept in Path(output).glob(TALLIES):
        kept.unlink()
    held, began, used = memory("VmRSS"), time.perf_counter(), time.process_time()
    found = evaluate_output(output, QUESTIONS[name])
    seconds, used = time.perf_counter() - began, time.process_time() - used
    return {
        "M rows/s": round(found.quality.rows / seconds / 1e6, 2),
        "M rows/s of a core": round(found.quality.rows / used / 1e6, 2),
        "peak MB": round(memory("VmHWM") - held),
        "auc": round(found.quality.auc or 0, 6),
    }


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", type=int, default=40)
    parser.add_argument("--rows", type=int, default=1_000_000)
    wanted = parser.parse_args()
    report: dict[str, object] = {"cores": len(os.sched_getaffinity(0))}
    report |= {"parts": wanted.parts, "rows of a part": wanted.rows}
    with tempfile.TemporaryDirectory() as folder:
        output = str(write_output(Path(folder) / "out", parts(wanted.parts, wanted.rows)))
        for name in QUESTIONS:
            context = multiprocessing.get_context("spawn")
            with context.Pool(1) as pool:
                report[name] = pool.apply(ask, (output, name))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
