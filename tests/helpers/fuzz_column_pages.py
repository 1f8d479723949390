"""Damages small parquet files, makes up others, and reads their pages as they are stored: each
gives what the reader of columns gives, or both refuse it.

    python tests/helpers/fuzz_column_pages.py --seed 1 --count 1000000 --folder /tmp/fuzz
"""

from __future__ import annotations

from pathlib import Path

from column_pages import decode, read_pages
from fuzz_parquet import MOST_ROWS, parquet_cases
from fuzzing import main
from parquet_files import read

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
        stored, memory = read_pages(file, known)
        if stored.uncompressed_bytes > MOST_ROOM:
            return "too much to unpack"
        found = decode(stored, memory)
    except (ValueError, OSError) as error:
        if "gzip" in str(error) or "codec 2 " in str(error):
            return "gzip"
        if "it shares bytes with" in str(error):  # so a footer lies about some size
            return "shared bytes"
        if "a zstd page does not" in str(error):  # libzstd takes some that our decoder refuses
            return "refused"
        assert wanted is None, f"refused, but it can be read: {error}"
        return "refused"
    assert wanted is not None, "read, but it cannot be"
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.tobytes() == theirs.tobytes()
    return "read"


def _mixed(kinds: list[str | None]) -> bool:
    return len({kind[-1] for kind in kinds if kind is not None}) > 1


if __name__ == "__main__":
    main(attempt, parquet_cases, __doc__)
