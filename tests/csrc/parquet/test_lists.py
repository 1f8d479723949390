"""Lists read natively are those of pyarrow, padded row by row, whatever their writer chose."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpiframe_core import _core

KINDS = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.float32(),
    pa.float64(),
]
LIST_KINDS = [
    lambda kind: pa.list_(kind),
    lambda kind: pa.large_list(pa.field("item", kind, nullable=False)),
]


def random_column(random: np.random.Generator, rows: int, kind: Any) -> pa.Array:
    """Lists of 0 to 30 numbers, some of them null, some with nulls; or all alike, or all empty."""
    value = kind.value_type
    nulls_in = random.random() < 0.5 and kind.field(0).nullable
    shape = random.choice(["any", "fixed", "empty", "short"])
    high = {"any": 30, "fixed": 7, "empty": 1, "short": 3}[str(shape)]
    sizes = random.integers(0, high, rows) if shape != "fixed" else np.full(rows, 7)
    most = 100 if value.bit_width == 8 else 1000
    low = -most if pa.types.is_signed_integer(value) or pa.types.is_floating(value) else 0
    lists: list[list[Any] | None] = []
    for size in sizes:
        elements: list[Any] = random.integers(low, most, size).tolist()
        if value == pa.uint32() and size:
            elements[0] = 2**32 - 1
        if nulls_in and random.random() < 0.2:
            elements = [None if random.random() < 0.3 else each for each in elements]
        lists.append(elements)
    if shape != "fixed" and random.random() < 0.7:
        lists = [None if random.random() < 0.1 else each for each in lists]
    return pa.array(lists, kind)


def expected(
    rows: list[list[Any] | None], length: int, pad: int, before: bool, last: bool
) -> tuple[np.ndarray, list[int]]:
    """The padded lists [length, rows], 0 for a null, and the rows that have one."""
    padded, bad = [], []
    for r, found in enumerate(rows):
        own = found or []
        own = own[max(0, len(own) - length) :] if last else own[:length]
        if any(each is None for each in own):
            bad.append(r)
        own = [0 if each is None else each for each in own]
        pads = [pad] * (length - len(own))
        padded.append(pads + own if before else own + pads)
    return np.array(padded).reshape(-1, length).T, bad


def read(
    path: Path, length: int, pad: int, before: bool, last: bool, groups: tuple[int, int]
) -> tuple[np.ndarray, list[int]]:
    """The native reader's, at the narrowest type that it takes."""
    file = _core.ParquetFile(str(path))
    stored = file.list_type("lists", *groups)
    kind = {"<i4": "<i4", "<u4": "<i8", "<i8": "<i8", "<f4": "<f4", "<f8": "<f4"}[str(stored)]
    rows = sum(file.group_rows[slice(*groups)])
    out = np.full((length, rows), 77, kind)
    bad = file.read_list("lists", *groups, list(out), pad, before, last)
    return out, bad.tolist()


@pytest.mark.parametrize("seed", range(60))
def test_random_files(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = int(random.choice([1, 19, 111, 3000]))
    kind = LIST_KINDS[seed % 2](KINDS[seed % len(KINDS)])
    column = random_column(random, rows, kind)
    path = tmp_path / "lists.parquet"
    nullable = column.null_count > 0 or random.random() < 0.5
    schema = pa.schema([pa.field("lists", kind, nullable=nullable)])
    pq.write_table(
        pa.table([column], schema=schema),
        path,
        row_group_size=int(random.choice([rows, 700])),
        data_page_size=int(random.choice([1, 100, 1 << 20])),  # rows lie across pages of version 1
        data_page_version=str(random.choice(["1.0", "2.0"])),
        use_dictionary=bool(random.integers(0, 2)),
        compression=str(random.choice(["zstd", "snappy", "none"])),
        write_batch_size=int(random.choice([3, 64, 1024])),
    )
    groups = pq.ParquetFile(path).metadata.num_row_groups
    before, last = bool(random.integers(0, 2)), bool(random.integers(0, 2))
    length = int(random.choice([1, 5, 7, 8, 13, 50, 300]))

    out, bad = read(path, length, -1, before, last, (0, groups))

    wanted, wanted_bad = expected(column.to_pylist(), length, -1, before, last)
    np.testing.assert_array_equal(out, wanted.astype(out.dtype))
    assert bad == wanted_bad


@pytest.mark.parametrize(("before", "last"), itertools.product([False, True], repeat=2))
def test_row_groups_between(tmp_path: Path, before: bool, last: bool) -> None:
    column = random_column(np.random.default_rng(5), 100, pa.list_(pa.int32()))
    path = tmp_path / "lists.parquet"
    pq.write_table(pa.table({"lists": column}), path, row_group_size=19)

    out, bad = read(path, 4, 9, before, last, (1, 4))

    wanted, wanted_bad = expected(column.to_pylist()[19:76], 4, 9, before, last)
    np.testing.assert_array_equal(out, wanted)
    assert bad == wanted_bad


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.uint64()),
        pa.list_(pa.string()),
        pa.list_(pa.list_(pa.int32())),
        pa.list_(pa.timestamp("us")),
        pa.map_(pa.int32(), pa.int32()),
        pa.int32(),
    ],
    ids=str,
)
def test_other_columns_are_left_alone(tmp_path: Path, kind: pa.DataType) -> None:
    path = tmp_path / "lists.parquet"
    pq.write_table(pa.table({"lists": pa.nulls(3, kind)}), path)

    file = _core.ParquetFile(str(path))
    assert file.list_type("lists", 0, 1) is None
    with pytest.raises(ValueError, match="column lists holds no lists that can be read here"):
        file.read_list("lists", 0, 1, [np.empty(3, np.int64)], 0, False, False)


def test_wide_elements_do_not_go_to_narrow_places(tmp_path: Path) -> None:
    path = tmp_path / "lists.parquet"
    pq.write_table(pa.table({"lists": pa.array([[1]], pa.list_(pa.int64()))}), path)

    with pytest.raises(ValueError, match="column lists holds other numbers"):
        _core.ParquetFile(str(path)).read_list("lists", 0, 1, [np.empty(1, "i4")], 0, False, False)
