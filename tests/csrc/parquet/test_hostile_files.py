"""Files that claim more than they hold: time and memory of reading any file are linear in its size.

Each is read in a process of its own that may map no more than 4 times the file's size and 64 MB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from parquet_by_hand import (
    I64,
    RLE_DICTIONARY,
    Raw,
    dictionary,
    indexed,
    plain,
    v1,
    v2,
    varint,
    write,
)

from dpiframe_core import _core

BODY = plain("<i4", range(20))
LARGE = 300 << 20  # bytes of zeros, of which zstd makes a few KB

# Ways to read a file: opening it alone, its columns, its pages, also unpacked ahead.
READ = """
import json, resource, sys, time
import numpy as np
from dpiframe_core import _core

path, way, room, repeats = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def statm(field):
    return int(open("/proc/self/statm").read().split()[field]) * resource.getpagesize()

def read(out):
    file = _core.ParquetFile(path)
    stop = len(file.group_rows)
    if way == "columns":
        file.read(["x"], 0, stop, [out])
    elif way in ("pages", "unpacked"):
        size, above = file.pages_bytes(["x"], 0, stop), 0 if way == "unpacked" else None
        memory = np.empty(2 * size if way == "unpacked" else size, "u1")
        file.read_pages(["x"], 0, stop, memory, above).decode(memory, out[None])

rows = int(sys.argv[5])
out = np.ones(rows, "i4")
if room:
    resource.setrlimit(resource.RLIMIT_AS, (statm(0) + room,) * 2)
before, times = statm(1), []
for _ in range(repeats):
    start = time.process_time()
    try:
        read(out)
        told = "read"
    except ValueError as error:
        told = str(error)
    times.append(time.process_time() - start)
