"""Damages small parquet files, makes up others, and reads their pages as they are stored: each
gives what the reader of columns gives, or both refuse it.

    python tests/helpers/fuzz_stored_columns.py --seed 1 --count 1000000 --folder /tmp/fuzz

Prints how often each outcome was seen. Anything else ends the run and leaves the file in the
folder; `--seed S --first N --count 1` runs case N again.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import json
import time
from pathlib import Path

import numpy as np
from fuzz_parquet import MOST_ROWS, damaged, places, valid_files
from made_parquet import write_made
from parquet_files import read
from stored_columns import decode, read_stored

from dpiframe_core import _core

MOST_ROOM = 1 << 30  # headers that lie about more are not unpacked


def attempt(path: Path) -> list[str]:
    """What became of each number size."""
    try:
        file = _core.ParquetFile(str(path))
    except (ValueError, OSError) as error:
        return [f"not opened: {type(error).__name__}"]
    return [_compare(file, ["i4", "f4"]), _compare(file, ["i8", "f8"]), _compare(file, ["x"])]


def _compare(file: _core.ParquetFile, names: list[str]) -> str:
    stop = len(file.group_rows)
    kinds = [file.number_type(name, 0, stop) for name in names]
    known = [name for name, kind in zip(names, kinds, strict=True) if kind is not None]
    if not known or sum(file.group_rows) > MOST_ROWS or _mixed(kinds):
        return "no column, or too many rows"
    try:
        wanted = read(file, known)
    except (ValueError, OSError):
        wanted = None
    try:
        stored, memory = read_stored(file, known)
        if stored.unpacked_bytes > MOST_ROOM:
            return "too much to unpack"
        found = decode(stored, memory)
    except (ValueError, OSError) as error:
        if "snappy" in str(error) or "codec 1 " in str(error):
            return "snappy"
        assert wanted is None, f"refused, but it can be read: {error}"
        return "refused"
    assert wanted is not None, "read, but it cannot be"
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.tobytes() == theirs.tobytes()
    return "read"


def _mixed(kinds: list[str | None]) -> bool:
    return len({kind[-1] for kind in kinds if kind is not None}) > 1


def run(seed: int, first: int, count: int, seconds: float, folder: Path) -> dict[str, int]:
    """Outcomes of the cases first, first + 1, ..."""
    seen: collections.Counter[str] = collections.Counter()
    stop = time.monotonic() + seconds
    files = [(data, places(data)) for data in valid_files(folder)]
    for number in range(first, first + count):
        random = np.random.default_rng([seed, number])
        path = folder / f"seed-{seed}-case-{number}.parquet"
        if number % 2:
            write_made(path, random)
        else:
            path.write_bytes(damaged(*files[random.integers(0, len(files))], random))
        faulthandler.dump_traceback_later(30, exit=True)
        seen.update(attempt(path))
        path.unlink()
        seen["cases"] += 1
        if time.monotonic() > stop:
            break
    faulthandler.cancel_dump_traceback_later()
    return dict(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=1000, help="how many cases at most")
    parser.add_argument("--seconds", type=float, default=3600, help="how long at most")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the files lie")
    print(json.dumps(run(**vars(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
