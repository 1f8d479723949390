"""zstd by the code that GPUs run, on the host, against libzstd.

What is malformed is refused, and so are: content checksums, dictionaries, frames behind a frame.
Where libzstd lets a stream of literals end anywhere, RFC 8878 and we do not.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from zstd_frames import (
    COMPRESSED,
    LARGEST_BLOCK,
    LITERALS_RAW,
    LITERALS_REPEATED,
    RAW,
    REPEATED,
    RESERVED,
    block,
    compress,
    compress_in_parts,
    contents,
    decompress,
    frame,
    literals,
    one_symbol_tables,
)

from dpiframe_core import _core

NAMES = list(contents(0))
LEVELS = [-5, 1, 3, 9, 19, 22]


def refused(packed: bytes, size: int) -> bool:
    try:
        _core.unzstd(packed, size)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("level", LEVELS)
def test_every_small_size(level):
    for size in [*range(66), 127, 255, 256, 257, 1023, 1024]:
        for name, content in contents(size, seed=size).items():
            assert _core.unzstd(compress(content, level), size) == content, (name, size)


@pytest.mark.parametrize("level", [-5, 1, 3, 9])
@pytest.mark.parametrize("size", [5000, 65_791, 65_792, LARGEST_BLOCK + 1, 400_111])
def test_pages(size, level):
    for name, content in contents(size).items():
        assert _core.unzstd(compress(content, level), size) == content, name


@pytest.mark.parametrize("level", [19, 22])
def test_levels_that_use_old_tables_again(level):
    for name, content in contents(150_000).items():
        assert _core.unzstd(compress(content, level), 150_000) == content, name


def test_two_megabytes():
    for name, content in contents(2_000_000).items():
        assert _core.unzstd(compress(content, 1), len(content)) == content, name


@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize("size", [0, 1, 5000, 300_000])
def test_a_frame_need_not_tell_its_size(size, parts):
    for name, content in contents(size).items():
        assert _core.unzstd(compress_in_parts(content, parts), size) == content, name


@pytest.mark.parametrize("size", [0, 1, 31, 32, 4095, 4096, 100_000])
def test_literals_without_sequences(size):
    text = np.random.default_rng(size).bytes(size)
    for kind, body, content in [
        (LITERALS_RAW, text, text),
        (LITERALS_REPEATED, b"x", b"x" * size),
    ]:
        packed = frame(block(COMPRESSED, literals(kind, body, size) + b"\0"))
        assert decompress(packed, size) == content
        assert _core.unzstd(packed, size) == content


def test_stored_blocks():
    parts = [block(RAW, b"abc", last=False), block(RAW, b"", last=False)]
    packed = frame(*parts, block(REPEATED, b"x", size=1000))
    assert _core.unzstd(packed, 1003) == b"abc" + b"x" * 1000


# One sequence with all its literals, of tables that need no bits: literals 2, a match of 3 whose
# offset code 0, 1, 2 is followed by as many bits in the stream, below the bit that ends it.
def of_one_sequence(offset_code: int, stream: int, text: bytes = b"ab", taken: int = 2) -> bytes:
    tables = one_symbol_tables(taken, offset_code, 0)
    section = literals(LITERALS_RAW, text, len(text))
    return frame(block(COMPRESSED, section + b"\1" + tables + bytes([stream])))


@pytest.mark.parametrize(
    "packed, content",
    [
        (of_one_sequence(0, 0b1), b"abbbb"),  # offset 1: the first of those at the start
        (of_one_sequence(2, 0b100), b"abbbb"),  # 4 - 3
        (of_one_sequence(2, 0b101), b"ababa"),
        (of_one_sequence(1, 0b10, b"abcd", 4), b"abcdabc"),  # the second at the start: 4
        (of_one_sequence(1, 0b11, b"abcdefgh", 8), b"abcdefghabc"),  # the third: 8
        (of_one_sequence(0, 0b1, b"abcd"), b"abbbbcd"),  # literals behind
    ],
)
def test_offsets(packed, content):
    assert decompress(packed, len(content)) == content
    assert _core.unzstd(packed, len(content)) == content


BAD = {
    "nothing": (b"", 0),
    "no_block": (frame(), 0),
    "other_magic": (b"\x29" + frame(block(RAW, b"a"))[1:], 1),
    "skippable": (bytes.fromhex("502a4d1801000000") + b"a", 1),
    "two_frames": (frame(block(RAW, b"a")) * 2, 2),
    "checksum": (frame(block(RAW, b"a"), b"\0\0\0\0", flags=4), 1),
    "dictionary": (frame(block(RAW, b"a"), flags=1, head=b"\x38\x01"), 1),
    "reserved_flag": (frame(block(RAW, b"a"), flags=8), 1),
    "other_size": (frame(block(RAW, b"a"), flags=0x20, head=b"\2"), 1),
    "size_of_8_bytes": (frame(block(RAW, b"a"), flags=0xC0, head=b"\x38\1\0\0\0\1\0\0\0"), 1),
    "reserved_block": (frame(block(RESERVED, b"a")), 1),
    "bytes_behind": (frame(block(RAW, b"a")) + b"\0", 1),
    "not_the_last": (frame(block(RAW, b"a", last=False)), 1),
    "raw_too_long": (frame(block(RAW, b"ab")), 1),
    "repeated_too_long": (frame(block(REPEATED, b"a", size=2)), 1),
    "larger_than_window": (
        frame(block(COMPRESSED, literals(0, bytes(2000), 2000) + b"\0"), head=b"\0"),
        2000,
    ),
    "empty_block": (frame(block(COMPRESSED, b"")), 0),
    "no_sequences_but_bytes": (frame(block(COMPRESSED, b"\x08a\0\0")), 1),
    "no_code_yet": (frame(block(COMPRESSED, b"\x13\x40\0\1\0")), 1),
    "no_tables_yet": (frame(block(COMPRESSED, b"\x10ab\1\xfc\1")), 5),
    "reserved_modes": (frame(block(COMPRESSED, b"\x10ab\1\x55\2\0\0\1")), 5),
    "no_end_of_bits": (of_one_sequence(0, 0), 5),
    "bits_left": (of_one_sequence(0, 0b10), 5),
    "bits_missing": (of_one_sequence(2, 0b10), 5),
    "before_the_start": (of_one_sequence(1, 0b10), 5),
    "more_literals_than_there_are": (of_one_sequence(0, 0b1, taken=3), 6),
    "literals_code": (of_one_sequence(0, 0b1, taken=36), 5),
    "offset_code": (of_one_sequence(32, 0b1), 5),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case):
    packed, size = BAD[case]
    assert refused(packed, size)


@pytest.mark.parametrize("name", NAMES)
def test_another_size(name):
    packed = compress(contents(999)[name], 1)
    for size in (0, 1, 998, 1000, 10_000):
        assert refused(packed, size)
        assert refused(compress_in_parts(contents(999)[name], 3), size)
    with pytest.raises(ValueError, match="size must be at least 0, got -1"):
        _core.unzstd(packed, -1)


def test_cut_off_at_every_byte():
    for level, size in [(1, 300), (1, 3000), (19, 999)]:
        for content in contents(size).values():
            for packed in (compress(content, level), compress_in_parts(content, 2)):
                assert all(refused(packed[:end], size) for end in range(len(packed)))
                assert refused(packed + b"\0", size)


@pytest.mark.parametrize("size", [20, 300, 3000, 20_000])
def test_flipped_bits(size):
    """What is taken is what libzstd gives."""
    random = np.random.default_rng(size)
    frames = [compress(c, level) for c in contents(size).values() for level in (1, 19)]
    frames += [compress_in_parts(c, 3) for c in contents(size).values()]
    taken = 0
    for turn in range(4000):
        packed = bytearray(frames[turn % len(frames)])
        reach = len(packed) if turn % 3 else min(len(packed), 100)  # heads and tables, too
        for place in random.integers(0, reach, random.integers(1, 4)):
            packed[place] ^= 1 << int(random.integers(8))
        if refused(bytes(packed), size):
            continue
        taken += 1
        assert _core.unzstd(bytes(packed), size) == decompress(bytes(packed), size)
    assert taken > 100


READ = """
import sys, numpy as np
from dpiframe_core import _core
file, out = _core.ParquetFile(sys.argv[1]), np.zeros(5000, "i8")
file.read(["x"], 0, 1, [out])
assert (out == np.arange(5000) % 777).all()
"""


def test_files_are_read_without_libzstd(tmp_path):
    (tmp_path / "libzstd.so.1").touch()  # found first, and no library
    path = tmp_path / "f"
    pq.write_table(pa.table({"x": np.arange(5000) % 777}), path, compression="zstd")
    own = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", READ, str(path)], env=own, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
