"""Columns by way of their stored pages: what the reader of columns gives, or both refuse."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from column_pages import check_pages, decode, read_pages
from parquet_by_hand import (
    INDEX,
    RLE_DICTIONARY,
    dictionary,
    hybrid,
    indexed,
    page,
    plain,
    sized,
    v1,
    v2,
    write,
)
from parquet_files import DICTIONARIES, PAGES, required
from parquet_files import write as write_table

from dpiframe_core import _core

CODECS = ["none", "zstd", "snappy", "lz4_raw"]
KINDS = ["<i4", "<i8"]
VALUES = list(range(100, 120))
BODY = plain("<i4", VALUES)
WORDS = dictionary(BODY, 20)


@pytest.fixture(autouse=True)
def _need_zstd(request, tmp_path):
    """Skip cases of zstd where the system has no libzstd."""
    if "zstd" in getattr(getattr(request.node, "callspec", None), "params", {}).values():
        path = write_table(tmp_path / "probe", pa.table({"x": [1]}), compression="zstd")
        if _core.ParquetFile(str(path)).number_type("x", 0, 1) is None:
            pytest.skip("the system has no libzstd.so.1")


def table_of(kind: str, rows: int, seed: int = 1) -> pa.Table:
    """Values that call for each form of run and of dictionary."""
    random = np.random.default_rng(seed)
    few = random.integers(-100, 100, rows)
    lengths = random.choice([1, 2, 7, 8, 9, 63, 64, 65, 400], rows)
    runs = np.repeat(random.integers(0, 50, rows), lengths)[:rows]
    columns = {
        "unique": random.permutation(rows),
        "few": few,
        "constant": np.full(rows, 7),
        "runs": runs,
        "skewed": np.where(random.random(rows) < 0.9, 3, few),
        "runs_and_random": np.where(np.arange(rows) // 300 % 2, few, runs),
    }
    return pa.table({name: values.astype(kind) for name, values in columns.items()})


@pytest.mark.parametrize("pages", PAGES)
@pytest.mark.parametrize("form", DICTIONARIES)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", KINDS)
def test_values(tmp_path, kind, codec, version, form, pages):
    options = DICTIONARIES[form] | PAGES[pages]
    table = table_of(kind, 5003)
    for number, columns in enumerate([table, required(table)]):
        path = tmp_path / str(number)
        write_table(path, columns, compression=codec, data_page_version=version, **options)
        stored = check_pages(path, table.column_names)
        assert (stored.columns, stored.rows, stored.number_bytes) == (6, 5003, int(kind[2]))
        assert stored.num_pages >= 6
        assert stored.uncompressed_bytes % 16 == 0
        assert (stored.uncompressed_bytes > 0) == (codec != "none")


@pytest.mark.parametrize("form", DICTIONARIES)
@pytest.mark.parametrize("codec", CODECS)
def test_row_groups_of_odd_sizes_and_every_range_of_them(tmp_path, codec, form):
    sizes = [0, 1, 7, 8, 9, 0, 64, 10_001, 1]
    groups = [table_of("<i4", size, seed) for seed, size in enumerate(sizes)]
    path = write_table(tmp_path / "f", groups, compression=codec, **DICTIONARIES[form])
    names = ["runs", "unique", "runs", "constant"]  # not as they lie in the file, one twice
    for first, stop in itertools.combinations_with_replacement(range(len(sizes) + 1), 2):
        check_pages(path, names, first, stop)


def test_columns_that_do_not_lie_side_by_side(tmp_path):
    groups = [table_of("<i4", 1000, seed) for seed in range(2)]
    groups = [table.append_column("f8", [np.arange(1000.0)]) for table in groups]
    path = write_table(tmp_path / "f", groups, compression="none")
    for count in range(1, 6):
        for names in itertools.islice(
            itertools.permutations(groups[0].column_names[:6], count), 40
        ):
            check_pages(path, names)


@pytest.mark.parametrize("size", [1, 2])
def test_empty_files(tmp_path, size):
    path = write_table(tmp_path / "f", [table_of("<i8", 0)] * size)
    stored = check_pages(path, ["few", "runs"])
    assert (stored.rows, stored.num_pages, stored.compressed_bytes) == (0, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", range(33))
def test_indices_of_every_bit_width(tmp_path, width, kind):
    size = min(2**width, 300)
    keys = np.random.default_rng(width).integers(0, size, 200).tolist()
    last = size - 1
    body = indexed(width, (last, 5), keys[:64], (0, 1), (last, 1000), keys[64:72], keys[72:])
    words = np.arange(size) * 3 - 100
    for odd in range(4):  # where pages begin in memory
        header = {90: b"o" * odd}
        pages = [
            dictionary(plain(kind, words), size, header=header),
            v1(body, 1206, RLE_DICTIONARY, header=header),
            v1(plain(kind, keys), 200),
        ]
        check_pages(write(tmp_path / "f", pages, 1406, kind=kind), ["x"])


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 31, 32, 33, 1000])
@pytest.mark.parametrize("cut", [0, 1])
def test_the_last_bit_packed_run_may_be_padded_or_cut(tmp_path, rows, cut):
    body = indexed(4, (np.arange(rows) % 13).tolist())
    body = body[: len(body) - (-rows % 8) // 2] if cut else body
    pages = [WORDS, v1(body, rows, RLE_DICTIONARY)]
    check_pages(write(tmp_path / "f", pages, rows), ["x"])


@pytest.mark.parametrize("rows", [30, 33, 1000, 20_000])
def test_many_short_runs(tmp_path, rows):
    """Batches of runs end at any of their bounds; headers lie on each side of a window's end."""
    random = np.random.default_rng(rows)
    runs: list[tuple[int, int] | list[int]] = []
    left = rows
    while left > 0:
        if random.random() < 0.5:
            length = min(left, int(random.choice([1, 2, 8, 9, 70, 600])))
            runs.append((int(random.integers(20)), length))
        else:
            length = min(left, 8 * int(random.choice([1, 1, 2, 63, 64, 200])))
            runs.append(random.integers(0, 20, length).tolist())
        left -= length
    for codec in CODECS:
        words = dictionary(BODY, 20, codec=codec)
        pages = [words, v1(indexed(5, *runs), rows, RLE_DICTIONARY, codec=codec)]
        check_pages(write(tmp_path / "f", pages, rows, codec=codec), ["x"])


