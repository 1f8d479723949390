"""Frames of zstd: by libzstd, which pyarrow brings, and made byte by byte."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

MAGIC = bytes.fromhex("28b52ffd")
RAW, REPEATED, COMPRESSED, RESERVED = range(4)  # kinds of blocks
LITERALS_RAW, LITERALS_REPEATED = range(2)
LARGEST_BLOCK = 128 << 10


def contents(size: int, seed: int = 0) -> dict[str, bytes]:
    """Of `size` bytes each: what makes an encoder choose all kinds of literals and tables."""
    random = np.random.default_rng(seed)
    words = [random.bytes(int(n)) for n in random.integers(1, 12, 50)]
    skewed = np.minimum(random.geometric(0.2, size), 255).astype("u1").tobytes()
    whole = {
        "random": random.bytes(size),
        "zeros": bytes(size),
        "ids": (random.zipf(1.3, size // 4 + 1) % 100_000).astype("<i4").tobytes(),
        "long_ids": (random.zipf(1.5, size // 8 + 1) % 1000).astype("<i8").tobytes(),
        "skewed": skewed,
        "flat": np.minimum(random.geometric(0.02, size), 255).astype("u1").tobytes(),
        "bits": random.integers(0, 2, size).astype("u1").tobytes(),
        "labels": (random.random(size // 4 + 1) < 0.2).astype("<f4").tobytes(),
        "text": b"".join(words[i] for i in random.zipf(1.2, size + 1) % len(words)),
        "counter": np.arange(size // 8 + 1, dtype="<i8").tobytes(),
        "parts": random.bytes(size // 3) + bytes(size // 3) + skewed,
        # The longest codes of literals, one behind the other.
        "bursts": b"".join(
            random.integers(97, 113, 500, "u1").tobytes() + random.bytes(40)
            for _ in range(size // 540 + 1)
        ),
    }
    return {name: data[:size] for name, data in whole.items()}


def compress(content: bytes, level: int) -> bytes:
    return pa.Codec("zstd", compression_level=level).compress(content, asbytes=True)


def decompress(frame: bytes, size: int) -> bytes | None:
    """By libzstd; None where it gives anything but `size` bytes."""
    try:
        content = pa.Codec("zstd").decompress(frame, size, asbytes=True)
    except OSError:
        return None
    return content if len(content) == size else None


def compress_in_parts(content: bytes, parts: int) -> bytes:
    """A block or more for each part; the frame does not tell its content's size."""
    sink = pa.BufferOutputStream()
    step = -(-len(content) // parts) or 1
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        for start in range(0, len(content), step):
            stream.write(content[start : start + step])
            stream.flush()
    return sink.getvalue().to_pybytes()


def frame(*blocks: bytes, flags: int = 0, head: bytes = b"\x38") -> bytes:
    """`flags` is the head's first byte; the next byte is the window's, here of 128 KB."""
    return MAGIC + bytes([flags]) + head + b"".join(blocks)


def block(kind: int, body: bytes, size: int | None = None, last: bool = True) -> bytes:
    size = len(body) if size is None else size
    return (size << 3 | kind << 1 | last).to_bytes(3, "little") + body


def literals(kind: int, body: bytes, size: int) -> bytes:
    """A section of literals that are stored as they are, or as one byte, in each form of head."""
    if size < 32:
        return bytes([size << 3 | kind]) + body
    if size < 4096:
        return (size << 4 | 1 << 2 | kind).to_bytes(2, "little") + body
    return (size << 4 | 3 << 2 | kind).to_bytes(3, "little") + body


def one_symbol_tables(literals_code: int, offset_code: int, match_code: int) -> bytes:
    """The modes of a block's tables, and what each has as its only symbol."""
    return bytes([0b01010100, literals_code, offset_code, match_code])
