"""Rows of ids that repeat, by the compiled part, against what the field's spec says."""

from __future__ import annotations

import numpy as np
import pytest

from dpiframe_core import FieldSpec, _core

EDGES = [0, 1, -1, -2, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63), 1 - 2**63]


def random_field(rng: np.random.Generator) -> FieldSpec:
    rows = int(rng.choice([1, 2, 3, 7, 100, 1000, 2**31, 2**33]))
    period = rng.choice([0, rows, rng.integers(1, rows + 1)])
    last = rng.choice(np.array([0, rows - 1, rows, 2 * rows + 1, 2**40, 2**63 - 1, -1]))
    keys = {"period": int(period)} if period else {}
    if period and last >= 0:
        keys["last"] = int(last)
    return FieldSpec(name="a", rows=rows, dim=1, **keys)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("seed", range(20))
def test_rows_are_those_of_the_spec(seed: int, dtype: type) -> None:
    rng = np.random.default_rng(seed)
    fields = [random_field(rng) for _ in range(30)]
    columns = []
    for field in fields:
        ends = [e + d for e in (field.rows, field.end, field.least) for d in (-2, -1, 0, 1)]
        drawn = rng.integers(-3 * field.rows, 3 * field.rows, 60).tolist()
        held = [i for i in [*EDGES, *ends, *drawn] if np.iinfo(dtype).min <= i <= 2**63 - 1]
        ids = np.array(held, np.int64)
        columns.append(ids[ids <= np.iinfo(dtype).max][:70].astype(dtype))
    size = min(map(len, columns))
    columns = [np.repeat(c[:size], 2)[::2] if i % 2 else c[:size] for i, c in enumerate(columns)]

    rows = _core.rows_of_ids(columns, [f.id_range for f in fields])

    for field, column, got in zip(fields, columns, rows, strict=True):
        expected = field.in_table(column.astype(np.int64))
        is_row = (expected >= 0) & (expected < field.rows)
        np.testing.assert_array_equal(got, np.where(is_row, expected, -1))


def test_rows_of_small_tables_have_four_bytes() -> None:
    ids = np.array([[5, -1, 2**40]])
    small, large = (_core.rows_of_ids(ids, [(rows, 0, 0, rows - 1)]) for rows in (2**31, 2**31 + 1))
    assert (small.dtype, large.dtype) == (np.int32, np.int64)
    np.testing.assert_array_equal(small, [[5, -1, -1]])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ([], "expected ids of 0 fields, got 1"),
        ([(0, 0, 0, 0)], "at least 1 row"),
        ([(5, 6, 0, 9)], "at most so many that repeat, got 5 and 6"),
        ([(5, 3, -9, 9)], "before it only where all rows repeat, got -9 to 9"),
    ],
)
def test_what_is_no_field_is_refused(fields: list[tuple[int, int, int, int]], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        _core.rows_of_ids(np.array([[1]]), fields)
