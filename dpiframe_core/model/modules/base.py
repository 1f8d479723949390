"""What every module of a spec is: shapes, parameters, the reference computation, the lowering."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import StringConstraints

from dpiframe_core.errors import SpecError
from dpiframe_core.model.fields import NAME_PATTERN, FieldSpec, SpecPart
from dpiframe_core.program.builder import ProgramBuilder
from dpiframe_core.program.views import View, Weight

if TYPE_CHECKING:
    from torch import Tensor

ModuleName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]


@dataclass(frozen=True)
class Value:
    """A module's output [B, width]: columns cut into segments (for embeddings, one a field)."""

    segments: tuple[int, ...]

    @property
    def width(self) -> int:
        """Columns in all."""
        return sum(self.segments)


@dataclass(frozen=True)
class Parameter:
    """A weight's shape, how training starts it, and whether training changes it."""

    shape: tuple[int, ...]
    init: Callable[[Tensor], Any]
    trainable: bool = True


@dataclass(frozen=True)
class Inputs:
    """What a module reads: the spec's fields, whose ids it may look up, and its inputs' shapes."""

    fields: tuple[FieldSpec, ...]
    shapes: list[Value]


@dataclass(frozen=True)
class TensorInputs(Inputs):
    """What the reference computation reads: inputs [B, W_i] and ids [F, B]."""

    values: list[Tensor]
    ids: Tensor
    training: bool
    sparse: bool = False  # gradients of tables are sparse (for torch.optim.SparseAdam)


@dataclass(frozen=True)
class ViewInputs(Inputs):
    """What lowering reads: where the inputs are in the program."""

    views: list[View]


class BaseModule(SpecPart):
    """One node of the model graph; subclasses live one a file and are listed in `modules`."""

    name: ModuleName
    inputs: tuple[str, ...] = ()

    def infer(self, x: Inputs) -> Value:
        """Shape of the output, or SpecError when the inputs do not fit."""
        raise NotImplementedError

    def parameters(self, x: Inputs) -> dict[str, Parameter]:
        """Weights by their name inside the module."""
        return {}

    def forward(self, weights: Mapping[str, Tensor], x: TensorInputs) -> Tensor:
        """The unlowered computation with plain torch operations: [B, W_i] -> [B, width]."""
        raise NotImplementedError

    def lower(self, build: ProgramBuilder, x: ViewInputs) -> View:
        """Append the steps of this module to a program; returns where its output is."""
        raise NotImplementedError

    def weight(self, part: str) -> Weight:
        """The program's name of a weight of this module."""
        return Weight(f"{self.name}/{part}")

    def one_input(self, x: Inputs) -> Value:
        """The only input, or SpecError."""
        if len(x.shapes) != 1:
            raise SpecError(f"module {self.name} takes one input, got {len(x.shapes)}")
        if x.shapes[0].width == 0:
            raise SpecError(f"module {self.name}: its input {self.inputs[0]} is 0 wide")
        return x.shapes[0]


def normal(std: float) -> Callable[[Tensor], Any]:
    """Start a weight from N(0, std^2)."""
    return lambda t: _init().normal_(t, std=std)


def xavier(t: Tensor) -> Any:
    """Start a matrix from Glorot's normal distribution."""
    return _init().xavier_normal_(t)


def constant(value: float) -> Callable[[Tensor], Any]:
    """Start a weight from one value."""
    return lambda t: _init().constant_(t, value)


def _init() -> Any:
    """torch.nn.init, imported late: shapes alone are known without torch."""
    from torch.nn import init

    return init
