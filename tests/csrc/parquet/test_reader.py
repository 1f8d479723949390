"""Columns of numbers as pyarrow writes them, read bit by bit as pyarrow reads them."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_files import DICTIONARIES, PAGES, as_pyarrow, check, read, required, write

from dpiframe_core import _core

KINDS = ["i4", "i8", "f4", "f8"]
CODECS = ["none", "snappy", "gzip", "zstd", "lz4_raw"]
VERSIONS = ["1.0", "2.0"]


def extremes(kind: str) -> np.ndarray:
    """The ends of the range; of floats, also what only bits tell apart: NaNs, signed zeros."""
    if kind[0] == "i":
        info = np.iinfo(kind)
        return np.array([info.min, info.min + 1, -1, 0, 1, info.max - 1, info.max], kind)
    info = np.finfo(kind)
    bits = np.dtype(f"u{kind[1]}")
    one = np.array(1, bits)
    nan = np.array(np.nan, kind).view(bits)
    sign = one << (bits.itemsize * 8 - 1)
    nans = np.array([nan, nan | one, nan | sign, nan | one << one], bits).view(kind)
    numbers = [np.inf, -np.inf, 0.0, -0.0, info.tiny, info.smallest_subnormal, info.max, info.min]
    return np.concatenate([nans, np.array(numbers, kind)])


def columns(kind: str, rows: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Values [rows] that call for each form of run and of dictionary."""
    ends = extremes(kind)
    unique = random.permutation(rows).astype(kind)
    few = random.integers(-100, 100, rows).astype(kind)
    lengths = random.choice([1, 2, 7, 8, 9, 63, 64, 65, 400], rows)
    runs = np.repeat(random.integers(0, 50, rows), lengths)[:rows].astype(kind)
    return {
        "unique": unique,
        "few": few,
        "sorted": np.sort(few),
        "constant": np.full(rows, 7, kind),
        "runs": runs,
        "runs_and_random": np.where(np.arange(rows) // 300 % 2, few, runs),
        "extremes": ends[random.integers(0, ends.size, rows)],
    }


def table_of(rows: int, seed: int = 1) -> pa.Table:
    random = np.random.default_rng(seed)
    found = {kind: columns(kind, rows, random) for kind in KINDS}
    return pa.table({f"{k}_{name}": values for k in KINDS for name, values in found[k].items()})


@pytest.mark.parametrize("pages", PAGES)
@pytest.mark.parametrize("dictionary", DICTIONARIES)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("codec", CODECS)
def test_types_and_values(tmp_path, codec, version, dictionary, pages):
    options = DICTIONARIES[dictionary] | PAGES[pages]
    table = table_of(5003)
    for number, form in enumerate([table, required(table)]):
        path = tmp_path / f"{number}.parquet"
        write(path, form, compression=codec, data_page_version=version, **options)
        check(path)


@pytest.mark.parametrize("dictionary", DICTIONARIES)
@pytest.mark.parametrize("codec", CODECS)
def test_row_groups_of_odd_sizes_and_every_range_of_them(tmp_path, codec, dictionary):
    sizes = [0, 1, 7, 8, 9, 0, 64, 10_001, 1]
    random = np.random.default_rng(5)
    groups = [
        pa.table({k: random.integers(0, max(1, size // 2), size).astype(k) for k in KINDS})
        for size in sizes
    ]
    path = write(tmp_path / "f", groups, compression=codec, **DICTIONARIES[dictionary])
    assert _core.ParquetFile(str(path)).group_rows == sizes
    for first, stop in itertools.combinations(range(len(sizes) + 1), 2):
        check(path, KINDS, first, stop)
    assert [values.size for values in read(_core.ParquetFile(str(path)), KINDS, 3, 3)] == [0] * 4


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("codec", CODECS)
def test_large_row_groups(tmp_path, codec, version):
    groups = [table_of(100_000, seed).select(["i4_few", "i8_unique", "f4_runs"]) for seed in (1, 2)]
    options = {"compression": codec, "data_page_version": version}
    check(write(tmp_path / "f", groups, **options))


@pytest.mark.parametrize("width", range(21))
def test_dictionaries_of_every_bit_width(tmp_path, width):
    random = np.random.default_rng(width)
    for size in sorted({2**width // 2 + 1, 2**width}):
        keys = random.permutation(np.append(np.arange(size), random.integers(0, size, 1003)))
        table = pa.table({"x": np.append(keys, np.repeat(keys[:3], 100)).astype("i4")})
        check(write(tmp_path / str(size), table, dictionary_pagesize_limit=1 << 30))


@pytest.mark.parametrize("version", VERSIONS)
def test_long_runs(tmp_path, version):
    rows = 1_000_003
    broken = np.zeros(rows, "i4")
    broken[[1, 500_000, 500_001, rows - 1]] = [5, 6, 7, 8]
    table = pa.table({"constant": np.full(rows, -3, "i8"), "broken": broken})
    for form in (table, required(table)):
        path = tmp_path / str(form.schema.field(0).nullable)
        check(write(path, form, data_page_version=version, compression="snappy"))


@pytest.mark.parametrize("codec", ["snappy", "zstd"])
def test_texts_that_compress_in_every_way(tmp_path, codec):
    """Repeats at every short distance, far away, and none at all."""
    random = np.random.default_rng(3)
    parts = [np.tile(random.integers(0, 256, n), 200 // n + 2) for n in range(1, 70)]
    noise = random.integers(0, 256, 70_000)
    data = np.concatenate([*parts, noise, noise, np.zeros(200_000), noise[::-1]]).astype(np.uint8)
    table = pa.table({"x": data[: data.size // 8 * 8].view("i8")})
    path = tmp_path / "f"
    for level in [None] if codec == "snappy" else [1, 3, 19]:
        write(path, table, compression=codec, compression_level=level, use_dictionary=False)
        check(path)


def test_order_and_repeats_of_columns(tmp_path):
    path = write(tmp_path / "f", [table_of(100), table_of(100, seed=2)])
    check(path, ["f8_few", "i4_runs", "f8_few", "i8_unique", "i4_runs", "f8_few"])
    check(path, [])


def test_names(tmp_path):
    names = ["a.b", "a", "a.", ".", "", " ", "schema", "ключ", "列", "🙂", "a\x00b", "x" * 5000]
    table = pa.table({name: np.arange(9) + number for number, name in enumerate(names)})
    check(write(tmp_path / "ünï✓", table))


def test_a_dot_in_a_name_is_no_path(tmp_path):
    table = pa.table({"a": pa.array([{"b": 1}]), "a.b": pa.array([5]), "c": pa.array([{"b": 2}])})
    file = _core.ParquetFile(str(write(tmp_path / "f", table)))
    assert [file.number_type(name, 0, 1) for name in ("a", "a.b", "c.b")] == [None, "<i8", None]
    assert read(file, ["a.b"])[0].tolist() == [5]


def test_columns_behind_nested_ones(tmp_path):
    nested = [{"p": [1, 2], "q": {"r": 1, "s": 2}}] * 3
    table = pa.table({"i": [1, 2, 3], "n": nested, "l": [[1]] * 3, "j": [4.0, 5.0, 6.0]})
    path = write(tmp_path / "f", table)
    check(path, ["i", "j"])
    file = _core.ParquetFile(str(path))
    inner = ["n", "p", "r", "s", "n.q.r", "l", "element", "list", "l.list.element"]
    assert not any(file.number_type(name, 0, 1) for name in inner)


def test_many_columns(tmp_path):
    table = pa.table({f"c{i}": np.arange(20) * i for i in range(2000)})
    check(write(tmp_path / "f", table, write_page_index=True))


@pytest.mark.parametrize(
    "options",
    [
        {"write_statistics": False},
        {"store_schema": False},
        {"write_page_index": True},
        {"version": "1.0"},
        {"sorting_columns": [pq.SortingColumn(0)]},
        {"bloom_filter_options": {"i4_few": True}},
        {"compression": {"i4_few": "none", "i8_few": "snappy"}},
    ],
    ids=str,
)
def test_footers_of_other_kinds(tmp_path, options):
    table = table_of(500).select(["i4_few", "i8_few", "f4_few", "f8_few"])
    table = table.replace_schema_metadata({"note": "n" * 100_000, "": ""})
    check(write(tmp_path / "f", table, **options))


def test_arrow_types_over_plain_numbers(tmp_path):
    table = pa.table({"d": pa.array([5, 6, 5], pa.int32()).dictionary_encode(), "x": [1, 2, 3]})
    check(write(tmp_path / "f", table))


def test_threads_share_a_file(tmp_path):
    path = write(
        tmp_path / "f", [table_of(20_000, seed) for seed in range(3)], compression="snappy"
    )
    file, names = _core.ParquetFile(str(path)), table_of(1).column_names
    ranges = [(first, stop) for first in range(3) for stop in range(first + 1, 4)]
    wanted = {r: as_pyarrow(path, names, *r) for r in ranges}

    def work(seed: int) -> None:
        for i in np.random.default_rng(seed).permutation(len(ranges)):
            for ours, theirs in zip(read(file, names, *ranges[i]), wanted[ranges[i]], strict=True):
                np.testing.assert_array_equal(ours.view(np.uint8), theirs.view(np.uint8))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
