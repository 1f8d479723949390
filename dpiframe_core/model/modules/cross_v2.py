"""Cross network of DCNv2: x_{l+1} = x0 * (W_l x_l + b_l) + x_l: [B, W] (Wang et al., 2021)."""

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


class CrossV2(BaseModule):
    """Weights `<l>/weight` [W, W], `<l>/bias` [W] for each of `layers` layers."""

    op: Literal["cross_v2"] = "cross_v2"
    layers: int = Field(ge=1, le=64)

    def infer(self, spec: ModelSpec, inputs: list[Value]) -> Value:
        return Value((self.one_input(inputs).width,))

    def parameters(self, spec: ModelSpec, inputs: list[Value]) -> dict[str, Parameter]:
        width = self.one_input(inputs).width
        parameters = {}
        for layer in range(self.layers):
            parameters[f"{layer}/weight"] = Parameter((width, width), xavier)
            parameters[f"{layer}/bias"] = Parameter((width,), constant(0.0))
        return parameters

    def forward(self, weights: Mapping[str, Tensor], x: Inputs, spec: ModelSpec) -> Tensor:
        from torch.nn import functional

        x0 = xl = x.values[0]
        for layer in range(self.layers):
            wx = functional.linear(xl, weights[f"{layer}/weight"], weights[f"{layer}/bias"])
            xl = x0 * wx + xl
        return xl

    def lower(self, build: ProgramBuilder, inputs: list[View]) -> View:
        x0 = xl = inputs[0]
        for layer in range(self.layers):
            weight = build.weight_name(self, f"{layer}/weight")
            bias = build.weight_name(self, f"{layer}/bias")
            wx = build.linear(f"{self.name}.{layer}.product", xl, weight, bias)
            xl = build.cross_combine(f"{self.name}.{layer}", x0, wx, xl)
        return xl
