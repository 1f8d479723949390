"""Embedding: one embedding row of each field's table, laid side by side: [B, sum of dims]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from dpiframe_core.errors import SpecError
from dpiframe_core.model.fields import FieldSpec, Name
from dpiframe_core.model.modules.base import (
    BaseModule,
    Inputs,
    Parameter,
    TensorInputs,
    Value,
    ViewInputs,
    normal,
)
from dpiframe_core.model.modules.picked import picked_fields
from dpiframe_core.program import steps as p
from dpiframe_core.program.builder import ProgramBuilder
from dpiframe_core.program.views import View

if TYPE_CHECKING:
    from torch import Tensor


class Embedding(BaseModule):
    """Weights `tables/<table>` [rows, dim]. `fields`: names in output order (default: all);
    `dims` and `tables`, if given, say for each of them what is looked up in place of its own.
    """

    op: Literal["embedding"] = "embedding"
    fields: tuple[str, ...] = ()
    dims: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = ()
    tables: tuple[Name, ...] = ()

    def picked(self, fields: tuple[FieldSpec, ...]) -> list[tuple[int, FieldSpec]]:
        """The fields looked up, as this module does, each with its position among the ids."""
        found = picked_fields(self.name, fields, self.fields, self.tables, self.dims)
        if not found:
            raise SpecError(f"module {self.name}: the spec has no fields to look up")
        return found

    def infer(self, x: Inputs) -> Value:
        if x.shapes:
            raise SpecError(f"module {self.name} reads the ids and takes no other input")
        return Value(tuple(field.dim for _, field in self.picked(x.fields)))

    def parameters(self, x: Inputs) -> dict[str, Parameter]:
        return {
            f"tables/{field.table}": Parameter((field.rows, field.dim), normal(0.01))
            for _, field in self.picked(x.fields)
        }

    def forward(self, weights: Mapping[str, Tensor], x: TensorInputs) -> Tensor:
        import torch
        from torch.nn import functional

        found = [
            functional.embedding(x.ids[i], weights[f"tables/{field.table}"], sparse=x.sparse)
            for i, field in self.picked(x.fields)
        ]
        return torch.cat(found, dim=1)

    def lower(self, build: ProgramBuilder, x: ViewInputs) -> View:
        slots, column = [], 0
        for i, field in self.picked(x.fields):
            slots.append(p.Slot(i, self.weight(f"tables/{field.table}"), field.dim, column))
            column += field.dim
        return build.add(p.Lookup(self.name, tuple(slots), build.buffer(self.name, column)))
