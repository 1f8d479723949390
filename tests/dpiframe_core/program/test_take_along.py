"""Numbers that places pick along an axis."""

from __future__ import annotations

import math

import pytest
import torch

from dpiframe_core.program.tensor_ops import Operand, TakeAlong


@pytest.mark.parametrize("places_first", [False, True])
def test_a_place_outside_the_axis_has_no_number(places_first):
    x = torch.tensor([[10.0, 11.0, 12.0]])  # a constant: the same for both samples
    places = torch.tensor([[2.0, -1.0, 3.0, 1.9], [0.0, -0.5, math.nan, math.inf]])
    wanted = torch.tensor([[12.0, math.nan, math.nan, 11.0], [10.0, 10.0, math.nan, math.nan]])
    op, read = TakeAlong(places_first=places_first), [x, places]
    shapes = [Operand.whole(3), Operand.whole(4)]
    assert op.shape(shapes[::-1] if places_first else shapes) == (4,)
    found = op.compute(read[::-1] if places_first else read)
    torch.testing.assert_close(found, wanted, equal_nan=True)
