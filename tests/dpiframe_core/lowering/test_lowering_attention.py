"""Attention as torch.export writes it: what lowering makes of its scales, guards and layouts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dpiframe_core import from_torch, load_engine, save_bundle
from dpiframe_core.lowering import DEVICE_PASSES, lower
from dpiframe_core.program.steps import LinearRows, TensorStep
from dpiframe_core.program.tensor_ops import Map, Softmax

FIELDS, DIM = 7, 16


class Attending(nn.Module):
    """Attention over what a mask leaves of the fields."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.masked = masked
        self.items, self.out = nn.Embedding(9, DIM), nn.Linear(DIM, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        e = self.items(x)[:, None]
        mask = (x != 0)[:, None, None, :] if self.masked else None
        found = nn.functional.scaled_dot_product_attention(e, e * 3, e, mask)
        return self.out(found[:, 0].mean(1))


class Transformer(nn.Module):
    """A layer in which torch moves the fields before the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.out = nn.Embedding(9, DIM), nn.Linear(DIM, 1)
        self.layer = nn.TransformerEncoderLayer(DIM, 2, 32, batch_first=True, norm_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(self.items(x)).mean(1))


def steps_of(model: nn.Module):
    torch.manual_seed(3)
    imported = from_torch(model.eval(), (torch.ones(2, FIELDS, dtype=torch.long),), output="logit")
    return imported, lower(imported.spec, imported.weights, DEVICE_PASSES).steps


@pytest.mark.parametrize("masked", [False, True])
def test_a_guard_is_a_part_of_its_softmax_and_scales_follow_the_product(masked, tmp_path):
    model = Attending(masked)
    imported, steps = steps_of(model)
    (softmax,) = [s.op for s in steps if isinstance(s, TensorStep) and isinstance(s.op, Softmax)]
    assert softmax.guarded
    maps = [s.op.expression for s in steps if isinstance(s, TensorStep) and isinstance(s.op, Map)]
    assert not any("-inf" in str(e) and "eq" in str(e) for e in maps)
    scaled = [e for e in maps if e[0] == "mul" and isinstance(e[2], float)]
    assert len(scaled) == (not masked)  # with a mask it is a part of the mask's map
    save_bundle(tmp_path / "b", imported.spec, imported.weights)
    x = torch.randint(0, 9, (64, FIELDS))
    x[5] = 0  # a mask leaves nothing of it
    got = load_engine(tmp_path / "b", device="cpu").logits(x.T.numpy())
    np.testing.assert_allclose(got, model(x).detach().numpy()[:, 0], 1e-5, 1e-5)


def test_a_linear_over_fields_before_the_batch_is_one_product_of_rows():
    _, steps = steps_of(Transformer())
    rows = [s for s in steps if isinstance(s, LinearRows)]
    assert rows[0].rows == FIELDS and len(rows) >= 3
