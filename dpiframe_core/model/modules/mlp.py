"""MLP: linear, batch normalisation if asked, ReLU, for each hidden width: [B, H_last]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

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

Width = Annotated[int, Field(ge=1, le=65536)]


class MLP(BaseModule):
    """Weights `<l>/weight` [H, W], `<l>/bias` [H]; with batch normalisation also
    `<l>/bn/{weight,bias,mean,var}` [H]. `dropout` acts in training alone.
    """

    op: Literal["mlp"] = "mlp"
    hidden: tuple[Width, ...] = Field(min_length=1)
    batch_norm: bool = False
    batch_norm_eps: float = Field(default=1e-5, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def infer(self, x: Inputs) -> Value:
        self.one_input(x)
        return Value((self.hidden[-1],))

    def parameters(self, x: Inputs) -> dict[str, Parameter]:
        parameters, width = {}, self.one_input(x).width
        for layer, units in enumerate(self.hidden):
            parameters[f"{layer}/weight"] = Parameter((units, width), xavier)
            parameters[f"{layer}/bias"] = Parameter((units,), constant(0.0))
            if self.batch_norm:
                parameters[f"{layer}/bn/weight"] = Parameter((units,), constant(1.0))
                parameters[f"{layer}/bn/bias"] = Parameter((units,), constant(0.0))
                parameters[f"{layer}/bn/mean"] = Parameter((units,), constant(0.0), False)
                parameters[f"{layer}/bn/var"] = Parameter((units,), constant(1.0), False)
            width = units
        return parameters

    def forward(self, weights: Mapping[str, Tensor], x: TensorInputs) -> Tensor:
        import torch
        from torch.nn import functional

        h = x.values[0]
        for layer in range(len(self.hidden)):
            h = functional.linear(h, weights[f"{layer}/weight"], weights[f"{layer}/bias"])
            if self.batch_norm:
                bn = [weights[f"{layer}/bn/{part}"] for part in ("mean", "var", "weight", "bias")]
                h = functional.batch_norm(
                    h, bn[0], bn[1], bn[2], bn[3], x.training, 0.1, self.batch_norm_eps
                )
            h = functional.dropout(torch.relu(h), self.dropout, x.training)
        return h

    def lower(self, build: ProgramBuilder, x: ViewInputs) -> View:
        h = x.views[0]
        for layer, units in enumerate(self.hidden):
            name, weight = f"{self.name}.{layer}", self.weight(f"{layer}/weight")
            bias, out = self.weight(f"{layer}/bias"), build.buffer(name, units)
            h = build.add(p.Linear(name, h, weight, bias, out))
            if self.batch_norm:
                name = f"{self.name}.{layer}.bn"
                parts = [self.weight(f"{layer}/bn/{n}") for n in ("weight", "bias", "mean", "var")]
                out = build.buffer(name, units)
                h = build.add(p.BatchNorm(name, h, tuple(parts), self.batch_norm_eps, out))
            name = f"{self.name}.{layer}.relu"
            h = build.add(p.Relu(name, h, build.buffer(name, units)))
        return h
