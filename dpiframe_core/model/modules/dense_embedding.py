"""Dense embedding: each dense feature as a field, v_n = x_n * w_n: [B, N*D] (FuxiCTR's way)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dpiframe_core.model.modules.base import (
    BaseModule,
    Inputs,
    Parameter,
    TensorInputs,
    Value,
    ViewInputs,
    normal,
)
from dpiframe_core.program import steps as p
from dpiframe_core.program.builder import ProgramBuilder
from dpiframe_core.program.views import View

if TYPE_CHECKING:
    from torch import Tensor


class DenseEmbedding(BaseModule):
    """Weight `weight` [N, dim], no bias; reads the dense features [B, N]."""

    op: Literal["dense_embedding"] = "dense_embedding"
    dim: int = Field(ge=1, le=4096)

    def infer(self, x: Inputs) -> Value:
        return Value((self.dim,) * self.one_input(x).width)

    def parameters(self, x: Inputs) -> dict[str, Parameter]:
        return {"weight": Parameter((self.one_input(x).width, self.dim), normal(0.01))}

    def forward(self, weights: Mapping[str, Tensor], x: TensorInputs) -> Tensor:
        return (x.values[0].unsqueeze(2) * weights["weight"]).flatten(1)

    def lower(self, build: ProgramBuilder, x: ViewInputs) -> View:
        dense = x.views[0]
        out = build.buffer(self.name, dense.width * self.dim)
        return build.add(p.Outer(self.name, dense, self.weight("weight"), out))
