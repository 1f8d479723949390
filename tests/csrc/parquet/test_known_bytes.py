"""Parquet files of which some bytes were fetched: decoded where they lie in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpiframe_core import _core

PADDING = 64
ROWS, GROUP = 1900, 700
TABLE = pa.table(
    {
        "a": np.arange(ROWS, dtype=np.int32) % 111,
        "text": [str(i) for i in range(ROWS)],
        "b": np.arange(ROWS, dtype=np.int32)[::-1] % 19,
        "lists": [[i, i] for i in range(ROWS)],
        "c": np.arange(ROWS, dtype=np.float32),
    }
)


@pytest.fixture(params=["zstd", "gzip", "none"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "x.parquet"
    pq.write_table(TABLE, path, row_group_size=GROUP, compression=request.param)
    return path


def by_its_end(path: Path, size: int = 1 << 16) -> _core.ParquetFile:
    data = path.read_bytes()
    return _core.ParquetFile.of_end(len(data), np.frombuffer(data[-size:], np.uint8))


def fetched(
    path: Path, spans: list[tuple[int, int]]
) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    """The bytes of these spans one behind the other, and where each of them lies."""
    data, parts, ranges, at = path.read_bytes(), [], [], 0
    for begin, size in spans:
        parts.append(data[begin : begin + size])
        ranges.append((begin, at, size))
        at += size
    return np.frombuffer(b"".join([*parts, bytes(PADDING)]), np.uint8).copy(), ranges


def test_the_end_alone_gives_the_footer(path: Path):
    whole, end = _core.ParquetFile(str(path)), by_its_end(path)
    assert (end.footer, end.size, end.group_rows) == (whole.footer, whole.size, whole.group_rows)
    assert end.number_type("a", 0, 3) == "<i4"
    with pytest.raises(ValueError, match="is not among those that were fetched"):
        end.read(["a"], 0, 1, [np.empty(GROUP, np.int32)])


def test_an_end_without_the_whole_footer_is_refused(path: Path):
    length = len(_core.ParquetFile(str(path)).footer)
    with pytest.raises(ValueError, match="is not among those that were fetched"):
        by_its_end(path, length + 7)
    assert by_its_end(path, length + 8).group_rows
    with pytest.raises(ValueError, match="is not among those that were fetched"):
        by_its_end(path, 3)


def test_columns_are_read_from_fetched_ranges(path: Path):
    file = by_its_end(path)
    spans = file.chunk_ranges(["c", "a", "b"], 1, 3)
    known = file.over(*fetched(path, spans))
    outs = [np.empty(ROWS - GROUP, kind) for kind in (np.int32, np.float32, np.int32)]
    known.read(["b", "c", "a"], 1, 3, outs)
    for name, out in zip("bca", outs, strict=True):
        np.testing.assert_array_equal(out, TABLE.column(name).to_numpy()[GROUP:])
    with pytest.raises(ValueError, match="is not among those that were fetched"):
        known.read(["a"], 0, 1, [np.empty(GROUP, np.int32)])


def test_pages_are_listed_where_they_were_fetched_to(path: Path):
    file = by_its_end(path)
    names = ["b", "a"]
    try:
        size = file.pages_bytes(names, 0, 3)
    except ValueError:
        return  # gzip
    memory, ranges = fetched(path, file.chunk_ranges(names, 0, 3))
    assert len(memory) == size
    before = memory.copy()
    for place in (memory, np.zeros(size, np.uint8)):  # in place, and copied to elsewhere
        pages = file.over(memory, ranges).read_pages(names, 0, 3, place)
        out = np.empty((2, ROWS), np.int32)
        pages.decode(place, out)
        np.testing.assert_array_equal(out, [TABLE.column(name).to_numpy() for name in names])
    np.testing.assert_array_equal(memory, before)


def test_ranges_of_nested_and_of_unknown_columns(path: Path):
    file, footer = by_its_end(path), pq.read_metadata(path)
    wanted = []
    for group in range(2):
        for leaf in (1, 3):
            chunk = footer.row_group(group).column(leaf)
            begin = chunk.dictionary_page_offset or chunk.data_page_offset
            wanted.append((begin, chunk.total_compressed_size))
    assert file.chunk_ranges(["lists", "text"], 0, 2) == wanted
    with pytest.raises(ValueError, match="there is no column nope"):
        file.chunk_ranges(["nope"], 0, 1)
    with pytest.raises(ValueError, match="share the byte"):
        file.chunk_ranges(["a", "a"], 0, 1)
    with pytest.raises(ValueError, match="row groups 0 to 4"):
        file.chunk_ranges(["a"], 0, 4)


@pytest.mark.parametrize(
    ("ranges", "problem"),
    [
        ([(0, 0, 101)], "a padding of 64 in memory of 164"),
        ([(0, 101, 0)], "a padding of 64"),
        ([(0, -1, 1)], "a padding of 64"),
        ([(-1, 0, 1)], "of a file of"),
        ([(0, 0, -1)], "of a file of"),
        ([(1 << 40, 0, 1)], "of a file of"),
        ([(9, 0, 9), (4, 20, 6)], "those before end at 10"),
    ],
)
def test_ranges_that_do_not_fit(path: Path, ranges: list[tuple[int, int, int]], problem: str):
    with pytest.raises(ValueError, match=problem):
        by_its_end(path).over(np.zeros(100 + PADDING, np.uint8), ranges)
