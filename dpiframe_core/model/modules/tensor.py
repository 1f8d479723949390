"""Tensor: one generic operation over per-sample tensors, for what no other module computes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from dpiframe_core.errors import SpecError
from dpiframe_core.model.modules.base import (
    BaseModule,
    Inputs,
    Parameter,
    TensorInputs,
    Value,
    ViewInputs,
    normal,
)
from dpiframe_core.program import steps as p
from dpiframe_core.program.builder import ProgramBuilder
from dpiframe_core.program.tensor_ops import Operand, TensorOp, check_elements
from dpiframe_core.program.views import View

if TYPE_CHECKING:
    from torch import Tensor as TorchTensor


class Tensor(BaseModule):
    """`compute` of tensors that `operands` read from the inputs and then from weights `0`, `1`, ...
    whose shapes are `constants`: [B, size of its result].
    """

    op: Literal["tensor"] = "tensor"
    compute: Annotated[TensorOp, Field(discriminator="kind")]
    operands: tuple[Operand, ...] = Field(min_length=1)
    constants: tuple[tuple[int, ...], ...] = ()

    def infer(self, x: Inputs) -> Value:
        widths = [value.width for value in x.shapes] + [math.prod(c) for c in self.constants]
        if len(widths) != len(self.operands):
            raise SpecError(
                f"module {self.name} reads {len(self.operands)} operands of {len(widths)} inputs"
            )
        for i, (operand, width) in enumerate(zip(self.operands, widths, strict=True)):
            if operand.end > width:
                raise SpecError(
                    f"module {self.name}: operand {i} reads column {operand.end - 1} of {width}"
                )
        try:
            for i, (operand, width) in enumerate(zip(self.operands, widths, strict=True)):
                operand.check_size(width if i >= len(x.shapes) else 0)
            shape = self.compute.shape(self.operands)
            check_elements(shape)
            return Value((math.prod(shape),))
        except ValueError as error:
            raise SpecError(f"module {self.name}: {error}") from None

    def parameters(self, x: Inputs) -> dict[str, Parameter]:
        return {str(i): Parameter(shape, normal(0.01)) for i, shape in enumerate(self.constants)}

    def forward(self, weights: Mapping[str, TorchTensor], x: TensorInputs) -> TorchTensor:
        tensors = [*x.values]
        tensors += [weights[str(i)].reshape(1, -1) for i in range(len(self.constants))]
        read = [o.read(tensor) for o, tensor in zip(self.operands, tensors, strict=True)]
        found = self.compute.compute(read)
        return found.expand(x.ids.shape[1], *found.shape[1:]).reshape(x.ids.shape[1], -1)

    def lower(self, build: ProgramBuilder, x: ViewInputs) -> View:
        out = build.buffer(self.name, math.prod(self.compute.shape(self.operands)))
        constants = tuple(self.weight(str(i)) for i in range(len(self.constants)))
        return build.add(
            p.TensorStep(self.name, self.compute, tuple(x.views), constants, self.operands, out)
        )
