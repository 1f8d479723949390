"""Stored pages that lie: each is refused, none leads to memory of others."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest
from column_pages import decode, read_pages
from parquet_by_hand import (
    DICTIONARY,
    I64,
    PLAIN,
    RLE_DICTIONARY,
    Fields,
    dictionary,
    indexed,
    plain,
    v1,
    varint,
    write,
)
from parquet_files import write as write_table
from run_fuzz import outcomes_of

from dpiframe_core import _core

BODY = plain("<i4", range(100, 120))
WORDS = dictionary(BODY, 20)


INSIDE = {
    "index_of_a_run": indexed(8, (20, 20)),
    "index_of_a_wide_run": indexed(32, (0xFFFFFFFF, 20)),
    "packed_index": indexed(5, [*range(7), 20, *range(12)]),
    "packed_index_behind_the_groups": indexed(5, [*range(16), 31, 1, 2, 3]),
    "runs_end_too_early": indexed(5, (3, 19)),
    "run_cut_off": indexed(5, (3, 20))[:2],
    "packed_run_cut_off": indexed(5, [1] * 20)[:11],
    "packed_run_that_claims_more": b"\x05" + varint((1 << 32) - 1) + bytes(9),
    "run_header_without_end": b"\x05" + b"\xff" * 30,
    "run_header_too_large": b"\x05" + varint(1 << 32) + b"\x01",
    "empty_runs": b"\x05" + bytes(100),
    "no_width": b"",
    "width_33": indexed(33, (1, 20)),
}
SHOWN_AT_ONCE = {
    "no_dictionary": [v1(indexed(5, (1, 20)), 20, RLE_DICTIONARY)],
    "empty_dictionary": [dictionary(b"", 0), v1(indexed(0, (0, 20)), 20, RLE_DICTIONARY)],
    "two_dictionaries": [WORDS, WORDS, v1(BODY, 20)],
    "short_dictionary": [dictionary(BODY[:-1], 20), v1(BODY, 20)],
    "too_few_values": [v1(BODY, 20, own={1: 19})],
    "too_many_values": [v1(BODY + BODY, 40)],
    "short_numbers": [v1(BODY[:-1], 20)],
    "no_page": [bytes(8)],
    "encoding": [v1(BODY, 20, 6)],
    "unpacked": [v1(BODY, 20, header={2: 81})],
    "large_page": [v1(BODY, 20, header={2: (1 << 26) + 1})],
    "kind": [v1(BODY, 20, header={1: DICTIONARY})],
    "checksum": [v1(BODY, 20, PLAIN, header={4: 1})],
}


@pytest.mark.parametrize("case", INSIDE)
def test_pages_that_are_corrupt_inside(tmp_path, case):
    for codec in ("none", "zstd"):
        words = dictionary(BODY, 20, codec=codec)
        pages = [words, v1(INSIDE[case], 20, RLE_DICTIONARY, codec=codec)]
        file = _core.ParquetFile(str(write(tmp_path / "f", pages, 20, codec=codec)))
        stored, memory = read_pages(file, ["x"])
        with pytest.raises(ValueError, match="column 0 is corrupt"):
            decode(stored, memory)


@pytest.mark.parametrize("case", SHOWN_AT_ONCE)
def test_pages_whose_headers_lie(tmp_path, case):
    file = _core.ParquetFile(str(write(tmp_path / "f", SHOWN_AT_ONCE[case], 20)))
    with pytest.raises(ValueError, match="row group 0, column x: "):
        read_pages(file, ["x"])


def test_a_page_that_claims_more_memory_than_its_values_take(tmp_path):
    page = v1(BODY, 20, codec="zstd", header={2: 1 << 20})
    file = _core.ParquetFile(str(write(tmp_path / "f", [page], 20, codec="zstd")))
    with pytest.raises(ValueError, match="a page of 20 values that unpacks to 1048576 bytes"):
        read_pages(file, ["x"])


def groups(starts: list[int], size: int) -> list[Fields]:
    """Row groups of 20 rows whose chunks begin there."""
    facts = {1: 1, 2: [PLAIN], 3: ["x"], 4: 0, 5: I64(20), 6: I64(size), 7: I64(size)}
    return [
        {1: [{2: I64(start), 3: {**facts, 9: I64(start)}}], 2: I64(size), 3: I64(20)}
        for start in starts
    ]


def test_a_footer_whose_chunks_share_bytes(tmp_path):
    """They would take many times the file's size of page-locked memory."""
    page = v1(BODY, 20)
    size = len(page)
    for second in (4, 4 + size - 1):
        footer = {4: groups([4] + [second] * 50, size)}
        file = _core.ParquetFile(str(write(tmp_path / "f", [page] * 2, 1020, footer=footer)))
        with pytest.raises(ValueError, match="column x: it shares bytes with column x of row gr"):
            file.pages_bytes(["x"], 0, 51)
    footer = {4: groups([4 + size, 4], size)}  # in any order
    file = _core.ParquetFile(str(write(tmp_path / "f", [page] * 2, 40, footer=footer)))
    stored, memory = read_pages(file, ["x", "x"])  # a column that is asked for twice
    assert decode(stored, memory).tolist() == [[*range(100, 120)] * 2] * 2


def test_a_footer_whose_chunks_lie_behind_the_end(tmp_path):
    page = v1(BODY, 20)
    for size in (1 << 20, 1 << 62):
        file = _core.ParquetFile(str(write(tmp_path / "f", [page], 20, chunk={7: I64(size)})))
        with pytest.raises(ValueError, match="column x: it lies behind the end of the file"):
            file.pages_bytes(["x"], 0, 1)


def test_a_file_that_loses_its_end_after_it_was_opened(tmp_path):
    path = write_table(tmp_path / "f", pa.table({"few": np.arange(9000) % 99}), compression="none")
    file = _core.ParquetFile(str(path))
    os.truncate(path, 100)
    with pytest.raises((ValueError, OSError)):
        read_pages(file, ["few"])


def test_damaged_files_are_read_or_refused(tmp_path):
    seen = outcomes_of("fuzz_column_pages.py", tmp_path, 2000)
    for outcome in ("read", "refused"):
        assert seen[outcome] > seen["cases"] // 10, seen
