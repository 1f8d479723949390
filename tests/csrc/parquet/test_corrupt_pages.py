"""Pages that lie, made byte by byte: each is refused, none leads to memory of others."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_by_hand import (
    I64,
    PLAIN,
    RLE,
    RLE_DICTIONARY,
    dictionary,
    hybrid,
    plain,
    sized,
    thrift,
    v1,
    v2,
    varint,
    write,
)
from parquet_files import guarded, untouched
from parquet_files import write as write_table

from dpiframe_core import _core

BODY = plain("<i4", range(20))
WORDS = dictionary(BODY, 20)
ONES = hybrid(1, (1, 20))
LARGE = (1 << 31) - 1
HUGE = (1 << 63) - 1


def refused(path: Path, rows: int, name: str = "x", group: int = 0) -> str:
    """What `read` says of a column that `number_type` promised."""
    file = _core.ParquetFile(str(path))
    kind = file.number_type(name, group, group + 1)
    assert kind is not None
    out, memory = guarded(kind, rows)
    with pytest.raises(
        ValueError, match=f"{name}.*row group {group}|row group {group}.*{name}"
    ) as e:
        file.read([name], group, group + 1, [out])
    assert untouched(memory)
    return str(e.value)


def indexed(width: int, runs: bytes, rows: int = 20, **changes: dict) -> list[bytes]:
    return [WORDS, v1(bytes([width]) + runs, rows, RLE_DICTIONARY, **changes)]


PAGES = {
    "index_of_a_run": indexed(8, hybrid(8, (20, 20))),
    "index_of_a_wide_run": indexed(32, hybrid(32, (0xFFFFFFFF, 20))),
    "packed_index": indexed(5, hybrid(5, [*range(7), 20, *range(12)])),
    "packed_index_behind_the_groups": indexed(5, hybrid(5, [*range(16), 31, 1, 2, 3])),
    "packed_indices_of_32_bits": indexed(32, hybrid(32, [0x80000000] * 20)),
    "runs_end_too_early": indexed(5, hybrid(5, (3, 19))),
    "packed_runs_end_too_early": indexed(5, hybrid(5, [1] * 16)),
    "run_cut_off": indexed(5, hybrid(5, (3, 20))[:1]),
    "packed_run_cut_off": indexed(5, hybrid(5, [1] * 20)[:10]),
    "packed_run_that_claims_more": indexed(5, varint(LARGE << 1 | 1) + bytes(9)),
    "run_header_without_end": indexed(5, b"\xff" * 30),
    "empty_runs": indexed(5, bytes(100)),
    "no_runs": indexed(5, b""),
    "no_width": [WORDS, v1(b"", 20, RLE_DICTIONARY)],
    "width_33": indexed(33, hybrid(33, (1, 20))),
    "width_255": indexed(255, bytes(1000)),
    "no_dictionary": indexed(5, hybrid(5, (1, 20)))[1:],
    "dictionary_behind": indexed(5, hybrid(5, (1, 20)))[::-1],
    "two_dictionaries": [WORDS, *indexed(5, hybrid(5, (1, 20)))],
    "empty_dictionary": [dictionary(b"", 0), *indexed(0, hybrid(0, (0, 20)))[1:]],
    "short_dictionary": [dictionary(BODY[:-1], 20), *indexed(5, hybrid(5, (1, 20)))[1:]],
    "dictionary_of_dictionary": [dictionary(BODY, 20, RLE_DICTIONARY), v1(BODY, 20)],
    **{
        f"dictionary_of_{size}": [dictionary(BODY, 20, own={1: size}), v1(BODY, 20)]
        for size in (-1, 21, LARGE, I64(1 << 60), I64(1 << 61), I64(1 << 62), I64(HUGE), I64(-HUGE))
    },
    **{
        f"plain_of_{rows}": [v1(BODY, 20, own={1: rows})]
        for rows in (-1, 19, 21, LARGE, -LARGE - 1, I64(HUGE), I64(1 << 62), None)
    },
    **{
        f"{field}_of_{size}": [v1(BODY, 20, header={number: size})]
        for number, field in ((2, "unpacked"), (3, "stored"))
        for size in (-1, 0, 79, 81, LARGE, -LARGE - 1, I64(HUGE), I64(-HUGE - 1), None)
    },
    **{f"encoding_{e}": [v1(BODY, 20, e)] for e in (1, RLE, 4, 5, 6, 7, 10, -1, LARGE)},
    "no_page": [],
    "only_a_dictionary": [WORDS],
    "zeros": [bytes(1000)],
    "ones": [b"\xff" * 1000],
    "header_cut_off": [v1(BODY, 20)[:5]],
    "no_data_header": [v1(BODY, 20, header={5: None})],
    "header_of_version_2": [v2(BODY, 20, header={1: 0})],
    "header_of_version_1": [v1(BODY, 20, header={1: 3})],
    "header_of_a_dictionary": [dictionary(BODY, 20, header={1: 0})],
    "page_of_unknown_kind": [v1(BODY, 20, header={1: 77})],
    "empty_pages": [v1(b"", 0)] * 100,
    "number_without_end": [b"\x15" + b"\xff" * 1000],
    "last_field": [thrift({32767: 1}) + v1(BODY, 20)],
    "field_behind_the_last": [b"\x05" + varint((1 << 64) - 2) + b"\x00\x15\x00" + v1(BODY, 20)],
    "deep_header": [b"\x9c" * 10_000],
    "deep_lists": [b"\x99" + b"\x19" * 10_000],
    "deep_maps": [b"\x9b" + b"\x01\xbb" * 10_000],
    "long_list": [b"\x99\xf5" + varint(HUGE) + bytes(10)],
    "long_list_of_bools": [b"\x99\xf1" + varint(1 << 40) + bytes(10)],
    "long_map": [b"\x9b" + varint(HUGE) + b"\x11" + bytes(10)],
    "long_text": [b"\x98" + varint(HUGE) + bytes(10)],
    "longest_text": [b"\x98" + varint((1 << 64) - 1) + bytes(10)],
    **{
        f"levels_2_{number}_{size}": [v2(BODY, 20, own={number: size})]
        for number in (5, 6)
        for size in (-1, 1, 81, LARGE, I64(HUGE), I64(-HUGE - 1))
    },
    "levels_2_overflow": [v2(BODY, 20, own={5: LARGE, 6: I64(HUGE)})],
    "nulls_2": [v2(BODY, 20, own={2: 1})],
}


@pytest.mark.parametrize("case", PAGES)
def test_pages(tmp_path, case):
    refused(write(tmp_path / "f", [*PAGES[case], b"\0" * 8], 20), 20)


def test_a_dictionary_of_the_file_before_is_not_taken(tmp_path):
    pages = indexed(5, hybrid(5, (1, 20)))
    whole = _core.ParquetFile(str(write(tmp_path / "whole", pages, 20)))
    whole.read(["x"], 0, 1, [np.zeros(20, "i4")])
    refused(write(tmp_path / "f", pages[1:], 20), 20)


OPTIONAL = {
    "null": v1(sized(hybrid(1, (1, 19), (0, 1))) + BODY, 20),
    "packed_null": v1(sized(hybrid(1, [1] * 10 + [0] + [1] * 9)) + BODY, 20),
    "only_nulls": v1(sized(hybrid(1, (0, 20))), 20),
    "level_of_2": v1(sized(hybrid(1, (2, 20))) + BODY, 20),
    "levels_end_too_early": v1(sized(hybrid(1, (1, 19))) + BODY, 20),
    "no_levels": v1(BODY, 20),
    "empty_levels": v1(sized(b"") + BODY, 20),
    "levels_cut_off": v1(b"\xff\0", 20),
    "long_levels": v1(struct.pack("<I", 1 << 31) + ONES + BODY, 20),
    "longest_levels": v1(b"\xff\xff\xff\xff" + ONES + BODY, 20),
    "packed_levels_cut_off": v1(sized(hybrid(1, [1] * 20)[:2]) + BODY, 20),
    "levels_of_another_encoding": v1(sized(ONES) + BODY, 20, own={3: 4}),
    "null_2": v2(BODY, 20, levels=hybrid(1, (1, 19), (0, 1)), own={2: 1}),
    "hidden_null_2": v2(BODY, 20, levels=hybrid(1, (1, 19), (0, 1))),
    "repetition_2": v2(BODY, 20, levels=ONES, own={5: 0, 6: len(ONES)}),
}


@pytest.mark.parametrize("case", OPTIONAL)
def test_levels(tmp_path, case):
    refused(write(tmp_path / "f", [OPTIONAL[case]], 20, optional=True), 20)


FRAME = pa.Codec("zstd").compress(BODY, asbytes=True)
COMPRESSED = {
    "snappy": {
        "empty": b"",
        "not_snappy": b"\xff" * 40,
        "size_without_end": b"\xff" * 9 + b"\x01",
        "too_short": varint(79) + b"\xf0\x4e" + bytes(79),
        "too_long": varint(81) + b"\xf0\x50" + bytes(81),
        "more_than_it_says": varint(80) + b"\xf0\x50" + bytes(81),
        "less_than_it_says": varint(80) + b"\xf0\x4e" + bytes(79),
        "cut_off": varint(80) + b"\xf0\x4f" + bytes(79),
        "length_cut_off": varint(80) + b"\xfc\xff\xff",
        "long_literal": varint(80) + b"\xfc\xff\xff\xff\xff" + bytes(100),
        "copy_of_nothing": varint(80) + b"\x01\x01",
        "copy_from_before": varint(80) + b"\x00a" + b"\x3e\x02\0",
        "copy_of_itself": varint(80) + b"\x00a" + b"\x3e\0\0",
        "copy_from_far_before": varint(80) + b"\x00a" + b"\x3f\xff\xff\xff\xff",
        "copy_beyond_the_end": varint(80) + b"\x00a" + b"\xfe\x01\0" * 2,
        "copy_cut_off_1": varint(80) + b"\x00a\x01",
        "copy_cut_off_2": varint(80) + b"\x00a\x02\x01",
        "copy_cut_off_4": varint(80) + b"\x00a\x03\x01\0\0",
    },
    "zstd": {
        "empty": b"",
        "not_zstd": b"\xff" * 40,
        "cut_off": FRAME[:-3],
        "more_behind": FRAME + b"\0\1\2\3",
        "two_frames": FRAME * 2,
        "too_short": pa.Codec("zstd").compress(BODY[:-4], asbytes=True),
        "too_long": pa.Codec("zstd").compress(BODY + b"abcd", asbytes=True),
    },
}


@pytest.mark.parametrize(
    "codec, case", [(codec, case) for codec, cases in COMPRESSED.items() for case in cases]
)
def test_compressed_pages(tmp_path, codec, case):
    stored = COMPRESSED[codec][case]
    path = tmp_path / "f"
    for page in (v1(stored, 20, header={2: 80}), v2(stored, 20, header={2: 80})):
        write(path, [page], 20, codec=codec)
        refused(path, 20)
    words = dictionary(stored, 20, header={2: 80})
    write(path, [words, v1(BODY, 20, codec=codec)], 20, codec=codec)
    refused(path, 20)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("page", ["plain", "dictionary", "indices"])
def test_checksums(tmp_path, page, codec, version):
    """Any bit of a page that has a checksum: here a middle one and the last of its pages."""
    table = pa.table({"fine": np.arange(999.0), "x": np.arange(999) % 100})
    options = {"use_dictionary": page != "plain", "data_page_version": version}
    path = tmp_path / "f"
    write_table(path, [table] * 2, compression=codec, write_page_checksum=True, **options)
    chunk = pq.read_metadata(path).row_group(1).column(1)
    start = chunk.dictionary_page_offset if page == "dictionary" else chunk.data_page_offset
    stop = chunk.data_page_offset if page == "dictionary" else start + chunk.total_compressed_size
    if page == "indices":
        stop -= chunk.data_page_offset - chunk.dictionary_page_offset
    data = path.read_bytes()
    for place in ((start + stop) // 2, stop - 1):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        assert "checksum" in refused(path, 999, group=1)
        file = _core.ParquetFile(str(path))
        file.read(["x"], 0, 1, [np.zeros(999, "i8")])
        file.read(["fine"], 1, 2, [np.zeros(999)])


def test_a_checksum_that_is_right(tmp_path):
    for crc in (zlib.crc32(BODY), zlib.crc32(BODY) ^ 1):
        signed = struct.unpack("<i", struct.pack("<I", crc))[0]
        path = write(tmp_path / "f", [v1(BODY, 20, PLAIN, header={4: signed})], 20)
        if crc == zlib.crc32(BODY):
            _core.ParquetFile(str(path)).read(["x"], 0, 1, [np.zeros(20, "i4")])
        else:
            refused(path, 20)
