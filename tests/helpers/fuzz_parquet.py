"""Damages small parquet files, makes up others, and reads them: each reads or is refused in words.

    python tests/helpers/fuzz_parquet.py --seed 1 --count 1000000 --seconds 600 --folder /tmp/fuzz

Prints how often each outcome was seen. A crash, an exception of another kind, a byte written
outside the arrays, or a case that takes 30 seconds ends the run and leaves the file in the folder.
Each case is given by its seed and number alone: `--seed S --first N --count 1` runs case N again.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import itertools
import json
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from made_parquet import write_made
from parquet_files import guarded, required, untouched

from dpiframe_core import _core

NAMES = ["i4", "i8", "f4", "f8", "x"]  # x: that of files made up
MOST_ROWS = 100_000  # a footer that claims more is not read
ODD_BYTES = [0x00, 0x01, 0x0F, 0x7F, 0x80, 0xF0, 0xFE, 0xFF]


def valid_files(folder: Path) -> list[bytes]:
    """Small files of each codec, version and encoding, with and without what footers may hold."""
    random = np.random.default_rng(0)
    files = []
    forms = itertools.product(["none", "snappy", "zstd"], ["1.0", "2.0"], range(3))
    for number, (codec, version, form) in enumerate(forms):
        groups = [_table(random, rows) for rows in (61, 8, 200)]
        groups = groups if number % 2 else [required(group) for group in groups]
        options = {
            "compression": codec,
            "data_page_version": version,
            "use_dictionary": form > 0,
            "dictionary_pagesize_limit": 300 if form == 2 else None,
            "data_page_size": 200 if form else None,
            "write_batch_size": 20,
            "write_statistics": number % 3 == 0,
            "store_schema": number % 5 == 0,
        }
        path = folder / "valid"
        with pq.ParquetWriter(path, groups[0].schema, **options) as writer:
            for group in groups:
                writer.write_table(group)
        files.append(path.read_bytes())
        path.unlink()
    return files


def _table(random: np.random.Generator, rows: int) -> pa.Table:
    few = random.integers(0, 30, rows)
    runs = np.repeat(few, 9)[:rows]
    return pa.table({"i4": few.astype("i4"), "i8": runs, "f4": runs.astype("f4"), "f8": few / 2})


def places(data: bytes) -> list[int]:
    """Where page headers, dictionaries and pages begin."""
    metadata = pq.read_metadata(pa.BufferReader(data))
    chunks = [
        metadata.row_group(g).column(c)
        for g in range(metadata.num_row_groups)
        for c in range(metadata.num_columns)
    ]
    found = [(c.dictionary_page_offset, c.data_page_offset) for c in chunks]
    return [place for pair in found for place in pair if place is not None]


def damaged(data: bytes, starts: Sequence[int], random: np.random.Generator) -> bytes:
    """The file with one to four changes in its footer or its pages, seldom cut off."""
    size = int.from_bytes(data[-8:-4], "little")
    pages, footer = bytearray(data[: -8 - size]), bytearray(data[-8 - size : -8])
    for _ in range(random.integers(1, 5)):
        where = random.integers(0, 10)
        if where < 3:
            at = int(random.integers(0, len(footer)))
            _change(footer, at, random, grow=random.random() < 0.3)
        elif where < 8:
            start = starts[random.integers(0, len(starts))]
            at = min(start + int(random.integers(0, 60)), len(pages) - 1)
            _change(pages, at, random, grow=random.random() < 0.1)
        else:
            _change(pages, int(random.integers(0, len(pages))), random, grow=random.random() < 0.1)
    stated = len(footer) if random.random() < 0.98 else int(random.integers(0, 2 * len(footer)))
    whole = bytes(pages + footer) + struct.pack("<I", stated) + b"PAR1"
    return whole[: random.integers(0, len(whole))] if random.random() < 0.01 else whole


def _change(data: bytearray, at: int, random: np.random.Generator, *, grow: bool) -> None:
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


def attempt(path: Path) -> list[str]:
    """What became of each step; raises what the reader must not raise."""
    try:
        file = _core.ParquetFile(str(path))
    except (ValueError, OSError) as error:
        return [f"not opened: {type(error).__name__}"]
    count = len(file.group_rows)
    return [_read(file, *groups) for groups in [(0, count), (count // 2, count), (0, 1)]]


def _read(file: _core.ParquetFile, first: int, stop: int) -> str:
    rows = sum(file.group_rows[first:stop])
    if stop > len(file.group_rows) or rows > MOST_ROWS:
        return "too few groups or too many rows"
    kinds = {name: file.number_type(name, first, stop) for name in NAMES}
    found = [(name, guarded(kind, rows)) for name, kind in kinds.items() if kind is not None]
    if not found:
        return "no column"
    try:
        file.read([name for name, _ in found], first, stop, [out for _, (out, _) in found])
    except (ValueError, OSError) as error:
        return f"not read: {type(error).__name__}"
    finally:
        if not all(untouched(memory) for _, (_, memory) in found):
            raise AssertionError("the reader wrote outside an array")
    return "read"


def run(
    attempt: Callable[[Path], Iterable[str]],
    seed: int,
    first: int,
    count: int,
    seconds: float,
    folder: Path,
) -> dict[str, int]:
    """Outcomes of attempts at the cases first, first + 1, ..."""
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


def main(attempt: Callable[[Path], Iterable[str]], description: str | None) -> None:
    """What a script like this one does with its arguments."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=1000, help="how many cases at most")
    parser.add_argument("--seconds", type=float, default=3600, help="how long at most")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the files lie")
    options = parser.parse_args()
    print(json.dumps(run(attempt, **vars(options)), indent=1))


if __name__ == "__main__":
    main(attempt, __doc__)
