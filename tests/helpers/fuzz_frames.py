"""Damages pages of each codec: what is taken is what libzstd, Snappy, liblz4 and zlib give.

What we refuse libzstd may take: it lets a stream of literals end anywhere.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from fuzzing import changed, main
from zstd_frames import compress, compress_in_parts, contents, decompress

from dpiframe_core import _core

MOST_BYTES = 1 << 20
SIZES = [4, 20, 300, 3000, 20_000, 140_000]


def frame_cases(folder: Path) -> Callable[[Path, np.random.Generator], None]:
    """What writes the size of the content, then the codec's name, then a damaged frame."""
    frames = []
    for size in SIZES:
        for content in contents(size).values():
            frames += [(size, b"z", compress(content, level)) for level in (-5, 1, 9, 19)]
            frames += [(size, b"z", compress_in_parts(content, 3))]
            for codec, name in ((b"s", "snappy"), (b"l", "lz4_raw"), (b"g", "gzip")):
                frames += [(size, codec, pa.Codec(name).compress(content, asbytes=True))] * 3

    def write_frame(path: Path, random: np.random.Generator) -> None:
        size, codec, frame = frames[random.integers(0, len(frames))]
        size = size if random.random() < 0.9 else int(random.integers(0, 50_000)) // 4 * 4
        path.write_bytes(size.to_bytes(4, "little") + codec + changed(frame, random))

    return write_frame


def attempt(path: Path) -> list[str]:
    data = path.read_bytes()
    size, codec, frame = int.from_bytes(data[:4], "little"), data[4:5], data[5:]
    if size > MOST_BYTES:  # memory is taken here
        return ["of another size"]
    name, unpack, their_unpack = CODECS.get(codec, ("zstd", _core.unzstd, decompress))
    theirs = their_unpack(frame, size)
    try:
        ours = unpack(frame, size)
    except ValueError:
        return [f"{name}: refused" if theirs is None else f"{name}: only they take it"]
    assert theirs is not None, "they refuse what we take"
    assert ours == theirs
    return [f"{name}: taken"]


def _their_snappy(frame: bytes, size: int) -> bytes | None:
    """Arrow gives as many bytes as it is asked for, whatever the frame says of its size."""
    stated = shift = 0
    for byte in frame:
        stated |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if stated != size:
        return None
    return _by_arrow("snappy", frame, size)


def _by_arrow(codec: str, frame: bytes, size: int) -> bytes | None:
    """Of LZ4 it gives `size` bytes even where the block has fewer, the last of them undefined."""
    try:
        return pa.Codec(codec).decompress(frame, size, asbytes=True)
    except OSError:
        return None


def _gunzip(frame: bytes, size: int) -> bytes | None:
    content = b""
    while frame or not content:
        stream = zlib.decompressobj(31)
        try:
            content += stream.decompress(frame)
        except zlib.error:
            return None
        if not stream.eof:
            return None
        if not (frame := stream.unused_data):
            break
    return content if len(content) == size else None


CODECS = {
    b"s": ("snappy", _core.unsnappy, _their_snappy),
    b"l": ("lz4", _core.unlz4, partial(_by_arrow, "lz4_raw")),
    b"g": ("gzip", _core.gunzip, _gunzip),
}


if __name__ == "__main__":
    main(attempt, frame_cases, __doc__)
