"""What reading pages for a GPU costs a core, by the rows of a file and of a row group.

    python tests/helpers/small_files_speed.py [--rows 1000000] [--rounds 7]

Encoded Criteo-shaped rows (39 ids, a key, zstd), files in memory; CPU time of one thread, the best
round. With tests/helpers in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
from job_cases import worker_plan

from pipeline.config.job import JobConfig
from pipeline.data.synth import SynthOptions, synth
from pipeline.planning.columns import Columns
from pipeline.planning.inputs import scan_inputs
from pipeline.planning.units import UNIT_BYTES, Unit, cut_units
from pipeline.reading.reader import read_unit
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_data import UnitPages

UNIT_ROWS = UNIT_BYTES // 164  # as in a large job
SHAPES = [(1_000_000, 100_000), (1_000_000, 10_000), (100_000, 100_000), (10_000, 10_000)]


def ns_a_row(units: list[Unit], columns: Columns, rounds: int) -> float:
    """CPU time of reading all units as pages."""
    plan, buffer, best = worker_plan(columns), UnitBuffer(), float("inf")
    for _ in range(rounds + 1):  # the first one makes the buffer
        began = time.process_time()
        for unit in units:
            found = read_unit(unit, plan, buffer, pages=True)
            assert isinstance(found, UnitPages)
        best = min(best, time.process_time() - began)
    return best / sum(unit.rows for unit in units) * 1e9


def main() -> None:
    """Print a line for each shape: joined, and a unit for each file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    wanted = parser.parse_args()
    print("rows a file, a row group: joined units, ns a row; units of one file, ns a row")
    for per_file, group in SHAPES:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
            rows = Path(name) / "rows"
            shape = {"rows_per_shard": per_file, "row_group_rows": group}
            written = {"dataset": "criteo", "form": "encoded", "rows": wanted.rows, **shape}
            synth(SynthOptions.model_validate({"output": rows, **written}))
            files = scan_inputs(JobConfig(bundle="-", input=str(rows), output="-")).files
            names = pq.read_schema(files[0].path).names
            columns = Columns(
                form="encoded",
                key_columns=("row_id",),
                carry_columns=(),
                id_columns=tuple(name for name in names if name[0] in "IC"),
            )
            told = []
            for join in (True, False):
                units = cut_units(files, UNIT_ROWS, "", join=join)
                told.append(f"{len(units)}, {ns_a_row(units, columns, wanted.rounds):.1f}")
            print(f"{per_file:,}, {group:,}: {'; '.join(told)}")


if __name__ == "__main__":
    main()
