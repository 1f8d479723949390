"""Wide: the linear part, sum_f w_f[id_f] + dense . w + bias: [B, 1] (Cheng et al., 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from dpiframe_core.errors import SpecError
from dpiframe_core.model.fields import FieldSpec, Name
from dpiframe_core.model.modules.base import (
    BaseModule,
    Inputs,
    Parameter,
    TensorInputs,
    Value,
    ViewInputs,
    constant,
    normal,
)
from dpiframe_core.model.modules.picked import picked_fields
from dpiframe_core.program import steps as p
from dpiframe_core.program.builder import ProgramBuilder
from dpiframe_core.program.views import View

if TYPE_CHECKING:
    from torch import Tensor


class Wide(BaseModule):
    """Weights `tables/<table>` [rows, 1], `dense` [1, W] for an input, `bias` [1] if asked.

    `fields`: names of those in it (default: all), `tables`: those looked up in, if not their own.
    """

    op: Literal["wide"] = "wide"
    bias: bool = True
    fields: tuple[str, ...] = ()
    tables: tuple[Name, ...] = ()

    def picked(self, fields: tuple[FieldSpec, ...]) -> list[tuple[int, FieldSpec]]:
        """The fields in it, each with its position among the ids."""
        return picked_fields(self.name, fields, self.fields, self.tables, ())

    def infer(self, x: Inputs) -> Value:
        if len(x.shapes) > 1:
            raise SpecError(f"module {self.name} takes at most one input, got {len(x.shapes)}")
        if not x.fields and not x.shapes:
            raise SpecError(f"module {self.name}: there are neither fields nor an input")
        return Value((1,))

    def parameters(self, x: Inputs) -> dict[str, Parameter]:
        parameters = {
            f"tables/{field.table}": Parameter((field.rows, 1), normal(0.01))
            for _, field in self.picked(x.fields)
        }
        if x.shapes:
            parameters["dense"] = Parameter((1, x.shapes[0].width), normal(0.01))
        if self.bias:
            parameters["bias"] = Parameter((1,), constant(0.0))
        return parameters

    def forward(self, weights: Mapping[str, Tensor], x: TensorInputs) -> Tensor:
        import torch
        from torch.nn import functional

        terms = [
            functional.embedding(x.ids[i], weights[f"tables/{field.table}"], sparse=x.sparse)
            for i, field in self.picked(x.fields)
        ]
        if x.values:
            terms.append(x.values[0] @ weights["dense"].T)
        out = torch.stack(terms).sum(0)
        return out + weights["bias"] if self.bias else out

    def lower(self, build: ProgramBuilder, x: ViewInputs) -> View:
        parts = []
        if x.fields:
            name = f"{self.name}.ids"
            slots = tuple(
                p.Slot(i, None, 0, 0, wide=self.weight(f"tables/{field.table}"))
                for i, field in self.picked(x.fields)
            )
            parts.append(build.add(p.Lookup(name, slots, None, wide_out=build.buffer(name, 1))))
        if x.views:
            name, weight = f"{self.name}.dense", self.weight("dense")
            out = build.buffer(name, 1)
            parts.append(build.add(p.Linear(name, x.views[0], weight, None, out)))
        bias = self.weight("bias") if self.bias else None
        return build.add(p.Add(self.name, tuple(parts), bias, build.buffer(self.name, 1)))
