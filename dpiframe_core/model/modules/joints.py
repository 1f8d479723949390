"""The modules that join branches: concat, add, linear (the head is a linear of 1 unit)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dpiframe_core.errors import SpecError
from dpiframe_core.model.modules.base import BaseModule, Inputs, Parameter, Value, constant, xavier

if TYPE_CHECKING:
    from torch import Tensor

    from dpiframe_core.model.spec import ModelSpec
    from dpiframe_core.program.builder import ProgramBuilder
    from dpiframe_core.program.steps import View


class Concat(BaseModule):
    """Inputs side by side, in order: [B, sum of widths]. An input 0 wide adds nothing."""

    op: Literal["concat"] = "concat"

    def infer(self, spec: ModelSpec, inputs: list[Value]) -> Value:
        if not inputs:
            raise SpecError(f"module {self.name} needs at least one input")
        return Value(tuple(width for value in inputs for width in value.segments if width))

    def forward(self, weights: Mapping[str, Tensor], x: Inputs, spec: ModelSpec) -> Tensor:
        import torch

        return torch.cat(x.values, dim=1)

    def lower(self, build: ProgramBuilder, inputs: list[View]) -> View:
        return build.concat(self.name, inputs)


class Add(BaseModule):
    """Sum of inputs of one width: [B, W]."""

    op: Literal["add"] = "add"

    def infer(self, spec: ModelSpec, inputs: list[Value]) -> Value:
        widths = sorted({value.width for value in inputs})
        if len(widths) != 1:
            raise SpecError(f"module {self.name} needs inputs of one width, got widths {widths}")
        return Value((widths[0],))

    def forward(self, weights: Mapping[str, Tensor], x: Inputs, spec: ModelSpec) -> Tensor:
        import torch

        return torch.stack(x.values).sum(0)

    def lower(self, build: ProgramBuilder, inputs: list[View]) -> View:
        return build.add(self.name, inputs, None)


class Linear(BaseModule):
    """x W^T + b: weights `weight` [units, W], `bias` [units] if asked: [B, units]."""

    op: Literal["linear"] = "linear"
    units: int = Field(default=1, ge=1, le=65536)
    bias: bool = True

    def infer(self, spec: ModelSpec, inputs: list[Value]) -> Value:
        self.one_input(inputs)
        return Value((self.units,))

    def parameters(self, spec: ModelSpec, inputs: list[Value]) -> dict[str, Parameter]:
        width = self.one_input(inputs).width
        parameters = {"weight": Parameter((self.units, width), xavier)}
        if self.bias:
            parameters["bias"] = Parameter((self.units,), constant(0.0))
        return parameters

    def forward(self, weights: Mapping[str, Tensor], x: Inputs, spec: ModelSpec) -> Tensor:
        from torch.nn import functional

        return functional.linear(x.values[0], weights["weight"], weights.get("bias"))

    def lower(self, build: ProgramBuilder, inputs: list[View]) -> View:
        bias = build.weight_name(self, "bias") if self.bias else None
        return build.linear(self.name, inputs[0], build.weight_name(self, "weight"), bias)
