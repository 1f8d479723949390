"""Cross network of DCN: x_{l+1} = x0 (x_l . w_l) + b_l + x_l: [B, W] (Wang et al., 2017)."""

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
    constant,
    xavier,
)
from dpiframe_core.program import steps as p
from dpiframe_core.program.builder import ProgramBuilder
from dpiframe_core.program.views import View

if TYPE_CHECKING:
    from torch import Tensor


class CrossV1(BaseModule):
    """Weights `<l>/weight` [1, W], `<l>/bias` [W] for each of `layers` layers."""

    op: Literal["cross_v1"] = "cross_v1"
    layers: int = Field(ge=1, le=64)

    def infer(self, x: Inputs) -> Value:
        return Value((self.one_input(x).width,))

    def parameters(self, x: Inputs) -> dict[str, Parameter]:
        width = self.one_input(x).width
        parameters = {}
        for layer in range(self.layers):
            parameters[f"{layer}/weight"] = Parameter((1, width), xavier)
            parameters[f"{layer}/bias"] = Parameter((width,), constant(0.0))
        return parameters

    def forward(self, weights: Mapping[str, Tensor], x: TensorInputs) -> Tensor:
        x0 = xl = x.values[0]
        for layer in range(self.layers):
            xl = x0 * (xl @ weights[f"{layer}/weight"].T) + weights[f"{layer}/bias"] + xl
        return xl

    def lower(self, build: ProgramBuilder, x: ViewInputs) -> View:
        x0 = xl = x.views[0]
        for layer in range(self.layers):
            name = f"{self.name}.{layer}"
            weight, bias = self.weight(f"{layer}/weight"), self.weight(f"{layer}/bias")
            xl = build.add(p.CrossV1(name, x0, xl, weight, bias, build.buffer(name, x0.width)))
        return xl