def test_pages_of_all_kinds_in_one_chunk(tmp_path):
    for codec in CODECS:
        form = {"codec": codec}
        pages = [
            page({1: INDEX, 6: {}}, b"index", 5, {}),
            v1(b"", 0, **form),
            dictionary(BODY, 20, **form),
            v1(indexed(5, [1, 2, 3]), 3, RLE_DICTIONARY, **form),
            v2(indexed(0, (0, 4)), 4, RLE_DICTIONARY, **form),
            v2(BODY, 20, own={7: False}),
            v1(BODY + b"more", 20, **form),
            v2(b"", 0, RLE_DICTIONARY, **form),
            v2(b"", 0),
            v1(indexed(5, (19, 10)), 2, RLE_DICTIONARY, **form),  # a run longer than its page
        ]
        path = write(tmp_path / "f", pages, 49, codec=codec)
        stored, memory = read_pages(_core.ParquetFile(str(path)), ["x"])
        wanted = [101, 102, 103, *[100] * 4, *VALUES, *VALUES, 119, 119]
        assert decode(stored, memory)[0].tolist() == wanted


LEVELS = {
    "rle": hybrid(1, (1, 1100)),
    "rle_longer": hybrid(1, (1, 50_000)),
    "runs": hybrid(1, (1, 1), (1, 91), [1] * 1008),
    "packed": hybrid(1, [1] * 1100),
    "packed_runs": hybrid(1, [1] * 8, (1, 3), [1] * 1089),
}
NULLS = {
    "null": hybrid(1, (1, 1099), (0, 1)),
    "first_packed_null": hybrid(1, [0] + [1] * 1099),
    "last_packed_null": hybrid(1, [1] * 1099 + [0]),
    "level_of_2": hybrid(1, (2, 1100)),
    "levels_end_too_early": hybrid(1, (1, 1099)),
    "no_levels": b"",
    "cut_off": hybrid(1, [1] * 1100)[:-1],
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("levels", LEVELS | NULLS)
@pytest.mark.parametrize("codec", CODECS)
def test_levels(tmp_path, codec, levels, version):
    form = (LEVELS | NULLS)[levels]
    body = plain("<i4", np.arange(1100))
    if version == 1:
        data = v1(sized(form) + body, 1100, codec=codec)
    else:
        data = v2(body, 1100, levels=form, codec=codec)
    path = write(tmp_path / "f", [data], 1100, codec=codec, optional=True)
    if levels in LEVELS:
        check_pages(path, ["x"])
    else:
        with pytest.raises(ValueError, match=r"nulls|cut off|run of|header"):
            check_pages(path, ["x"])


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("statistics", [False, True])
def test_nulls(tmp_path, version, statistics):
    table = pa.table({"x": pa.array([1, None, 3], pa.int32())})
    options = {"write_statistics": statistics, "data_page_version": version}
    options["compression"] = "none"
    file = _core.ParquetFile(str(write_table(tmp_path / "f", table, **options)))
    with pytest.raises(ValueError):
        decode(*read_pages(file, ["x"]))


def test_codecs_that_a_gpu_does_not_unpack(tmp_path):
    path = write_table(tmp_path / "f", pa.table({"x": [1, 2]}), compression="gzip")
    with pytest.raises(ValueError, match="column x"):
        read_pages(_core.ParquetFile(str(path)), ["x"])


def test_wrong_arguments(tmp_path):
    table = table_of("<i4", 100).append_column("wide", [np.arange(100)])
    file = _core.ParquetFile(str(write_table(tmp_path / "f", table, compression="none")))
    with pytest.raises(ValueError, match="no columns"):
        file.pages_bytes([], 0, 1)
    with pytest.raises(ValueError, match="column y"):
        file.pages_bytes(["few", "y"], 0, 1)
    with pytest.raises(ValueError, match="wide has numbers of 8 bytes"):
        file.pages_bytes(["few", "wide"], 0, 1)
    with pytest.raises(ValueError, match="row groups 1 to 2"):
        file.pages_bytes(["few"], 1, 2)
    size = file.pages_bytes(["few", "runs"], 0, 1)
    for memory in (np.zeros(size - 1, "u1"), np.zeros(0, "u1"), np.zeros(size, "i1")):
        with pytest.raises(ValueError, match="memory"):
            file.read_pages(["few", "runs"], 0, 1, memory)
    stored, memory = read_pages(file, ["few", "runs"])
    for other in (memory[1:], memory[:-1], memory[:0]):
        with pytest.raises(ValueError, match="memory"):
            stored.decode(other, np.zeros((2, 100), "i4"))
    for shape, kind in (((2, 99), "i4"), ((1, 100), "i4"), ((200,), "i4"), ((2, 100), "i8")):
        with pytest.raises(ValueError, match="out"):
            stored.decode(memory, np.zeros(shape, kind))


def test_pages_of_other_files_follow(tmp_path):
    values = [np.arange(19) % 5, np.arange(111) % 7, np.arange(3)]
    tables = [pa.table({"x": numbers.astype(np.int32)}) for numbers in values]
    files = [stored_pages(tmp_path / str(i), table) for i, table in enumerate(tables)]
    (pages, memory), (second, more), (third, most) = files

    pages.append(second, memory.size)
    pages.append(third, memory.size + more.size)

    found = decode(pages, np.concatenate([memory, more, most]))
    np.testing.assert_array_equal(found[0], np.concatenate(values))
    with pytest.raises(ValueError, match="pages at 0 among the"):
        pages.append(second, 0)
    wide, _ = stored_pages(tmp_path / "wide", pa.table({"x": [1]}))
    with pytest.raises(ValueError, match="pages of 1 columns of 8 bytes behind those of 1 of 4"):
        pages.append(wide, 10**6)


def stored_pages(path, table):
    file = _core.ParquetFile(str(write_table(path, table, compression="snappy")))
    return read_pages(file, ["x"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", ["zstd", "snappy"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_long_pages_are_unpacked_into_room_behind_the_chunks(tmp_path, kind, codec, version):
    """Two dictionaries of `long` bytes among short pages; room for none, one, both."""
    random, rows = np.random.default_rng(3), 60_000
    columns = {name: random.permutation(rows).astype(kind) for name in ("a", "b")}
    columns |= {f"few{i}": random.integers(0, 50, rows).astype(kind) for i in range(8)}
    path = tmp_path / "f"
    options = {"dictionary_pagesize_limit": 1 << 20, "data_page_version": version}
    write_table(path, pa.table(columns), compression=codec, **options)
    file, names = _core.ParquetFile(str(path)), list(columns)
    wanted = np.stack(list(columns.values()))
    long = rows * np.dtype(kind).itemsize
    stored, memory = read_pages(file, names)
    before = stored.compressed_bytes
    np.testing.assert_array_equal(decode(stored, memory), wanted)
    for spare, unpacked in ((long - 1, 0), (long + 15, 1), (2 * long + 30, 2), (3 * long, 2)):
        stored, memory = read_pages(file, names, spare=spare)
        grown = stored.compressed_bytes - before
        assert unpacked * long <= grown < unpacked * (long + 16) + 1
        np.testing.assert_array_equal(decode(stored, memory), wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", ["zstd", "snappy", "lz4", "none"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_any_page_is_unpacked_where_that_is_asked_for(tmp_path, kind, codec, version):
    random, rows = np.random.default_rng(3), 5_000
    columns = {f"x{most}": random.integers(0, most, rows).astype(kind) for most in (2, 300, 9_999)}
    path, options = tmp_path / "f", {"data_page_version": version, "data_page_size": 2_000}
    write_table(path, pa.table(columns), compression=codec, **options)
    file, names = _core.ParquetFile(str(path)), list(columns)
    wanted = np.stack(list(columns.values()))
    stored, _ = read_pages(file, names)
    before, grown = stored.compressed_bytes, []
    for spare in (15, 100, 1_000, 10_000, 1_000_000):
        stored, memory = read_pages(file, names, spare=spare, unpack_above=0)
        np.testing.assert_array_equal(decode(stored, memory), wanted)
        grown.append(stored.compressed_bytes - before)
    assert grown == sorted(grown)
    assert grown[-1] <= stored.uncompressed_bytes and (grown[-1] > 0) == (codec != "none")
    assert (file.unpacked_bytes(names, 0, 1) > grown[-1]) == (codec != "none")
    stored, memory = read_pages(file, names, spare=1_000_000, unpack_above=10_000)
    assert (before < stored.compressed_bytes < before + grown[-1]) == (codec != "none")
    np.testing.assert_array_equal(decode(stored, memory), wanted)


def test_a_long_page_that_is_corrupt_is_left_for_the_gpu_to_find(tmp_path):
    numbers = np.random.default_rng(3).permutation(100_000).astype("<i4")
    path = tmp_path / "f"
    names = ["x", *(f"few{i}" for i in range(8))]
    table = pa.table(dict.fromkeys(names, np.zeros(100_000, "<i4")) | {"x": numbers})
    write_table(path, table, compression="zstd", dictionary_pagesize_limit=1 << 20)
    whole = bytearray(path.read_bytes())
    at = whole.index(b"\x28\xb5\x2f\xfd")  # the first frame: the dictionary of x
    whole[at] ^= 1  # no frame of zstd any more
    path.write_bytes(whole)
    bytes_read = set()
    for spare, above in ((0, None), (1 << 20, None), (1 << 20, 100_000)):
        file = _core.ParquetFile(str(path))
        stored, memory = read_pages(file, names, spare=spare, unpack_above=above)
        bytes_read.add(stored.compressed_bytes)
        with pytest.raises(ValueError, match="a zstd page does not decompress"):
            decode(stored, memory)
    assert len(bytes_read) == 1
