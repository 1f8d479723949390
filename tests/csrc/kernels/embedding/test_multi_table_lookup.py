"""The CPU multi-table lookup against numpy in float64."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from numpy.typing import NDArray

from dpiframe_core import _core

ROWS = (7, 1000, 3, 1, 50, 11)


class Case:
    """Tables, ids and a poisoned output of one lookup, and what it must give."""

    def __init__(self, batch: int, dims: tuple[int, ...], fm_dim: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        rows = [ROWS[f % len(ROWS)] for f in range(len(dims))]
        self.dims = dims
        self.tables = [
            rng.standard_normal((r, d), dtype=np.float32) for r, d in zip(rows, dims, strict=True)
        ]
        self.weights = [rng.standard_normal(r, dtype=np.float32) for r in rows]
        self.columns = np.cumsum([0, *dims]).tolist()
        self.in_fm = [d == fm_dim for d in dims]
        self.ids = [
            rng.integers(0, r, batch).astype((np.int32, np.int64)[f % 2])
            for f, r in enumerate(rows)
        ]
        self.out = np.full((batch, self.columns[-1] + 3), np.nan, np.float32)
        self.fm = np.full(batch, np.nan, np.float32)
        self.wide = np.full(batch, np.nan, np.float32)

    def lookup(self, threads: int = 2, oov_row: int = -1) -> _core.MultiTableLookup:
        fields = [
            _core.LookupField(t, c, wide=w, in_fm=fm, oov_row=oov_row)
            for t, c, w, fm in zip(
                self.tables, self.columns, self.weights, self.in_fm, strict=False
            )
        ]
        return _core.MultiTableLookup(fields, threads)

    def check(self, oov_row: int = -1) -> None:
        rows = [self._rows(t, i, oov_row) for t, i in zip(self.tables, self.ids, strict=True)]
        wide = [
            self._rows(w[:, None], i, oov_row) for w, i in zip(self.weights, self.ids, strict=True)
        ]
        width = self.columns[-1]
        assert np.array_equal(self.out[:, :width], np.concatenate(rows, axis=1).astype(np.float32))
        assert np.isnan(self.out[:, width:]).all()
        # A few float32 roundings of sums of about 40 terms of size 1.
        np.testing.assert_allclose(self.wide, sum(wide)[:, 0], rtol=1e-5, atol=1e-5)
        if any(self.in_fm):
            v = np.stack([r for r, fm in zip(rows, self.in_fm, strict=True) if fm])
            fm = 0.5 * (v.sum(axis=0) ** 2 - (v**2).sum(axis=0)).sum(axis=1)
            scale = max(1.0, float(np.abs(fm).max(initial=0.0)))
            np.testing.assert_allclose(self.fm, fm, rtol=0, atol=1e-5 * scale)

    @staticmethod
    def _rows(table: NDArray[np.float32], ids: NDArray[np.int64], oov_row: int) -> NDArray:
        wide = table.astype(np.float64)
        good = (ids >= 0) & (ids < len(table))
        fallback = wide[oov_row] if oov_row >= 0 else np.zeros(table.shape[1])
        return np.where(good[:, None], wide[np.where(good, ids, 0)], fallback)


@pytest.mark.parametrize("batch", [0, 1, 7, 19, 111, 1025])
@pytest.mark.parametrize(
    "dims", [(16,) * 39, (1, 10, 16, 64, 10, 3), (10,) * 9, (64, 64), (1, 8, 32)]
)
def test_equals_float64(batch: int, dims: tuple[int, ...]) -> None:
    case = Case(batch, dims, fm_dim=dims[-1])
    report = case.lookup().run(case.ids, case.out, fm=case.fm, wide=case.wide)
    case.check()
    assert report.bad_counts.tolist() == [0] * len(dims)
    assert (report.first_row, report.first_field, report.first_value) == (-1, -1, -1)


@pytest.mark.parametrize("oov_row", [-1, 0])
def test_bad_ids_are_counted_and_never_read(oov_row: int) -> None:
    case = Case(111, (16, 10, 16, 1), fm_dim=16)
    case.ids[0][[5, 50]] = [7, -1]
    case.ids[1][[4, 5]] = [2**62, -(2**63)]
    case.ids[2][110] = -(2**31)
    report = case.lookup(oov_row=oov_row).run(case.ids, case.out, oov_row >= 0, case.fm, case.wide)
    case.check(oov_row)
    assert report.bad_counts.tolist() == [2, 2, 1, 0]
    assert (report.first_row, report.first_field, report.first_value) == (4, 1, 2**62)


def test_oov_row_is_only_used_where_asked_for() -> None:
    case = Case(19, (16, 16), fm_dim=16)
    case.ids[0][3] = 1000
    case.lookup(oov_row=0).run(case.ids, case.out, False, case.fm, case.wide)
    case.check()


def test_every_bad_id_of_a_batch() -> None:
    case = Case(300, (16, 5), fm_dim=0)
    case.ids = [np.full(300, -1, np.int32), np.full(300, 2**31 - 1, np.int32)]
    report = case.lookup().run(case.ids, case.out, wide=case.wide)
    assert report.bad_counts.tolist() == [300, 300]
    assert (report.first_row, report.first_field) == (0, 0)
    assert not case.out[:, :21].any()


def test_strided_ids_and_output() -> None:
    case = Case(19, (16, 10), fm_dim=10)
    holder = np.zeros((19, 4), np.int64)
    holder[:, 1], holder[:, 2] = case.ids[0], case.ids[1]
    case.ids = [holder[:, 1], holder[::-1, 2]]
    whole = np.full((19, 100), np.nan, np.float32)
    case.out = whole[:, 3 : 3 + 26]
    case.lookup().run(case.ids, case.out, fm=case.fm, wide=case.wide)
    case.out = whole[:, 3:]
    case.check()
    assert np.isnan(whole[:, :3]).all()


def test_ids_as_one_matrix() -> None:
    case = Case(19, (16, 16), fm_dim=16)
    matrix = np.stack(case.ids).astype(np.int32)
    case.lookup().run(matrix, case.out, fm=case.fm, wide=case.wide)
    case.check()


def test_result_is_the_same_for_any_number_of_threads() -> None:
    results = []
    for threads in (1, 2, 5):
        case = Case(1025, (16,) * 13 + (10,), fm_dim=16)
        lookup = case.lookup(threads)
        assert lookup.num_threads == threads
        lookup.run(case.ids, case.out, fm=case.fm, wide=case.wide)
        results.append((case.out.tobytes(), case.fm.tobytes(), case.wide.tobytes()))
    assert results[0] == results[1] == results[2]


def test_calls_from_several_threads_take_turns() -> None:
    cases = [Case(333, (16, 10, 16), fm_dim=16, seed=0) for _ in range(4)]
    lookup = cases[0].lookup()

    def work(case: Case) -> None:
        for _ in range(30):
            lookup.run(case.ids, case.out, fm=case.fm, wide=case.wide)

    threads = [threading.Thread(target=work, args=(case,)) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for case in cases:
        case.check()


def test_arrays_outlive_their_names() -> None:
    lookup = _core.MultiTableLookup([_core.LookupField(np.ones((50_000, 16), np.float32), 0)])
    out = np.zeros((1, 16), np.float32)
    lookup.run([np.array([49_999], np.int32)], out)
    assert (out == 1).all()


def test_empty_table_is_aligned() -> None:
    for rows, dim in ((3, 10), (100_001, 16)):
        table = _core.empty_table(rows, dim)
        table[:] = 1.0
        assert table.shape == (rows, dim)
        assert table.ctypes.data % 64 == 0


@pytest.mark.parametrize("batch", [0, 1, 19, 5000])
def test_find_bad_ids(batch: int) -> None:
    rng = np.random.default_rng(0)
    rows = [100, 2**40, 7]
    ids = [
        rng.integers(0, 100, batch).astype(np.int32),
        rng.integers(0, 2**31, batch).astype(np.int32),
        rng.integers(0, 7, 2 * batch)[::2],
    ]
    for f, values in enumerate(([100, -1], [-(2**31)], [7, 2**40, -(2**63)])):
        for value in values:
            ids[f][rng.integers(0, batch, 3 if batch else 0)] = value
    mask, counts = _core.find_bad_ids(ids, rows)
    bad = np.stack([(i < 0) | (i >= r) for i, r in zip(ids, rows, strict=True)])
    assert np.array_equal(mask, bad.any(axis=0))
    assert counts.tolist() == bad.sum(axis=1).tolist()
