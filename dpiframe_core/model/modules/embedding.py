"""Embedding: one row of each field's table, laid side by side: [B, sum of dims]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from dpiframe_core.errors import SpecError
from dpiframe_core.model.modules.base import BaseModule, Inputs, Parameter, Value, normal

if TYPE_CHECKING:
    from torch import Tensor

    from dpiframe_core.model.spec import FieldSpec, ModelSpec
    from dpiframe_core.program.builder import ProgramBuilder
    from dpiframe_core.program.steps import View


class Embedding(BaseModule):
    """Weights `tables/<table>` [rows, dim]. `fields`: names in output order (default: all)."""

    op: Literal["embedding"] = "embedding"
    fields: tuple[str, ...] = ()

    def picked(self, spec: ModelSpec) -> list[tuple[int, FieldSpec]]:
        """The fields looked up, each with its position among the spec's ids."""
        index = {field.name: i for i, field in enumerate(spec.fields)}
        names = self.fields or tuple(index)
        for name in names:
            if name not in index:
                raise SpecError(f"module {self.name}: there is no field {name!r}")
        if not names:
            raise SpecError(f"module {self.name}: the spec has no fields to look up")
        return [(index[name], spec.fields[index[name]]) for name in names]

    def infer(self, spec: ModelSpec, inputs: list[Value]) -> Value:
        if inputs:
            raise SpecError(f"module {self.name} reads the ids and takes no other input")
        return Value(tuple(field.dim for _, field in self.picked(spec)))

    def parameters(self, spec: ModelSpec, inputs: list[Value]) -> dict[str, Parameter]:
        return {
            f"tables/{field.table}": Parameter((field.rows, field.dim), normal(0.01))
            for _, field in self.picked(spec)
        }

    def forward(self, weights: Mapping[str, Tensor], x: Inputs, spec: ModelSpec) -> Tensor:
        import torch
        from torch.nn import functional

        rows = [
            functional.embedding(x.ids[i], weights[f"tables/{field.table}"], sparse=x.sparse)
            for i, field in self.picked(spec)
        ]
        return torch.cat(rows, dim=1)

    def lower(self, build: ProgramBuilder, inputs: list[View]) -> View:
        rows = [
            (i, build.weight_name(self, f"tables/{field.table}"), field.dim)
            for i, field in self.picked(build.spec)
        ]
        return build.lookup(self.name, rows)
