"""What every module of a spec is: shapes, parameters, the reference computation, the lowering."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from dpiframe_core.errors import SpecError

if TYPE_CHECKING:
    from torch import Tensor

    from dpiframe_core.model.spec import ModelSpec
    from dpiframe_core.program.builder import ProgramBuilder
    from dpiframe_core.program.steps import View

DENSE = "dense"  # the name under which modules read the dense features [B, N]

ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_\-]*$")]


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
    """What a module's reference computation sees: its inputs [B, W_i], the ids [F, B]."""

    values: list[Tensor]
    ids: Tensor
    training: bool
    sparse: bool = False  # gradients of tables are sparse (for torch.optim.SparseAdam)


class SpecPart(BaseModel):
    """Plain data of a spec: frozen, no unknown keys. SpecError says what does not fit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise SpecError(problems(error)) from None


def problems(error: ValidationError) -> str:
    """What pydantic found, in one line: `place: what is wrong; place: ...`."""
    lines = []
    for found in error.errors():
        place = ".".join(map(str, found["loc"]))
        text = found["msg"].removeprefix("Value error, ")
        lines.append(f"{place}: {text}" if place else text)
    return "; ".join(lines)


class BaseModule(SpecPart):
    """One node of the model graph; subclasses live one a file and are listed in `modules`."""

    name: ModuleName
    inputs: tuple[str, ...] = ()

    def infer(self, spec: ModelSpec, inputs: list[Value]) -> Value:
        """Shape of the output, or SpecError when the inputs do not fit."""
        raise NotImplementedError

    def parameters(self, spec: ModelSpec, inputs: list[Value]) -> dict[str, Parameter]:
        """Weights by their name inside the module."""
        return {}

    def forward(self, weights: Mapping[str, Tensor], x: Inputs, spec: ModelSpec) -> Tensor:
        """The unlowered computation with plain torch operations: [B, W_i] -> [B, width]."""
        raise NotImplementedError

    def lower(self, build: ProgramBuilder, inputs: list[View]) -> View:
        """Append the steps of this module to a program; return where its output lies."""
        raise NotImplementedError

    def one_input(self, inputs: list[Value]) -> Value:
        """The only input, or SpecError."""
        if len(inputs) != 1:
            raise SpecError(f"module {self.name} takes one input, got {len(inputs)}")
        if inputs[0].width == 0:
            raise SpecError(f"module {self.name}: its input {self.inputs[0]} is 0 wide")
        return inputs[0]


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
    """torch.nn.init. Who only asks a spec for its shapes need not wait for torch."""
    from torch.nn import init

    return init
