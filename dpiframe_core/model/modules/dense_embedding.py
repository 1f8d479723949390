"""Dense embedding: each dense feature as a field, v_n = x_n * w_n: [B, N*D] (FuxiCTR's way)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dpiframe_core.model.modules.base import BaseModule, Inputs, Parameter, Value, normal

if TYPE_CHECKING:
    from torch import Tensor

    from dpiframe_core.model.spec import ModelSpec
    from dpiframe_core.program.builder import ProgramBuilder
    from dpiframe_core.program.steps import View


class DenseEmbedding(BaseModule):
    """Weight `weight` [N, dim], no bias; reads the dense features [B, N]."""

    op: Literal["dense_embedding"] = "dense_embedding"
    dim: int = Field(ge=1, le=4096)

    def infer(self, spec: ModelSpec, inputs: list[Value]) -> Value:
        return Value((self.dim,) * self.one_input(inputs).width)

    def parameters(self, spec: ModelSpec, inputs: list[Value]) -> dict[str, Parameter]:
        return {"weight": Parameter((self.one_input(inputs).width, self.dim), normal(0.01))}

    def forward(self, weights: Mapping[str, Tensor], x: Inputs, spec: ModelSpec) -> Tensor:
        return (x.values[0].unsqueeze(2) * weights["weight"]).flatten(1)

    def lower(self, build: ProgramBuilder, inputs: list[View]) -> View:
        return build.outer(self.name, inputs[0], build.weight_name(self, "weight"))
