"""Cross network of DCNv2: x_{l+1} = x0 * (W_l x_l + b_l) + x_l: [B, W] (Wang et al., 2021)."""

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


class CrossV2(BaseModule):
    """Weights `<l>/weight` [W, W], `<l>/bias` [W] for each of `layers` layers."""

    op: Literal["cross_v2"] = "cross_v2"
    layers: int = Field(ge=1, le=64)

    def infer(self, x: Inputs) -> Value:
        return Value((self.one_input(x).width,))

    def parameters(self, x: Inputs) -> dict[str, Parameter]:
        width = self.one_input(x).width
        parameters = {}
        for layer in range(self.layers):
            parameters[f"{layer}/weight"] = Parameter((width, width), xavier)
            parameters[f"{layer}/bias"] = Parameter((width,), constant(0.0))
        return parameters

    def forward(self, weights: Mapping[str, Tensor], x: TensorInputs) -> Tensor:
        from torch.nn import functional

        x0 = xl = x.values[0]
        for layer in range(self.layers):
            wx = functional.linear(xl, weights[f"{layer}/weight"], weights[f"{layer}/bias"])
            xl = x0 * wx + xl
        return xl

    def lower(self, build: ProgramBuilder, x: ViewInputs) -> View:
        x0 = xl = x.views[0]
        for layer in range(self.layers):
            name = f"{self.name}.{layer}"
            weight, bias = self.weight(f"{layer}/weight"), self.weight(f"{layer}/bias")
            out = build.buffer(f"{name}.product", x0.width)
            wx = build.add(p.Linear(out.buffer, xl, weight, bias, out))
            xl = build.add(p.CrossCombine(name, x0, wx, xl, build.buffer(name, x0.width)))
        return xl
