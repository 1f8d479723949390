"""How fast a finished output is evaluated on this machine, and in how much memory.

    python tests/helpers/evaluation_speed.py [--workers 1,2,16] [--parts 40] [--rows 1000000]

Each question is put by a process of its own, with each number of workers: the label alone, slices
and their pairs, AUC by group, labels in files of their own in the order of the scores. The figures
must be the same to the last bit. `parent`: seconds of a core in the process that is asked, which no
number of workers makes shorter; its memory and the largest worker's, less what they hold before.
Needs 30 bytes a row in `TMPDIR`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from finished_outputs import finish_output, write_part

from pipeline.evaluation.evaluate import evaluate_output
from pipeline.evaluation.question import Question
from pipeline.publishing.records import TALLIES, UnitRecord

QUESTIONS = {
    "label": Question(label="label"),
    "slices and pairs": Question(label="label", slices=("site", "hour"), pairs=True),
    "groups": Question(label="label", group="user"),
    "labels apart": Question(label="click", labels="labels", keys=("key",)),
}


def part(number: int, rows: int, seed: int) -> pa.Table:
    """Scores with labels drawn by them, 20 sites, 24 hours, and a user for each 100 rows of all."""
    rng = np.random.default_rng(seed)
    scores = (1 / (1 + np.exp(3.7 - 0.8 * rng.standard_normal(rows, np.float32)))).astype("f4")
    return pa.table(
        {
            "key": np.arange(seed * rows, (seed + 1) * rows),
            "score": scores,
            "label": (rng.random(rows, np.float32) < scores).astype(np.int8),
            "site": rng.integers(0, 20, rows, np.int32),
            "hour": rng.integers(0, 24, rows, np.int32),
            "user": rng.integers(0, number * rows // 100 + 1, rows),
        }
    )


def make_part(folder: Path, number: int, rows: int, seed: int) -> UnitRecord:
    """Write one of so many parts of so many rows, and its labels beside the folder."""
    table = part(number, rows, seed)
    labels = folder.with_name("labels")
    labels.mkdir(parents=True, exist_ok=True)
    clicks = table.select(["key", "label"]).rename_columns(["key", "click"])
    pq.write_table(clicks, labels / f"{seed:06d}.parquet")
    return write_part(folder, seed, table)


def ask(output: Path, name: str, workers: int) -> tuple[dict[str, float], str]:
    """Rates, times and memory; and the figures."""
    import pipeline.evaluation.worker  # noqa: F401  # as in a worker, to know its memory

    for kept in output.glob(TALLIES):
        kept.unlink()
    question = QUESTIONS[name]
    if question.labels is not None:
        question = question.model_copy(update={"labels": str(output.with_name(question.labels))})
    held = peak(resource.RUSAGE_SELF)
    began, used = time.perf_counter(), time.process_time()
    found = evaluate_output(output, question, workers)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    of_workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = {
        "M rows/s": found.quality.rows / seconds / 1e6,
        "s": seconds,
        "parent s": used,
        "workers s": of_workers.ru_utime + of_workers.ru_stime,
        "parent MB": peak(resource.RUSAGE_SELF) - held,
        "worker MB": max(peak(resource.RUSAGE_CHILDREN) - held, 0),
    }
    return report, found.model_dump_json(exclude={"seconds"})


def peak(who: int) -> float:
    """MB of this process, or of the largest that it waited for, at most."""
    return resource.getrusage(who).ru_maxrss / 1024


def main() -> None:
    """Print a table, and the same as a line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", default=f"1,{len(os.sched_getaffinity(0))}")
    parser.add_argument("--parts", type=int, default=40)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--only", choices=QUESTIONS, action="append")
    wanted = parser.parse_args()
    numbers = [int(text) for text in wanted.workers.split(",")]
    cores = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        began, output = time.perf_counter(), Path(folder) / "out"
        with context.Pool(cores) as pool:
            make = partial(make_part, output, wanted.parts, wanted.rows)
            finish_output(output, pool.map(make, range(wanted.parts), chunksize=1))
        print(
            f"{wanted.parts} parts of {wanted.rows:,} rows, made in "
            f"{time.perf_counter() - began:.0f} s; {cores} cores"
        )
        for name in wanted.only or QUESTIONS:
            figures = set()
            for number in numbers:
                with context.Pool(1) as pool:
                    found, text = pool.apply(ask, (output, name, number))
                figures.add(text)
                if not rows:
                    print(f"{'':18}{'workers':>8}" + "".join(f"{key:>11}" for key in found))
                rows.append({"question": name, "workers": number, **found})
                print(f"{name:18}{number:>8}" + "".join(f"{x:11.1f}" for x in found.values()))
            assert len(figures) == 1, f"{name}: the figures depend on the workers"
    print(json.dumps({"cores": cores, "parts": wanted.parts, "rows": wanted.rows, "asked": rows}))


if __name__ == "__main__":
    main()
