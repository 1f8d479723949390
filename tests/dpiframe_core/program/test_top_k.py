"""The k largest of a row and their places: in the order of a stable sort."""

from __future__ import annotations

import pytest
import torch

from dpiframe_core.program.tensor_ops import TopK

ODD = [0.0, -0.0, torch.nan, -torch.nan, torch.inf, -torch.inf, 1e-45, -1e-45, 1.0, 1.0]


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 3, 9, 17, 40])
def test_of_equal_numbers_the_first_come_first(k, largest):
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(5, 3, 70, generator=generator).round(decimals=1).transpose(0, 1)
    x[0, :2, :10] = torch.tensor(ODD)
    x[1, :, 30:50] = torch.tensor(ODD * 2)
    values, places = x.sort(dim=-1, descending=largest, stable=True)
    for kind in (torch.float32, torch.float64):
        given = x.to(kind)
        found = TopK(k, largest, places=True).compute([given])
        assert found.dtype == kind and torch.equal(found.long(), places[..., :k])
        torch.testing.assert_close(
            TopK(k, largest).compute([given]),
            values[..., :k].to(kind),
            rtol=0,
            atol=0,
            equal_nan=True,
        )
