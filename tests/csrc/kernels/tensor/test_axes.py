"""Axes of tensors: merging neighbours, and the column of each element."""

from __future__ import annotations

import numpy as np
import pytest

from dpiframe_core import _core

MOST_AXES = 8


def columns(sizes, strides):
    """By numpy."""
    found = np.zeros(tuple(sizes), np.int64)
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        shape = [1] * len(sizes)
        shape[axis] = size
        found = found + (np.arange(size) * stride).reshape(shape)
    return found.ravel().tolist()


@pytest.mark.parametrize(
    ("sizes", "strides", "merged"),
    [
        ([3, 4, 5], [[20, 5, 1]], ([60], [[1]])),
        ([3, 4, 5], [[20, 5, 1], [5, 0, 1]], ([3, 4, 5], [[20, 5, 1], [5, 0, 1]])),
        ([3, 4, 5], [[20, 5, 1], [0, 5, 1]], ([3, 20], [[20, 1], [0, 1]])),
        ([3, 1, 5], [[5, 777, 1]], ([15], [[1]])),
        ([4, 5], [[0, 0]], ([20], [[0]])),
        ([1, 1], [[9, 9]], ([1], [[0]])),
        ([], [[]], ([1], [[0]])),
        ([3, 4], [[1, 3]], ([3, 4], [[1, 3]])),
    ],
)
def test_neighbours_are_merged(sizes, strides, merged):
    assert _core.merge_axes(sizes, strides) == merged


@pytest.mark.parametrize("seed", range(60))
def test_each_element_has_its_column(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.choice([1, 2, 3, 5, 7, 19], rng.integers(0, 6)).tolist()
    order = rng.permutation(len(sizes))
    strides, step = [0] * len(sizes), 1
    for axis in order:
        strides[axis] = 0 if rng.random() < 0.2 else step
        step *= sizes[axis]
    assert _core.operand_columns(sizes, strides) == columns(sizes, strides)


def test_too_many_axes_are_refused():
    sizes = [2] * (MOST_AXES + 1)
    apart = [3**i for i in range(len(sizes))]
    assert len(_core.merge_axes(sizes[1:], [apart[1:]])[0]) == MOST_AXES
    with pytest.raises(ValueError, match="9 axes that cannot be merged"):
        _core.merge_axes(sizes, [apart])
