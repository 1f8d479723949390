"""Several files read as one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from parquet_files import write

from dpiframe_core import _core


def planned(folder, *tables):
    found = []
    for i, table in enumerate(tables):
        path = write(folder / str(i), table)
        stat = path.stat()
        found.append((str(path), stat.st_size, stat.st_mtime_ns, table.num_rows))
    return found


def table(rows, seed=0, kind=np.int32):
    rng = np.random.default_rng(seed)
    columns = {"key": np.arange(rows), "x": rng.random(rows)}
    return pa.table(columns | {name: rng.integers(0, 9, rows).astype(kind) for name in "ab"})


def read(files, room=100_000, unpack_above=None):
    rows = sum(rows for *_, rows in files)
    key, dense = np.empty(rows, np.int64), np.empty(rows, np.float32)
    memory = np.zeros(room, np.uint8)
    plain = [("key", "<i8", key)]
    found = _core.read_whole_files(files, plain, [("x", dense)], ["a", "b"], memory, unpack_above)
    return *found, memory, key, dense


@pytest.mark.parametrize("unpack_above", [None, 0])
def test_rows_of_all_files_follow_one_another(tmp_path, unpack_above):
    tables = [table(rows, seed=rows) for rows in (19, 1, 111)]
    files = planned(tmp_path, *tables)
    pages, group_rows, nulls, memory, key, dense = read(files, unpack_above=unpack_above)
    expected = pa.concat_tables(tables)
    ids = np.empty((2, 131), np.int32)
    pages.decode(memory, ids)
    for found, name in zip([key, *ids], ["key", "a", "b"], strict=True):
        np.testing.assert_array_equal(found, expected.column(name).to_numpy())
    np.testing.assert_array_equal(dense, expected.column("x").to_numpy().astype(np.float32))
    assert (group_rows, nulls) == ([19, 1, 111], False)


def test_nulls_of_dense_features_are_told(tmp_path):
    tables = [table(3), table(3).set_column(1, "x", pa.array([1.0, None, 2.0]))]
    *_, nulls, _, _, dense = read(planned(tmp_path, *tables))
    assert nulls and dense[3:].tolist() == [1.0, 0.0, 2.0]


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_file_that_is_not_the_planned_one_is_refused(tmp_path, place):
    good, bad = planned(tmp_path, table(3), table(3))
    changed = [*bad]
    changed[place] += 1
    with pytest.raises(ValueError, match=f"{tmp_path}/1 (changed after planning|has other rows)"):
        read([good, tuple(changed)])
    with pytest.raises(FileNotFoundError):
        read([good, (f"{tmp_path}/gone", *bad[1:])])


def test_what_does_not_fit_together_is_refused(tmp_path):
    files = planned(tmp_path, table(3), table(3, kind=np.int64))
    with pytest.raises(ValueError, match="pages of 2 columns of 8 bytes behind those of 2 of 4"):
        read(files)
    as_float = table(3).set_column(0, "key", pa.array([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match="1: column key is of another type"):
        read(planned(tmp_path, table(3), as_float))
    with pytest.raises(ValueError, match="memory of 7 bytes"):
        read(planned(tmp_path, table(3)), room=7)
