"""Factorisation machine, second order: 1/2 sum_d ((sum_f v_fd)^2 - sum_f v_fd^2): [B, 1].

Rendle, 2010. Its inputs are embeddings whose fields all have one width D.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from dpiframe_core.errors import SpecError
from dpiframe_core.model.modules.base import BaseModule, Inputs, TensorInputs, Value, ViewInputs
from dpiframe_core.program import steps as p
from dpiframe_core.program.builder import ProgramBuilder
from dpiframe_core.program.views import View

if TYPE_CHECKING:
    from torch import Tensor


class FM(BaseModule):
    """No weights."""

    op: Literal["fm"] = "fm"

    def infer(self, x: Inputs) -> Value:
        dims = sorted({dim for value in x.shapes for dim in value.segments})
        if len(dims) != 1:
            raise SpecError(f"module {self.name} needs fields of one width, got widths {dims}")
        return Value((1,))

    def forward(self, weights: Mapping[str, Tensor], x: TensorInputs) -> Tensor:
        import torch

        dim = x.shapes[0].segments[0]
        v = torch.cat([value.unflatten(1, (-1, dim)) for value in x.values], dim=1)
        return 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1, keepdim=True)

    def lower(self, build: ProgramBuilder, x: ViewInputs) -> View:
        dim = x.shapes[0].segments[0]
        return build.add(p.FM(self.name, tuple(x.views), dim, build.buffer(self.name, 1)))
