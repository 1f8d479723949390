"""Parquet files of pages made up at random, whose numbers may lie: damage to the bytes of a valid
file seldom gets as far as these do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from parquet_by_hand import (
    CODECS,
    I64,
    PLAIN,
    RLE_DICTIONARY,
    TYPES,
    Fields,
    dictionary,
    hybrid,
    sized,
    v1,
    v2,
    write,
)

NUMBERS = [0, 1, 7, 8, 9, 19, 80, 1 << 16, (1 << 31) - 1, 1 << 32, (1 << 61) + 1, (1 << 63) - 1]
STRUCTS = ["footer", "root", "element", "group", "column", "chunk"]


def write_made(path: Path, random: np.random.Generator) -> None:
    """Write a file of a dictionary and up to three data pages."""
    kind, codec = str(random.choice(list(TYPES))), str(random.choice(list(CODECS)))
    optional, lies = bool(random.integers(0, 2)), bool(random.random() < 0.7)
    size = int(random.integers(0, 40))

    def lie(fields: int, chance: float) -> Fields:
        return _lie(fields, random) if lies and random.random() < chance else {}

    own, header = lie(3, 0.1), lie(7, 0.1)
    words = random.bytes(size * int(kind[2]))
    pages = [dictionary(words, size, codec=codec, own=own, header=header)]
    pages = pages * int(random.choice([1, 1, 1, 1, 1, 1, 0, 2]))
    rows = 0
    for _ in range(random.integers(1, 4)):
        count, version = int(random.integers(0, 200)), int(random.integers(1, 3))
        rows += count
        encoding = int(random.choice([PLAIN, RLE_DICTIONARY, RLE_DICTIONARY]))
        if encoding == PLAIN:
            body = random.bytes(count * int(kind[2]))
        else:
            width, indices = _indices(count, size, random)
            body = bytes([width]) + indices
        levels = _indices(count, 2, random, smallest=1)[1] if lies else hybrid(1, (1, count))
        levels = levels if optional else b""
        own, header = lie(7, 0.2), lie(8, 0.1)
        if version == 1:
            body = sized(levels) + body if optional else body
            pages.append(v1(body, count, encoding, codec=codec, own=own, header=header))
        else:
            form = {"levels": levels, "codec": codec, "own": own, "header": header}
            pages.append(v2(body, count, encoding, **form))
    changes = {name: lie(12, 0.02) for name in STRUCTS}
    write(path, pages, rows, kind=kind, codec=codec, optional=optional, **changes)


def _indices(
    count: int, size: int, random: np.random.Generator, smallest: int = 0
) -> tuple[int, bytes]:
    """Width of an index, and runs of `count` indices, most of them from `smallest` to `size`."""
    needed = max(0, size - 1).bit_length()
    width = 1 if smallest else int(random.choice([needed, needed, random.integers(needed, 33)]))
    top = 1 << width if random.random() < 0.05 else min(1 << width, max(1, size))
    runs: list[tuple[int, int] | list[int]] = []
    while count > 0:
        length = int(random.integers(1, random.choice([10, 300])))
        if random.random() < 0.5:
            runs.append((int(random.integers(min(smallest, top - 1), top)), length))
        else:
            length = min(count, (length + 7) // 8 * 8)
            runs.append(random.integers(min(smallest, top - 1), top, length).tolist())
        count -= length
    data = hybrid(width, *runs)
    return width, data[: random.integers(0, len(data) + 1)] if random.random() < 0.05 else data


def _lie(fields: int, random: np.random.Generator) -> Fields:
    """A wrong value, or none, for one of the fields 1 to `fields`."""
    number = int(random.choice(NUMBERS))
    number = -number - 1 if random.random() < 0.3 else number
    value = number if -(1 << 31) <= number < 1 << 31 and random.random() < 0.5 else I64(number)
    return {int(random.integers(1, fields + 1)): None if random.random() < 0.2 else value}
