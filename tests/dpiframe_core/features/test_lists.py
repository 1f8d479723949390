"""Lists as padded matrices, against plain Python."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dpiframe_core.features.lists import RUN, Shape, is_list, pad_lists, split_lists

LISTS = [None, [], [1], [1, 2, 3], [4, 5, 6, 7, 8, 9], None, [7, 8]] * (RUN // 3)


def _expected(lists, shape, pad):
    rows = []
    for values in lists:
        found = values or []
        kept = found[: shape.length] if shape.keep == "first" else found[-shape.length :]
        pads = [pad] * (shape.length - len(kept))
        rows.append(kept + pads if shape.side == "behind" else pads + kept)
    return np.array(rows, np.int64).reshape(-1, shape.length).T


def _padded(array, shape, pad):
    lists = split_lists(array)
    out = np.full((shape.length, len(array)), -99)
    pad_lists(lists, lists.values.fill_null(0).to_numpy(), shape, pad, out)
    return out


@pytest.mark.parametrize("length", [1, 3, 4, 8])
@pytest.mark.parametrize("side", ["behind", "before"])
@pytest.mark.parametrize("keep", ["first", "last"])
def test_lists_are_padded_and_cut(length, side, keep):
    shape = Shape(length, side, keep)
    for kind in (pa.list_(pa.int64()), pa.large_list(pa.int64())):
        array = pa.array(LISTS, kind)
        np.testing.assert_array_equal(_padded(array, shape, 11), _expected(LISTS, shape, 11))
        sliced = _padded(array.slice(2, 1000), shape, 0)
        np.testing.assert_array_equal(sliced, _expected(LISTS[2:1002], shape, 0))


@pytest.mark.parametrize("length", [2, 3, 5])
def test_lists_of_a_fixed_size(length):
    lists = [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(RUN + 19)]
    array = pa.array(lists, pa.list_(pa.int64(), 3)).slice(7)
    shape = Shape(length, "before", "last")
    np.testing.assert_array_equal(_padded(array, shape, -1), _expected(lists[7:], shape, -1))
    assert is_list(array.type) and not is_list(pa.int64())


def test_what_stands_in_the_place_of_a_null_is_not_read():
    offsets = pa.array([0, 2, 4], pa.int32())
    mask = pa.array([True, False])
    array = pa.ListArray.from_arrays(offsets, pa.array([1, 2, 3, 4]), mask=mask)
    assert _padded(array, Shape(2), 0).tolist() == [[0, 3], [0, 4]]
    fixed = pa.array([None, [1, 2]], pa.list_(pa.int64(), 2))
    assert _padded(fixed, Shape(2), 5).tolist() == [[5, 1], [5, 2]]


@pytest.mark.parametrize("lists", [[], [[]], [None, []]])
def test_no_values(lists):
    array = pa.array(lists, pa.list_(pa.int64()))
    assert _padded(array, Shape(3), 4).tolist() == [[4] * len(lists)] * 3
