"""Damages small parquet files, makes up others: where we and pyarrow read one, both read the same.

pyarrow may crash at such a file: it reads in a process of its own, which is then started anew.
Ours reads zstd by its own decoder: of a corrupt frame without a checksum two versions of libzstd
may make different bytes.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

from fuzz_parquet import MOST_ROWS, NAMES, parquet_cases
from fuzzing import main
from parquet_files import read

from dpiframe_core import _core

READ = """
import pickle, sys
import pyarrow.parquet as pq

def column(path, name):
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            groups = list(range(file.num_row_groups))
            array = file.read_row_groups(groups, columns=[name], use_threads=False).column(name)
            array.validate(full=True)
            return array.null_count, array.combine_chunks().to_numpy(False).tobytes()
    except Exception as error:
        return type(error).__name__

while True:
    names, path = pickle.load(sys.stdin.buffer)
    pickle.dump([column(path, name) for name in names], sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""


class Arrow:
    """pyarrow in a process of its own."""

    _process: subprocess.Popen[bytes] | None = None

    def read(self, path: Path, names: list[str]) -> list[tuple[int, bytes] | str] | None:
        """Nulls and bytes of each column, or an exception's name; None where it crashed."""
        if self._process is None:
            own = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
            self._process = subprocess.Popen(
                [sys.executable, "-c", READ],
                env=own,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump((names, str(path)), self._process.stdin)
            self._process.stdin.flush()
            return pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            self._process.wait()
            self._process = None
            return None


arrow = Arrow()


def attempt(path: Path) -> list[str]:
    try:
        file = _core.ParquetFile(str(path))
    except (ValueError, OSError):
        return ["not opened"]
    stop = len(file.group_rows)
    if sum(file.group_rows) > MOST_ROWS:
        return ["too many rows"]
    names = [name for name in NAMES if file.number_type(name, 0, stop) is not None]
    theirs = arrow.read(path, names)
    if theirs is None:
        return ["pyarrow crashed"]
    outcomes = []
    for name, found in zip(names, theirs, strict=True):
        try:
            ours = read(file, [name])[0].tobytes()
        except (ValueError, OSError):
            outcomes.append("both refuse" if isinstance(found, str) else "only pyarrow reads")
            continue
        if isinstance(found, str):
            outcomes.append("only we read")
            continue
        nulls, values = found
        if len(values) < len(ours):  # it takes a broken header for a column's end
            outcomes.append("pyarrow reads fewer rows")
            continue
        assert nulls == 0, f"{name} has {nulls} nulls for pyarrow"
        assert ours == values, f"{name} has other values for pyarrow"
        outcomes.append("both read")
    return outcomes


def run_without_libzstd() -> None:
    """Starts this script anew where the libzstd that is found first is no library."""
    if os.environ.get("WITHOUT_LIBZSTD"):
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "libzstd.so.1").touch()
        own = {"LD_LIBRARY_PATH": folder, "WITHOUT_LIBZSTD": "1"}
        done = subprocess.run([sys.executable, *sys.argv], env=os.environ | own, check=False)
    raise SystemExit(done.returncode)


if __name__ == "__main__":
    run_without_libzstd()
    main(attempt, parquet_cases, __doc__)
