"""Damages frames of zstd and pages of snappy: what is taken is what libzstd and Snappy give.

What we refuse libzstd may take: it lets a stream of literals end anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from fuzzing import changed, main
from parquet_by_hand import page, write
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
            frames += [(size, b"s", pa.Codec("snappy").compress(content, asbytes=True))] * 3

    def write_frame(path: Path, random: np.random.Generator) -> None:
        size, codec, frame = frames[random.integers(0, len(frames))]
        size = size if random.random() < 0.9 else int(random.integers(0, 50_000)) // 4 * 4
        path.write_bytes(size.to_bytes(4, "little") + codec + changed(frame, random))

    return write_frame


def attempt(path: Path) -> list[str]:
    data = path.read_bytes()
    size, codec, frame = int.from_bytes(data[:4], "little"), data[4:5], data[5:]
    if size > MOST_BYTES or size % 4:  # memory is taken here; a page of snappy holds numbers
        return ["of another size"]
    if codec == b"s":
        name, ours, theirs = "snappy", _snappy(path, frame, size), _their_snappy(frame, size)
    else:
        name, ours, theirs = "zstd", _zstd(frame, size), decompress(frame, size)
    if ours is None:
        return [f"{name}: refused" if theirs is None else f"{name}: only they take it"]
    assert theirs is not None, "they refuse what we take"
    assert ours == theirs
    return [f"{name}: taken"]


def _zstd(frame: bytes, size: int) -> bytes | None:
    try:
        return _core.unzstd(frame, size)
    except ValueError:
        return None


def _snappy(path: Path, frame: bytes, size: int) -> bytes | None:
    """As the page of a file."""
    file = path.with_suffix(".parquet")
    head = {1: 0, 5: {1: size // 4, 2: 0, 3: 3, 4: 3}}
    write(file, [page(head, frame, size, {})], size // 4, codec="snappy")
    out = np.zeros(size // 4, "i4")
    try:
        _core.ParquetFile(str(file)).read(["x"], 0, 1, [out])
        return out.tobytes()
    except ValueError:
        return None
    finally:
        file.unlink()


def _their_snappy(frame: bytes, size: int) -> bytes | None:
    """Arrow gives as many bytes as it is asked for, whatever the frame says of its size."""
    stated = shift = 0
    for byte in frame:
        stated |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if stated != size:
        return b"" if size == 0 else None  # a page of no values is not unpacked
    try:
        return pa.Codec("snappy").decompress(frame, size, asbytes=True)
    except OSError:
        return b"" if size == 0 else None


if __name__ == "__main__":
    main(attempt, frame_cases, __doc__)
