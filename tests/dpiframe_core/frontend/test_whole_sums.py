"""What sums of whole numbers can be, and of which values they are told."""

from __future__ import annotations

import math

import pytest
import torch

from dpiframe_core.frontend.values import Column, Columns, Made, Scalar, Value, of_tensor
from dpiframe_core.frontend.whole_sums import WholeSums, largest


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        (("add", ("mul", "x0", 31.0), "x1"), 31 * 5 + 7),
        (("sub", "x0", ("mul", "x1", -4.0)), 5 + 4 * 7),
        (("neg", "x1"), 7),
        (("mul", "x0", 0.5), None),
        (("div", "x0", 2.0), None),
        (("add", "x0", ("floor", "x1")), None),
        (("add", "x0", math.inf), None),
    ],
)
def test_the_largest_of_a_sum(expression, wanted):
    assert largest(expression, [5.0, 7.0]) == wanted


def test_sums_are_known_by_their_whole_results():
    ids = Value(Columns((Scalar(Column("a", 0), "x0"),)), (), is_integer=True)
    made = Value(Made("map"), ())
    sums = WholeSums()
    sums.note(("mul", "x0", "x1"), [ids, of_tensor(torch.tensor([0.5]))], made)
    sums.note(("add", "x0", "x1"), [ids, Value(Made("numbers"), ())], made)
    assert sums.of(made) is None
    sums.note(("mul", "x0", "x1"), [ids, of_tensor(torch.tensor([3.0]))], made)
    known = sums.of(made)
    assert known is not None
    assert known.expression == ("mul", "x0", "x1")
    assert sums.of(Value(Made("map"), (), offset=1)) is None
    assert sums.of(ids) is None
