"""Pages that pyarrow does not write but others do, made byte by byte; pyarrow reads them, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from parquet_by_hand import (
    BIT_PACKED,
    I64,
    INDEX,
    PLAIN,
    PLAIN_DICTIONARY,
    RLE,
    RLE_DICTIONARY,
    TYPES,
    Raw,
    dictionary,
    hybrid,
    indexed,
    page,
    plain,
    sized,
    thrift,
    v1,
    v2,
    varint,
    write,
)
from parquet_files import check, read

from dpiframe_core import _core

VALUES = list(range(100, 120))
BODY = plain("<i4", VALUES)


def check_file(path: Path, wanted: list[int] | np.ndarray) -> None:
    assert read(_core.ParquetFile(str(path)), ["x"])[0].tolist() == list(wanted)
    check(path)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("width", range(33))
def test_indices_of_every_bit_width(tmp_path, width, kind):
    """A writer may take more bits than the dictionary needs."""
    size = min(2**width, 300)
    keys = np.random.default_rng(width).integers(0, size, 200).tolist()
    last = size - 1
    body = indexed(width, (last, 5), keys[:64], (0, 1), (last, 1000), keys[64:72], keys[72:])
    wanted = np.repeat(
        [last, *keys[:64], 0, last, *keys[64:]], [5] + 64 * [1] + [1, 1000] + 136 * [1]
    )
    words = np.arange(size) * 3 - 100
    pages = [dictionary(plain(kind, words), size), v1(body, wanted.size, RLE_DICTIONARY)]
    check_file(write(tmp_path / "f", pages, wanted.size, kind=kind), words[wanted])


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 31, 32, 33, 1000])
def test_the_last_bit_packed_run_may_be_padded(tmp_path, rows):
    keys = (np.arange(rows) % 13).tolist()
    pages = [dictionary(BODY, 20), v1(indexed(4, keys), rows, RLE_DICTIONARY)]
    check_file(write(tmp_path / "f", pages, rows), [VALUES[key] for key in keys])


def test_a_run_may_be_longer_than_its_page(tmp_path):
    pages = [dictionary(BODY, 20), v1(indexed(5, (3, 10)), 4, RLE_DICTIONARY)]
    check_file(write(tmp_path / "f", [*pages, v1(BODY, 20)], 24), [103] * 4 + VALUES)


def test_pages_of_all_kinds_in_one_chunk(tmp_path):
    bodies = [indexed(5, [1, 2, 3]), indexed(0, (0, 4)), indexed(5, (19, 2))]
    pages = [
        dictionary(BODY, 20, PLAIN_DICTIONARY),
        v1(bodies[0], 3, PLAIN_DICTIONARY),
        v2(bodies[1], 4, RLE_DICTIONARY),
        v1(b"", 0),
        v1(BODY, 20),
        v2(BODY, 20),
        v1(bodies[2], 2, RLE_DICTIONARY),
    ]
    wanted = [101, 102, 103, *[100] * 4, *VALUES, *VALUES, 119, 119]
    check_file(write(tmp_path / "f", pages, len(wanted)), wanted)


LEVELS = {
    "rle": hybrid(1, (1, 20)),
    "rle_longer": hybrid(1, (1, 500)),
    "runs": hybrid(1, (1, 1), (1, 11), [1] * 8),
    "packed": hybrid(1, [1] * 20),
    "packed_runs": hybrid(1, [1] * 8, (1, 3), [1] * 9),
    "packed_padded_with_ones": hybrid(1, [1] * 24),
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("levels", LEVELS)
def test_levels_without_nulls(tmp_path, levels, codec, version):
    form = LEVELS[levels]
    if version == 1:
        data = v1(sized(form) + BODY, 20, codec=codec)
    else:
        data = v2(BODY, 20, levels=form, codec=codec)
    path = write(tmp_path / "f", [data], 20, codec=codec, optional=True)
    check_file(path, VALUES)


@pytest.mark.parametrize("optional", [False, True])
def test_levels_that_do_not_exist_have_any_encoding(tmp_path, optional):
    """parquet-mr, so Spark, says BIT_PACKED of levels that take no bytes."""
    levels = sized(LEVELS["rle"]) if optional else b""
    own = {3: RLE if optional else BIT_PACKED, 4: BIT_PACKED}
    chunk = {2: [BIT_PACKED, PLAIN, RLE]}
    path = tmp_path / "f"
    write(path, [v1(levels + BODY, 20, own=own)], 20, optional=optional, chunk=chunk)
    check_file(path, VALUES)


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("codec", ["snappy", "zstd"])
def test_a_page_of_version_2_may_not_be_compressed(tmp_path, codec, optional):
    levels = LEVELS["rle"] if optional else b""
    pages = [
        v2(BODY, 20, levels=levels, own={7: False}),
        v2(BODY, 20, levels=levels, codec=codec, own={7: True}),
        v2(BODY, 20, levels=levels, codec=codec, own={7: None}),
    ]
    path = write(tmp_path / "f", pages, 60, codec=codec, optional=optional)
    check_file(path, VALUES * 3)


def test_other_pages_are_passed_over(tmp_path):
    index = page({1: INDEX, 6: {}}, b"index", 5, {})
    check_file(write(tmp_path / "f", [index, v1(BODY, 20), index], 20), VALUES)


@pytest.mark.parametrize("start", [None, I64(0), I64(4)], ids=str)
def test_where_a_chunk_says_that_its_dictionary_starts(tmp_path, start):
    """Some writers leave the place out, or say 0 where there is none."""
    words = dictionary(BODY, 20)
    data = v1(indexed(5, list(range(20))), 20, RLE_DICTIONARY)
    data_at = I64(4 + len(words)) if start == 4 else I64(4)
    path = tmp_path / "f"
    check_file(write(path, [words, data], 20, chunk={11: start, 9: data_at}), VALUES)
    if start != 4:
        check_file(write(path, [v1(BODY, 20)], 20, chunk={11: start}), VALUES)


def test_signed_integers_may_say_so(tmp_path):
    for number, (kind, old, bits) in enumerate([("<i4", 17, 32), ("<i8", 18, 64)]):
        logical = {10: {1: Raw(3, bytes([bits])), 2: True}}
        body = plain(kind, VALUES)
        for element in ({6: old}, {10: logical}, {6: old, 10: logical}):
            path = tmp_path / str(number)
            write(path, [v1(body, 20)], 20, kind=kind, element=element)
            check_file(path, VALUES)


UNKNOWN = {
    "true": True,
    "byte": Raw(3, b"\x7f"),
    "i16": Raw(4, varint(300)),
    "i64": I64(-(1 << 62)),
    "double": Raw(7, b"\0" * 8),
    "binary": b"b" * 1000,
    "list": [I64(i) for i in range(20)],
    "structs": [{1: 1, 90: {2: "deep", 3: [{1: True}]}}, {}],
    "bools": Raw(9, b"\x32\x01\x02\x01"),
    "set": Raw(10, b"\x25\x02\x04"),
    "map": Raw(11, b"\x02\x85\x01a\x02\x01b\x04"),
    "empty_map": Raw(11, b"\0"),
    "empty": {},
}


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_fields_that_are_new_are_passed_over(tmp_path, unknown):
    new = {300: UNKNOWN[unknown]}
    places = ["footer", "root", "element", "group", "column", "chunk"]
    pages = [dictionary(BODY, 20, header=new, own=new), v1(BODY, 20, header=new, own=new)]
    pages.append(v2(BODY, 20, header=new, own=new))
    write(tmp_path / "f", pages, 40, **dict.fromkeys(places, new))
    assert read(_core.ParquetFile(str(tmp_path / "f")), ["x"])[0].tolist() == VALUES * 2


def test_offsets_of_more_than_32_bits(tmp_path):
    gap = (5 << 30) + 3  # a hole: takes no space
    check_file(write(tmp_path / "f", [v1(BODY, 20)], 20, gap=gap), VALUES)


def snappy(parts: list[bytes | tuple[int, int]], tag: int) -> tuple[bytes, bytes]:
    """A text by literals and copies (offset, length), the copies of kind `tag`; the text itself."""
    text, out = bytearray(), bytearray()
    for part in parts:
        if isinstance(part, bytes):
            n = len(part) - 1
            size = 0 if n < 60 else (n.bit_length() + 7) // 8
            length = n.to_bytes(size, "little") if size else b""
            out += bytes([(59 + size if size else n) << 2]) + length + part
            text += part
            continue
        offset, length = part
        text += (text[-offset:] * (length // offset + 1))[:length]
        if tag == 1:
            out += bytes([offset >> 8 << 5 | length - 4 << 2 | 1, offset & 255])
        else:
            out += bytes([length - 1 << 2 | tag]) + offset.to_bytes(2 if tag == 2 else 4, "little")
    return varint(len(text)) + bytes(out), bytes(text)


@pytest.mark.parametrize("tag", [1, 2, 3])
def test_snappy_texts_of_all_kinds(tmp_path, tag):
    random = np.random.default_rng(tag)
    parts: list[bytes | tuple[int, int]] = []
    size, farthest = 0, {1: 2047, 2: 65535, 3: 1 << 20}[tag]
    lengths = [1, 59, 60, 61, 255, 256, 257, 65535, 65536, 65537, (1 << 24) + 1]
    for n in [*lengths, *random.integers(1, 100, 500).tolist()]:
        parts.append(random.bytes(n))
        size += n
        for reach in [20, farthest] * 4:
            offset = min(size, int(random.integers(1, reach)))
            length = int(random.integers(4, 12) if tag == 1 else random.integers(1, 65))
            parts.append((offset, length))
            size += length
    parts.append(random.bytes(4 + -size % 4))
    stored, text = snappy(parts, tag)
    assert pa.Codec("snappy").decompress(stored, len(text), asbytes=True) == text
    data = v1(stored, len(text) // 4, header={2: len(text)})
    path = write(tmp_path / "f", [data], len(text) // 4, codec="snappy")
    assert read(_core.ParquetFile(str(path)), ["x"])[0].tobytes() == text


def test_the_shortest_footer(tmp_path):
    """Fields that may be left out are left out."""
    path = tmp_path / "f"
    write(path, [v1(BODY, 20)], 20, footer={6: None}, column={2: I64(0)}, chunk={6: I64(0)})
    assert thrift({}) == b"\0"
    check_file(path, VALUES)
