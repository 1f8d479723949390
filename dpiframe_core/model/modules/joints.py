"""The modules that join branches: concat, add, linear (the head is a linear of 1 unit)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dpiframe_core.errors import SpecError
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


class Concat(BaseModule):
    """Inputs side by side, in order: [B, sum of widths]. An input 0 wide adds nothing."""

    op: Literal["concat"] = "concat"

    def infer(self, x: Inputs) -> Value:
        if not x.shapes:
            raise SpecError(f"module {self.name} needs at least one input")
        return Value(tuple(width for value in x.shapes for width in value.segments if width))

    def forward(self, weights: Mapping[str, Tensor], x: TensorInputs) -> Tensor:
        import torch

        return torch.cat(x.values, dim=1)

    def lower(self, build: ProgramBuilder, x: ViewInputs) -> View:
        out, column = build.buffer(self.name, sum(view.width for view in x.views)), 0
        for i, view in enumerate(x.views):
            if view.width:
                build.add(p.Copy(f"{self.name}.{i}", view, out.columns(column, view.width)))
            column += view.width
        return out


class Add(BaseModule):
    """Sum of inputs of one width: [B, W]."""

    op: Literal["add"] = "add"

    def infer(self, x: Inputs) -> Value:
        widths = sorted({value.width for value in x.shapes})
        if len(widths) != 1:
            raise SpecError(f"module {self.name} needs inputs of one width, got widths {widths}")
        return Value((widths[0],))

    def forward(self, weights: Mapping[str, Tensor], x: TensorInputs) -> Tensor:
        import torch

        return torch.stack(x.values).sum(0)

    def lower(self, build: ProgramBuilder, x: ViewInputs) -> View:
        out = build.buffer(self.name, x.views[0].width)
        return build.add(p.Add(self.name, tuple(x.views), None, out))


class Linear(BaseModule):
    """x W^T + b: weights `weight` [units, W], `bias` [units] if asked: [B, units]."""

    op: Literal["linear"] = "linear"
    units: int = Field(default=1, ge=1, le=65536)
    bias: bool = True

    def infer(self, x: Inputs) -> Value:
        self.one_input(x)
        return Value((self.units,))

    def parameters(self, x: Inputs) -> dict[str, Parameter]:
        width = self.one_input(x).width
        parameters = {"weight": Parameter((self.units, width), xavier)}
        if self.bias:
            parameters["bias"] = Parameter((self.units,), constant(0.0))
        return parameters

    def forward(self, weights: Mapping[str, Tensor], x: TensorInputs) -> Tensor:
        from torch.nn import functional

        return functional.linear(x.values[0], weights["weight"], weights.get("bias"))

    def lower(self, build: ProgramBuilder, x: ViewInputs) -> View:
        bias = self.weight("bias") if self.bias else None
        out = build.buffer(self.name, self.units)
        return build.add(p.Linear(self.name, x.views[0], self.weight("weight"), bias, out))
