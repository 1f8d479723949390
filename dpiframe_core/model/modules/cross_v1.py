"""Cross network of DCN: x_{l+1} = x0 (x_l . w_l) + b_l + x_l: [B, W] (Wang et al., 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dpiframe_core.model.modules.base import BaseModule, Inputs, Parameter, Value, constant, xavier

if TYPE_CHECKING:
    from torch import Tensor

    from dpiframe_core.model.spec import ModelSpec
    from dpiframe_core.program.builder import ProgramBuilder
    from dpiframe_core.program.steps import View


class CrossV1(BaseModule):
    """Weights `<l>/weight` [1, W], `<l>/bias` [W] for each of `layers` layers."""

    op: Literal["cross_v1"] = "cross_v1"
    layers: int = Field(ge=1, le=64)

    def infer(self, spec: ModelSpec, inputs: list[Value]) -> Value:
        return Value((self.one_input(inputs).width,))

    def parameters(self, spec: ModelSpec, inputs: list[Value]) -> dict[str, Parameter]:
        width = self.one_input(inputs).width
        parameters = {}
        for layer in range(self.layers):
            parameters[f"{layer}/weight"] = Parameter((1, width), xavier)
            parameters[f"{layer}/bias"] = Parameter((width,), constant(0.0))
        return parameters

    def forward(self, weights: Mapping[str, Tensor], x: Inputs, spec: ModelSpec) -> Tensor:
        x0 = xl = x.values[0]
        for layer in range(self.layers):
            xl = x0 * (xl @ weights[f"{layer}/weight"].T) + weights[f"{layer}/bias"] + xl
        return xl

    def lower(self, build: ProgramBuilder, inputs: list[View]) -> View:
        x0 = xl = inputs[0]
        for layer in range(self.layers):
            weight = build.weight_name(self, f"{layer}/weight")
            bias = build.weight_name(self, f"{layer}/bias")
            xl = build.cross_v1(f"{self.name}.{layer}", x0, xl, weight, bias)
        return xl