print(json.dumps({"told": told, "seconds": min(times), "kept": statm(1) - before}))
"""

pytestmark = pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="the address sanitizer takes memory itself"
)


def attempt(
    path: Path, way: str, *, rows: int = 20, bounded: bool = True, repeats: int = 1
) -> dict:
    """What a fresh process says of the file; it fails where it would take too much memory."""
    room = 4 * path.stat().st_size + (64 << 20) if bounded else 0
    command = [sys.executable, "-c", READ, str(path), way, str(room), str(repeats), str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


ZEROS = bytes(LARGE)
WORDS = dictionary(BODY, 20, codec="zstd")
FIVES = indexed(5, (5, 20))
BOMBS = {
    "data_v1": [v1(ZEROS, 0, codec="zstd"), v1(BODY, 20, codec="zstd")],
    "data_v2": [v2(ZEROS, 0, codec="zstd"), v1(BODY, 20, codec="zstd")],
    "data_of_rows": [v1(ZEROS, 20, codec="zstd")],
    "indices": [WORDS, v1(FIVES + ZEROS, 20, RLE_DICTIONARY, codec="zstd")],
    "dictionary": [dictionary(ZEROS, 20, codec="zstd"), v1(FIVES, 20, RLE_DICTIONARY)],
    "large_dictionary": [
        dictionary(ZEROS, LARGE // 4, codec="zstd"),
        v1(FIVES, 20, RLE_DICTIONARY, codec="zstd"),
    ],
    "claimed": [
        dictionary(b"", 1 << 28, codec="zstd", header={2: 1 << 30}),
        v1(FIVES, 20, RLE_DICTIONARY, codec="zstd"),
    ],
}


@pytest.mark.parametrize("way", ["columns", "pages", "unpacked"])
@pytest.mark.parametrize("case", BOMBS)
def test_a_page_that_unpacks_to_more_than_its_values_need(tmp_path, case, way):
    path = write(tmp_path / "f", BOMBS[case], 20, codec="zstd")
    assert "unpack" in attempt(path, way)["told"]


@pytest.mark.parametrize("way", ["columns", "pages"])
def test_a_snappy_page_that_claims_more_than_snappy_can_give(tmp_path, way):
    pages = [dictionary(BODY, 1 << 28, codec="snappy", header={2: 1 << 30}), v1(BODY, 20)]
    told = attempt(write(tmp_path / "f", pages, 20, codec="snappy"), way)["told"]
    assert "unpack" in told


@pytest.mark.parametrize("way", ["columns", "pages"])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("page_of_zero_values_1_9_gb.parquet", "a page of 0 values that unpacks to"),
        ("dictionary_of_minus_2e62_values.parquet", "a page of -4611686018427387648 values"),
    ],
)
def test_files_that_were_found(shared_faults, name, told, way):
    assert told in attempt(shared_faults / name, way, rows=3)["told"]


@pytest.mark.parametrize("values", [-(1 << 62), -1, 1 << 31, 1 << 62, (1 << 63) - 1])
@pytest.mark.parametrize("way", ["columns", "pages"])
def test_a_dictionary_of_less_or_more_values_than_a_page_may_have(tmp_path, values, way):
    words = dictionary(BODY, 20, own={1: I64(values)})
    path = write(tmp_path / "f", [words, v1(FIVES, 20, RLE_DICTIONARY)], 20)
    assert f"a page of {values} values" in attempt(path, way)["told"]


def test_many_pages_that_each_unpack_to_a_little_more_than_they_need(tmp_path):
    """The columns are read a page at a time, the pages of a unit are unpacked together."""
    pages = [v1(bytes(4 + 4096), 1, codec="zstd")] * 60_000
    path = write(tmp_path / "f", pages, len(pages), codec="zstd")
    assert attempt(path, "columns", rows=len(pages))["told"] == "read"
    assert "pages that unpack to" in attempt(path, "pages", rows=len(pages))["told"]


def test_many_corrupt_pages_that_are_unpacked_ahead(tmp_path):
    """None of them takes room, but all together unpack to no more than their numbers may."""
    seconds = []
    for count in (2_000, 8_000):
        pages = [v1(np.arange(500, dtype="<i4").tobytes() + b"\0", 500, codec="zstd")] * count
        path = write(tmp_path / "f", pages, 500 * count, codec="zstd")
        whole = path.read_bytes()
        path.write_bytes(whole.replace(b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfc"))
        found = attempt(path, "unpacked", rows=500 * count, repeats=3)
        assert "does not decompress" in found["told"]
        seconds.append(found["seconds"])
    assert seconds[1] < 8 * max(seconds[0], 0.02), seconds


def test_many_pages_of_one_value(tmp_path):
    """Their list may not take much more memory than they do."""
    pages = [v1(bytes(4), 1)] * 1_100_000
    path = write(tmp_path / "f", pages, len(pages))
    assert attempt(path, "columns", rows=len(pages))["told"] == "read"
    assert "pages in" in attempt(path, "pages", rows=len(pages))["told"]


@pytest.mark.parametrize("way", ["columns", "pages"])
def test_a_dictionary_may_have_some_values_too_many(tmp_path, way):
    words = dictionary(bytes(4 * 60_000), 60_000)
    path = write(tmp_path / "f", [words, v1(FIVES, 20, RLE_DICTIONARY)], 20)
    assert attempt(path, way)["told"] == "read"


def test_a_name_with_a_zero_byte_does_not_hide_what_is_wrong(tmp_path):
    path = write(tmp_path / "f", [v1(BODY, 20, own={1: 19})], 20, element={4: "a\0b"})
    with pytest.raises(ValueError, match=r"column a\\0b: cut off in a header"):
        _core.ParquetFile(str(path)).read(["a\0b"], 0, 1, [np.empty(20, "i4")])


def test_memory_of_a_large_page_is_given_back(tmp_path):
    """A thread keeps its memory from one unit to the next, but not that of an unusual page."""
    rows = 25_000_000
    path = write(tmp_path / "f", [v1(bytes(4 * rows), rows, codec="zstd")], rows, codec="zstd")
    found = attempt(path, "columns", rows=rows, bounded=False)
    assert found["told"] == "read"
    assert found["kept"] < 32 << 20


def listed(entry: bytes, count: int, kind: int = 12) -> Raw:
    """A list of `count` entries that are the same."""
    return Raw(9, bytes([0xF0 | kind]) + varint(count) + entry * count)


def element(i: int) -> bytes:
    name = b"%08d" % i
    return b"\x15\x02\x25\x00\x18" + bytes([len(name)]) + name + b"\0"


FOOTERS = {
    # Maps of two bools, as in the file that was found, but whole.
    "maps_of_bools": lambda n: {"footer": {10: listed(b"\x02\x11" + b"\1" * 4, n // 6, kind=11)}},
    "one_map_of_bools": lambda n: {"footer": {10: Raw(11, varint(n // 2) + b"\x11" + b"\1" * n)}},
    "claims": lambda n: {"footer": {10: listed(varint(n // 8) + b"\x11", n // 5, kind=11)}},
    "chunks_without_metadata": lambda n: {"group": {1: listed(b"\x26\0\0", n // 3)}},
    "groups_without_chunks": lambda n: {"footer": {4: listed(b"\x19\x0c\x16\0\x16\0\0", n // 7)}},
    "elements_without_names": lambda n: {"footer": {2: listed(b"\x48\0\0", n // 3)}},
    "columns_without_names": lambda n: {"footer": {2: listed(b"\x15\x02\x38\0\0", n // 5)}},
    "columns": lambda n: {
        "footer": {
            2: Raw(
                9,
                b"\xfc"
                + varint(n // 15 + 1)
                + b"\x48\0\x15"
                + varint(n // 15 * 2)
                + b"\0"
                + b"".join(element(i) for i in range(n // 15)),
            )
        }
    },
    "pairs": lambda n: {"footer": {5: listed(b"\x18\x01a\0", n // 4)}},
    "orders": lambda n: {"footer": {7: listed(b"\0", n)}},
    "statistics": lambda n: {"chunk": {12: Raw(12, b"\x18" + varint(n) + b"a" * n + b"\0")}},
    "levels": lambda n: {"chunk": {16: Raw(12, b"\x29" + b"\xf6" + varint(n) + b"\0" * n + b"\0")}},
}


@pytest.mark.parametrize("case", FOOTERS)
def test_time_and_memory_of_a_footer_are_linear_in_its_size(tmp_path, case):
    seconds = []
    for size in (2 << 20, 8 << 20):
        path = write(tmp_path / "f", [v1(BODY, 20)], 20, **FOOTERS[case](size))
        assert path.stat().st_size > size // 2
        seconds.append(attempt(path, "open", repeats=3)["seconds"])
    assert seconds[1] < 8 * max(seconds[0], 0.02), seconds


@pytest.mark.parametrize("way", ["columns", "pages", "unpacked"])
def test_time_and_memory_of_pages_are_linear_in_their_number(tmp_path, way):
    seconds = []
    for count in (100_000, 400_000):
        pages = [v1(b"", 0)] * count + [v1(BODY, 20)]
        found = attempt(write(tmp_path / "f", pages, 20), way, repeats=3)
        assert found["told"] == "read"
        seconds.append(found["seconds"])
    assert seconds[1] < 8 * max(seconds[0], 0.02), seconds


@pytest.mark.parametrize("way", ["columns", "pages"])
def test_a_page_header_may_hold_maps_of_bools(tmp_path, way):
    seconds = []
    for size in (1 << 20, 4 << 20):
        maps = Raw(9, b"\xfb" + varint(size // 6) + (b"\x02\x11" + b"\1" * 4) * (size // 6))
        path = write(tmp_path / "f", [v1(BODY, 20, header={9: maps})], 20)
        found = attempt(path, way, repeats=3)
        assert found["told"] == "read"
        seconds.append(found["seconds"])
    assert seconds[1] < 8 * max(seconds[0], 0.02), seconds


def test_the_footer_that_was_found(shared_faults):
    """Each of its bools takes a byte."""
    found = attempt(shared_faults / "footer_map_of_bools.parquet", "open")
    assert found["told"] == "read" and found["seconds"] < 1
