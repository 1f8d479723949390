"""The loop of the fuzzing scripts: a file made for each case, and an attempt to read it.

    python tests/helpers/fuzz_parquet.py --seed 1 --count 1000000 --seconds 600 --folder /tmp/fuzz

Prints how often each outcome was seen, the longest case, and the most memory that one took. A
crash, an exception that the script does not expect, a case that takes 5 seconds, or more memory
than 4 times its bytes and 64 MB, ends the run and leaves the file in the folder. Each case is given
by its seed and number alone: `--seed S --first N --count 1` runs case N again; `--replay FOLDER`
reads the files of a folder instead.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

Attempt = Callable[[Path], Iterable[str]]
Write = Callable[[Path, np.random.Generator], None]
CASE_SECONDS = 5
CASE_TIMES, CASE_BESIDE_KB = 4, 64 << 10  # memory of a case: times its bytes, and beside
ODD_BYTES = [0x00, 0x01, 0x0F, 0x7F, 0x80, 0xF0, 0xFE, 0xFF]


def change(data: bytearray, at: int, random: np.random.Generator, *, grow: bool) -> None:
    """Change one place of it; its length only if it may `grow`."""
    kind = random.integers(0, 7 if grow else 4)
    other = int(random.integers(0, len(data)))
    length = int(random.integers(1, 9))
    if kind == 0:
        data[at] ^= 1 << random.integers(0, 8)
    elif kind == 1:
        data[at] = ODD_BYTES[random.integers(0, len(ODD_BYTES))]
    elif kind == 2:
        data[at] = random.integers(0, 256)
    elif kind == 3:
        piece = data[other : other + length][: len(data) - at]
        data[at : at + len(piece)] = piece
    elif kind == 4:
        data[at:at] = random.bytes(length)
    elif kind == 5:
        data[at:at] = b"\xff" * length + b"\x01"
    elif len(data) > 20:
        del data[at : min(at + length, len(data) - 10)]


def changed(data: bytes, random: np.random.Generator, most: int = 4) -> bytes:
    """The data with none to `most` changes, half of them near its start."""
    out = bytearray(data)
    for _ in range(random.integers(0, most + 1) if out else 0):
        reach = len(out) if random.random() < 0.5 else min(len(out), 60)
        change(out, int(random.integers(0, reach)), random, grow=random.random() < 0.3)
    return bytes(out)


def run(
    attempt: Attempt,
    cases: Callable[[Path], Write],
    *,
    seed: int,
    first: int,
    count: int,
    seconds: float,
    folder: Path,
    replay: Path | None = None,
) -> dict[str, int]:
    """Outcomes of attempts at the cases first, first + 1, ..., or at copies of the files of
    `replay`.
    """
    seen: collections.Counter[str] = collections.Counter()
    longest, most_memory = 0.0, 0
    stop = time.monotonic() + seconds
    paths = copies(replay, folder) if replay else made(cases(folder), seed, first, count, folder)
    for path in paths:
        took, memory_kb = _measured(attempt, path, seen)
        longest, most_memory = max(longest, took), max(most_memory, memory_kb)
        seen["cases"] += 1
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        if time.monotonic() > stop:
            break
    return dict(seen) | {"longest_ms": round(1000 * longest), "most_memory_kb": most_memory}


def _measured(attempt: Attempt, path: Path, seen: collections.Counter[str]) -> tuple[float, int]:
    """Seconds of the processor and KB of memory that an attempt takes."""
    size = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))
    began, before = time.process_time(), _memory_kb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # from now on VmHWM, the peak, counts anew
    faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
    try:
        seen.update(attempt(path))
    finally:
        faulthandler.cancel_dump_traceback_later()
    taken = _memory_kb("VmHWM") - before
    most = CASE_TIMES * size / 1024 + CASE_BESIDE_KB
    assert taken <= most, f"{path} of {size} bytes takes {taken} KB"
    return time.process_time() - began, taken


def _memory_kb(field: str) -> int:
    """A field of this process's status."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0])


def made(write: Write, seed: int, first: int, count: int, folder: Path) -> Iterator[Path]:
    """The cases by number."""
    for number in itertools.islice(itertools.count(first), count):
        path = folder / f"seed-{seed}-case-{number}"
        write(path, np.random.default_rng([seed, number]))
        yield path


def copies(replay: Path, folder: Path) -> Iterator[Path]:
    for path in sorted(replay.iterdir()):
        yield Path(shutil.copy(path, folder / f"case-{path.name}"))


def main(attempt: Attempt, cases: Callable[[Path], Write], description: str | None) -> None:
    """What each script does with its arguments."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=1000, help="how many cases at most")
    parser.add_argument("--seconds", type=float, default=3600, help="how long at most")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the files lie")
    parser.add_argument("--replay", type=Path, help="a folder of files to read instead")
    print(json.dumps(run(attempt, cases, **vars(parser.parse_args())), indent=1))
