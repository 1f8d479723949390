"""Damages small parquet files, makes up others, and reads them: each reads or is refused in words.

    python tests/helpers/fuzz_parquet.py --seed 1 --count 1000000 --seconds 600 --folder /tmp/fuzz

A byte written outside the arrays ends the run like a crash. The other scripts of this name share
`fuzzing.py`, which says what all have in common.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fuzzing import change, main
from made_parquet import write_made
from parquet_files import guarded, required, untouched

from dpiframe_core import _core

NAMES = ["i4", "i8", "f4", "f8", "x"]  # x: that of files made up
MOST_ROWS = 100_000  # a footer that claims more is not read


def valid_files(folder: Path) -> list[bytes]:
    """Small files of each codec, version and encoding, with and without what footers may hold."""
    random = np.random.default_rng(0)
    files = []
    forms = itertools.product(["none", "snappy", "gzip", "zstd", "lz4"], ["1.0", "2.0"], range(3))
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
            change(footer, at, random, grow=random.random() < 0.3)
        elif where < 8:
            start = starts[random.integers(0, len(starts))]
            at = min(start + int(random.integers(0, 60)), len(pages) - 1)
            change(pages, at, random, grow=random.random() < 0.1)
        else:
            change(pages, int(random.integers(0, len(pages))), random, grow=random.random() < 0.1)
    stated = len(footer) if random.random() < 0.98 else int(random.integers(0, 2 * len(footer)))
    whole = bytes(pages + footer) + struct.pack("<I", stated) + b"PAR1"
    return whole[: random.integers(0, len(whole))] if random.random() < 0.01 else whole


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


def parquet_cases(folder: Path) -> Callable[[Path, np.random.Generator], None]:
    """What writes a damaged or a made up file."""
    files = [(data, places(data)) for data in valid_files(folder)]

    def write(path: Path, random: np.random.Generator) -> None:
        if random.random() < 0.5:
            write_made(path, random)
        else:
            path.write_bytes(damaged(*files[random.integers(0, len(files))], random))

    return write


if __name__ == "__main__":
    main(attempt, parquet_cases, __doc__)
