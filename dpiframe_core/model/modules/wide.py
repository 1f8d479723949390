"""Wide: the linear part, sum_f w_f[id_f] + dense . w + bias: [B, 1] (Cheng et al., 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from dpiframe_core.errors import SpecError
from dpiframe_core.model.modules.base import BaseModule, Inputs, Parameter, Value, constant, normal

if TYPE_CHECKING:
    from torch import Tensor

    from dpiframe_core.model.spec import ModelSpec
    from dpiframe_core.program.builder import ProgramBuilder
    from dpiframe_core.program.steps import View


class Wide(BaseModule):
    """Weights `tables/<table>` [rows, 1], `dense` [1, W] for an input, `bias` [1] if asked."""

    op: Literal["wide"] = "wide"
    bias: bool = True

    def infer(self, spec: ModelSpec, inputs: list[Value]) -> Value:
        if len(inputs) > 1:
            raise SpecError(f"module {self.name} takes at most one input, got {len(inputs)}")
        if not spec.fields and not inputs:
            raise SpecError(f"module {self.name}: there are neither fields nor an input")
        return Value((1,))

    def parameters(self, spec: ModelSpec, inputs: list[Value]) -> dict[str, Parameter]:
        parameters = {
            f"tables/{field.table}": Parameter((field.rows, 1), normal(0.01))
            for field in spec.fields
        }
        if inputs:
            parameters["dense"] = Parameter((1, inputs[0].width), normal(0.01))
        if self.bias:
            parameters["bias"] = Parameter((1,), constant(0.0))
        return parameters

    def forward(self, weights: Mapping[str, Tensor], x: Inputs, spec: ModelSpec) -> Tensor:
        import torch
        from torch.nn import functional

        rows = [
            functional.embedding(x.ids[i], weights[f"tables/{field.table}"], sparse=x.sparse)
            for i, field in enumerate(spec.fields)
        ]
        if x.values:
            rows.append(x.values[0] @ weights["dense"].T)
        out = torch.stack(rows).sum(0)
        return out + weights["bias"] if self.bias else out

    def lower(self, build: ProgramBuilder, inputs: list[View]) -> View:
        parts = []
        if build.spec.fields:
            tables = [
                (i, build.weight_name(self, f"tables/{field.table}"))
                for i, field in enumerate(build.spec.fields)
            ]
            parts.append(build.wide_lookup(f"{self.name}.ids", tables))
        if inputs:
            weight = build.weight_name(self, "dense")
            parts.append(build.linear(f"{self.name}.dense", inputs[0], weight, None))
        bias = build.weight_name(self, "bias") if self.bias else None
        return build.add(self.name, parts, bias)
