"""gzip by our own decoder, against zlib."""

from __future__ import annotations

import gzip
import io
import zlib

import numpy as np
import pytest
from zstd_frames import contents

from dpiframe_core import _core

STRATEGIES = [zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED]


def compress(content: bytes, level: int = 6, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    stream = zlib.compressobj(level, zlib.DEFLATED, 31, 9, strategy)
    return stream.compress(content) + stream.flush()


def decompress(packed: bytes) -> bytes | None:
    """All members by zlib; None where it refuses one."""
    content = b""
    while packed:
        stream = zlib.decompressobj(31)
        try:
            content += stream.decompress(packed)
        except zlib.error:
            return None
        if not stream.eof:
            return None
        packed = stream.unused_data
    return content


def refused(packed: bytes, size: int) -> bool:
    try:
        _core.gunzip(packed, size)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("level", [0, 1, 6, 9])
def test_every_small_size_and_some_pages(level):
    for size in [*range(34), 127, 257, 258, 259, 1025, 5000, 70_001, 400_111]:
        for name, content in contents(size, seed=size).items():
            assert _core.gunzip(compress(content, level), size) == content, (name, size)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_codes_of_all_kinds(strategy):
    for name, content in contents(100_000).items():
        assert _core.gunzip(compress(content, 6, strategy), len(content)) == content, name


def test_codes_as_long_as_can_be():
    """Fibonacci's numbers make the longest codes, which the tables' first level does not hold."""
    counts = [1, 1]
    while len(counts) < 22:
        counts.append(counts[-1] + counts[-2])
    content = np.repeat(np.arange(22, dtype="u1"), counts)
    content = np.random.default_rng(0).permutation(content).tobytes()
    packed = compress(content, 6, zlib.Z_HUFFMAN_ONLY)
    assert _core.gunzip(packed, len(content)) == content


def test_headers_and_members():
    sink = io.BytesIO()
    with gzip.GzipFile("a name", "wb", fileobj=sink) as file:
        file.write(b"x" * 1000)
    named = sink.getvalue()
    assert _core.gunzip(named, 1000) == b"x" * 1000
    assert _core.gunzip(named + compress(b"") + compress(b"yz"), 1002) == b"x" * 1000 + b"yz"
    plain = compress(b"x" * 1000)
    full = plain[:3] + b"\x1e" + plain[4:10] + b"\2\0ab" + b"name\0" + b"comment\0" + b"\0\0"
    assert _core.gunzip(full + plain[10:], 1000) == b"x" * 1000


BAD = {
    "nothing": b"",
    "zlib_header": zlib.compress(b"a"),
    "reserved_flag": compress(b"a")[:3] + b"\x20" + compress(b"a")[4:],
    "checksum": compress(b"a")[:-8] + b"\0" * 4 + compress(b"a")[-4:],
    "size": compress(b"a")[:-4] + b"\2\0\0\0",
    "bytes_behind": compress(b"a") + b"\0",
    "reserved_block": compress(b"a")[:10] + b"\x07" + compress(b"a")[11:],
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case):
    assert refused(BAD[case], 1)


def test_another_size_and_cut_off_at_every_byte():
    for content in contents(999).values():
        packed = compress(content)
        assert all(refused(packed, size) for size in (0, 1, 998, 1000, 10_000))
        assert all(refused(packed[:end], 999) for end in range(len(packed)))


@pytest.mark.parametrize("size", [20, 300, 3000, 20_000])
def test_flipped_bits(size):
    """Both take the same pages, also where the checksum fits the damage, and give the same."""
    random = np.random.default_rng(size)
    pages = [compress(c, level) for c in contents(size).values() for level in (1, 9)]
    pages += [compress(c, 6, zlib.Z_FIXED) for c in contents(size).values()]
    for turn in range(3000):
        packed = bytearray(pages[turn % len(pages)])
        reach = len(packed) if turn % 3 else min(len(packed), 100)
        for place in random.integers(0, reach, random.integers(1, 4)):
            packed[place] ^= 1 << int(random.integers(8))
        repaired = with_right_end(bytes(packed))
        for page in (bytes(packed), repaired):
            theirs = decompress(page)
            wanted = theirs if theirs is not None and len(theirs) == size else None
            assert refused(page, size) == (wanted is None)
            if wanted is not None:
                assert _core.gunzip(page, size) == wanted


def with_right_end(packed: bytes) -> bytes:
    """The page with the checksum and the size that its damaged stream has."""
    stream = zlib.decompressobj(-15)
    try:
        content = stream.decompress(packed[10:])
    except zlib.error:
        return packed
    if not stream.eof:
        return packed
    end = zlib.crc32(content).to_bytes(4, "little") + len(content).to_bytes(4, "little")
    return packed[: len(packed) - len(stream.unused_data)] + end
