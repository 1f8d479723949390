"""Snappy and LZ4 by the code that GPUs run, on the host, against the libraries of pyarrow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from zstd_frames import contents

from dpiframe_core import _core

UNPACK = {"snappy": _core.unsnappy, "lz4_raw": _core.unlz4}


def refused(unpack: Callable[[bytes, int], bytes], packed: bytes, size: int) -> bool:
    try:
        unpack(packed, size)
    except ValueError:
        return True
    return False


def compress(codec: str, content: bytes) -> bytes:
    return pa.Codec(codec).compress(content, asbytes=True)


@pytest.mark.parametrize("codec", UNPACK)
def test_every_small_size_and_some_pages(codec):
    for size in [*range(67), 127, 255, 256, 257, 1023, 1025, 5000, 65_537, 400_111]:
        for name, content in contents(size, seed=size).items():
            assert UNPACK[codec](compress(codec, content), size) == content, (name, size)


@pytest.mark.parametrize("codec", UNPACK)
def test_another_size(codec):
    for content in contents(999).values():
        packed = compress(codec, content)
        for size in (0, 1, 998, 1000, 10_000):
            assert refused(UNPACK[codec], packed, size)
    with pytest.raises(ValueError, match="size must be at least 0, got -1"):
        UNPACK[codec](packed, -1)


@pytest.mark.parametrize("codec", UNPACK)
def test_cut_off_at_every_byte(codec):
    for content in contents(999).values():
        packed = compress(codec, content)
        assert all(refused(UNPACK[codec], packed[:end], 999) for end in range(len(packed)))
        assert refused(UNPACK[codec], packed + b"\0", 999)


@pytest.mark.parametrize("codec", UNPACK)
@pytest.mark.parametrize("size", [20, 300, 3000, 20_000])
def test_flipped_bits(codec, size):
    """What is taken is what the library gives."""
    random = np.random.default_rng(size)
    pages = [compress(codec, content) for content in contents(size).values()]
    taken = 0
    for turn in range(2000):
        packed = bytearray(pages[turn % len(pages)])
        for place in random.integers(0, len(packed), random.integers(1, 4)):
            packed[place] ^= 1 << int(random.integers(8))
        if refused(UNPACK[codec], bytes(packed), size):
            continue
        taken += 1
        theirs = pa.Codec(codec).decompress(bytes(packed), size, asbytes=True)
        assert UNPACK[codec](bytes(packed), size) == theirs
    assert taken > 100


LZ4 = {
    "literals": (b"\x10a", b"a"),
    "nothing": (b"\0", b""),
    "a_match": (b"\x13a\1\0\x50bcdef", b"a" * 8 + b"bcdef"),
    "a_long_match": (b"\x1fa\1\0" + b"\xff" * 9 + b"\x07\x50bcdef", b"a" * 2322 + b"bcdef"),
    "long_literals": (b"\xf0" + b"\xff" * 8 + b"\x05" + b"ab" * 1030, b"ab" * 1030),
}
BAD_LZ4 = {
    "no_bytes": (b"", 0),
    "no_literals": (b"\x20a", 2),
    "no_offset": (b"\x13a\1", 8),
    "offset_0": (b"\x13a\0\0\x50bcdef", 13),
    "before_the_start": (b"\x13a\2\0\x50bcdef", 13),
    "four_literals_at_the_end": (b"\x14a\1\0\x40cdef", 13),
    "a_match_at_the_end": (b"\xc5abcdefghijkl\1\0", 21),
    "length_without_end": (b"\xf0" + b"\xff" * 100, 1000),
}


@pytest.mark.parametrize("case", LZ4)
def test_blocks_by_hand(case):
    packed, content = LZ4[case]
    assert _core.unlz4(packed, len(content)) == content


@pytest.mark.parametrize("case", BAD_LZ4)
def test_refused_blocks(case):
    packed, size = BAD_LZ4[case]
    assert refused(_core.unlz4, packed, size)
