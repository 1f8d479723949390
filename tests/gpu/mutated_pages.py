"""Mutated pages, decoded on the GPU and on the host: no fault, no hang, and the same numbers.

    python tests/gpu/mutated_pages.py --seed 7 --count 100000 --seconds 300
    compute-sanitizer --tool memcheck --error-exitcode 9 \
        python tests/gpu/mutated_pages.py --count 1000 --processes 1 --apart

Units come from damaged and made up files (tests/helpers/fuzz_parquet.py, and fuzz_other_columns.py
for raw columns), as far as the host takes
their headers, and then from damage to their bytes in memory, which no header tells: to one page of
them, or to up to four. `count` is of those. Prints a line of JSON: units that were decoded and
their pages, what became of them, the longest unit (both forms and the comparison). Where the two
forms differ, or a unit takes 30 seconds, the exit code is not 0 and the file's seed and number are
told: `--seed S --first N --processes 1 --count 1` decodes it again.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "helpers"))

from column_pages import decode, read_pages
from cuda_cases import cuda_engine, large_model
from fuzz_column_pages import MOST_ROOM
from fuzz_other_columns import RAW, encoders_of, raw_pages
from fuzz_other_columns import cases as other_cases
from fuzz_parquet import MOST_ROWS, parquet_cases
from fuzzing import change

from dpiframe_core import _core

COLUMNS = (["i4", "f4"], ["i8", "f8"], ["i4"], ["i8"], ["f4"], ["f8"], ["x"])
DAMAGED = 12  # times that the bytes of a unit are changed
HANG_SECONDS = 30

Unit = tuple[_core.ColumnPages, np.ndarray, bool]


class GpuDecoder:
    """The page scorer's decoder; `apart`: memory of its own for each unit, of just its size."""

    def __init__(self, apart: bool) -> None:
        self.apart = apart
        self.engine = cuda_engine(large_model("wdl"), max_batch=64, threads=1)
        self._kept: dict[int, _core.PageScorer] = {}

    def decode(self, stored: _core.ColumnPages, memory: np.ndarray) -> np.ndarray | None:
        """The numbers [columns, rows] of a unit; None where a page is refused."""
        scorer = self._kept.get(stored.columns)
        if scorer is None:
            native, ring = self.engine._native, self.engine._ring
            scorer = _core.PageScorer(native, ring, stored.columns, 0, 1)
        if not self.apart:
            self._kept[stored.columns] = scorer
        out = np.zeros((stored.columns, stored.rows), f"<i{stored.number_bytes}")
        why = scorer.decode(stored, memory, out.reshape(-1).view(np.uint8))
        return None if why else out


def units(path: Path, random: np.random.Generator) -> Iterator[Unit]:
    """What the host takes of a file, as it is and damaged in memory (True)."""
    try:
        file = _core.ParquetFile(str(path))
    except (ValueError, OSError):
        return
    stop = len(file.group_rows)
    if not 0 < sum(file.group_rows) <= MOST_ROWS:
        return
    for read in readers(file, stop):
        try:
            stored, memory = read()
        except (ValueError, OSError):
            continue
        if stored.uncompressed_bytes > MOST_ROOM or not stored.compressed_bytes:
            continue
        yield stored, memory, False
        for _ in range(DAMAGED):
            bytes_ = bytearray(memory)
            for _ in range(random.integers(1, 5)):
                at = int(random.integers(0, stored.compressed_bytes))
                change(bytes_, at, random, grow=False)
            yield stored, np.frombuffer(bytes_, np.uint8), True


def readers(
    file: _core.ParquetFile, stop: int
) -> Iterator[Callable[[], tuple[_core.ColumnPages, np.ndarray]]]:
    """What reads units of numbers, and of each raw column by some encoders."""
    for names in COLUMNS:
        if not any(file.number_type(name, 0, stop) is None for name in names):
            yield partial(read_pages, file, names)
    for name in RAW:
        if file.is_encodable(name, 0, stop):
            yield partial(raw_pages, file, name, encoders_of(name))


def compare(stored: _core.ColumnPages, memory: np.ndarray, gpu: GpuDecoder) -> str:
    """What became of a unit; AssertionError where the two forms differ."""
    try:
        wanted = decode(stored, memory)
    except ValueError:
        wanted = None
    found = gpu.decode(stored, memory)
    if found is None:
        # libzstd lets a stream of literals end anywhere; the GPU's decoder does not.
        assert wanted is None or stored.uncompressed_bytes > 0, (
            "the GPU refuses what the host takes"
        )
        return "refused by both" if wanted is None else "refused by the GPU alone"
    assert wanted is not None, "the GPU takes what the host refuses"
    assert found.tobytes() == wanted.tobytes(), "other numbers"
    return "the same numbers"


def run(
    *, seed: int, first: int, step: int, count: int, seconds: float, apart: bool
) -> dict[str, float]:
    """Outcomes of the files first, first + step, ... until so many mutated units were decoded."""
    seen: collections.Counter[str] = collections.Counter()
    longest, stop = 0.0, time.monotonic() + seconds
    gpu = GpuDecoder(apart)
    with tempfile.TemporaryDirectory() as folder:
        writers = [parquet_cases(Path(folder)), other_cases(Path(folder))]
        for number in itertools.count(first, step):
            if seen["mutated"] >= count or time.monotonic() > stop:
                break
            random, path = np.random.default_rng([seed, number]), Path(folder, "unit")
            writers[number % 2](path, random)
            for unit, (stored, memory, mutated) in enumerate(units(path, random)):
                faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
                began = time.monotonic()
                try:
                    seen[compare(stored, memory, gpu)] += 1
                except Exception as error:
                    error.add_note(f"--seed {seed} --first {number}, unit {unit}")
                    raise
                longest = max(longest, time.monotonic() - began)
                seen["pages"] += stored.num_pages
                seen["units"] += 1
                seen["mutated"] += mutated
            seen["files"] += 1
    faulthandler.cancel_dump_traceback_later()
    return {**seen, "longest_ms": round(1e3 * longest, 3)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--count", type=int, default=100_000, help="mutated units, at least")
    parser.add_argument("--seconds", type=float, default=600, help="how long at most")
    parser.add_argument("--processes", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--apart", action="store_true", help="memory of its own for each unit")
    options = parser.parse_args()
    began = time.monotonic()
    if options.processes == 1:
        keys = {name: getattr(options, name) for name in ("seed", "first", "count", "seconds")}
        print(json.dumps(run(step=1, apart=options.apart, **keys)))
        return 0
    share = -(-options.count // options.processes)
    command = [sys.executable, __file__, "--processes", "1", "--count", str(share)]
    command += ["--seed", str(options.seed), "--seconds", str(options.seconds)]
    command += ["--apart"] if options.apart else []
    running = [
        subprocess.Popen([*command, "--first", str(options.first + process * 10**7)], stdout=-1)
        for process in range(options.processes)
    ]
    total: collections.Counter[str] = collections.Counter()
    longest, failed = 0.0, 0
    for process in running:
        told = process.communicate()[0]
        failed += process.returncode != 0
        if process.returncode == 0:
            found = json.loads(told)
            longest = max(longest, found.pop("longest_ms"))
            total.update(found)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({**total, "longest_ms": longest, "seconds": seconds, "failed": failed}))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
