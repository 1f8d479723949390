"""Factorisation machine, second order: 1/2 sum_d ((sum_f v_fd)^2 - sum_f v_fd^2): [B, 1].

Rendle, 2010. Its inputs are embeddings whose fields all have one width D.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from dpiframe_core.errors import SpecError
from dpiframe_core.model.modules.base import BaseModule, Inputs, Value

if TYPE_CHECKING:
    from torch import Tensor

    from dpiframe_core.model.spec import ModelSpec
    from dpiframe_core.program.builder import ProgramBuilder
    from dpiframe_core.program.steps import View


class FM(BaseModule):
    """No weights."""

    op: Literal["fm"] = "fm"

    def infer(self, spec: ModelSpec, inputs: list[Value]) -> Value:
        dims = sorted({dim for value in inputs for dim in value.segments})
        if len(dims) != 1:
            raise SpecError(f"module {self.name} needs fields of one width, got widths {dims}")
        return Value((1,))

    def forward(self, weights: Mapping[str, Tensor], x: Inputs, spec: ModelSpec) -> Tensor:
        import torch

        dim = spec.values()[self.inputs[0]].segments[0]
        v = torch.cat([value.unflatten(1, (-1, dim)) for value in x.values], dim=1)
        return 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1, keepdim=True)

    def lower(self, build: ProgramBuilder, inputs: list[View]) -> View:
        dim = build.spec.values()[self.inputs[0]].segments[0]
        return build.fm(self.name, inputs, dim)
