"""What of the JSON in a .pt2 archive is read: torch's export schema, major version 8.

The field names are those of torch/_export/serde/schema.py. Parts that do not matter here are left
out, and keys that a later minor version added are passed over; of what is a union (one key says
which of many), any other key is refused, as what it means is unknown.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MOST_NODES = 50_000
MOST_VALUES = 4 * MOST_NODES
_NOT_FINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}

Int = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Length = Annotated[int, Field(ge=0, lt=2**63)]
# JSON has no number for what is not finite: torch writes a string.
Float = Annotated[float, BeforeValidator(lambda x: _NOT_FINITE.get(x, x) if type(x) is str else x)]


class Part(BaseModel):
    """A dataclass of the schema."""

    model_config = ConfigDict(strict=True, frozen=True)


class Union(BaseModel):
    """A union of the schema: one key, which says the kind, and its value."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.model_fields_set) != 1 or self.value is None:
            raise ValueError("must have exactly one key, with a value")
        return self

    @property
    def kind(self) -> str:
        return next(iter(self.model_fields_set))

    @property
    def value(self) -> Any:
        return getattr(self, self.kind)


class Named(Part):
    """A tensor, by the name of the value."""

    name: str


class Device(Part):
    type: str


class SymExpr(Part):
    expr_str: str


class SymInt(Union):
    as_expr: SymExpr | None = None
    as_int: Int | None = None


class TensorMeta(Part):
    dtype: Int
    sizes: Annotated[list[SymInt], Field(max_length=64)]
    strides: Annotated[list[SymInt], Field(max_length=64)]
    storage_offset: SymInt
    layout: Int


class SymIntArgument(Union):
    as_name: str | None = None
    as_int: Int | None = None


class SymFloatArgument(Union):
    as_name: str | None = None
    as_float: Float | None = None


class SymBoolArgument(Union):
    as_name: str | None = None
    as_bool: bool | None = None


class OptionalTensor(Union):
    as_tensor: Named | None = None
    as_none: bool | None = None


class Argument(Union):
    """An argument or a result of a node. Kinds that are not listed are read, and refused where
    they are used: the node that has one can then be named."""

    model_config = ConfigDict(extra="allow")

    as_none: bool | None = None
    as_tensor: Named | None = None
    as_tensors: list[Named] | None = None
    as_int: Int | None = None
    as_ints: list[Int] | None = None
    as_float: Float | None = None
    as_floats: list[Float] | None = None
    as_string: str | None = None
    as_strings: list[str] | None = None
    as_sym_int: SymIntArgument | None = None
    as_sym_ints: list[SymIntArgument] | None = None
    as_sym_float: SymFloatArgument | None = None
    as_sym_floats: list[SymFloatArgument] | None = None
    as_sym_bool: SymBoolArgument | None = None
    as_sym_bools: list[SymBoolArgument] | None = None
    as_bool: bool | None = None
    as_bools: list[bool] | None = None
    as_scalar_type: Int | None = None
    as_memory_format: Int | None = None
    as_layout: Int | None = None
    as_device: Device | None = None
    as_optional_tensor: OptionalTensor | None = None
    as_optional_tensors: list[OptionalTensor] | None = None


class NamedArgument(Part):
    """`kind`: 1 positional, 2 by keyword."""

    name: str
    arg: Argument
    kind: Int | None = None


class Node(Part):
    target: str
    inputs: list[NamedArgument]
    outputs: list[Argument]
    metadata: dict[str, str]


class Graph(Part):
    inputs: Annotated[list[Argument], Field(max_length=MOST_VALUES)]
    outputs: Annotated[list[Argument], Field(max_length=MOST_VALUES)]
    nodes: Annotated[list[Node], Field(max_length=MOST_NODES)]
    tensor_values: dict[str, TensorMeta]


class UserInput(Part):
    arg: Argument


class ParameterInput(Part):
    arg: Named
    parameter_name: str


class BufferInput(Part):
    arg: Named
    buffer_name: str


class ConstantInput(Part):
    arg: Named
    tensor_constant_name: str


class FixedInput(Part):
    """An argument of `forward` that is no tensor: the program was made for its value."""

    name: str


class InputSpec(Union):
    model_config = ConfigDict(extra="allow")

    user_input: UserInput | None = None
    parameter: ParameterInput | None = None
    buffer: BufferInput | None = None
    tensor_constant: ConstantInput | None = None
    constant_input: FixedInput | None = None


class UserOutput(Part):
    arg: Argument


class OutputSpec(Union):
    model_config = ConfigDict(extra="allow")

    user_output: UserOutput | None = None


class Signature(Part):
    input_specs: Annotated[list[InputSpec], Field(max_length=MOST_VALUES)]
    output_specs: Annotated[list[OutputSpec], Field(max_length=MOST_VALUES)]


class CallSignature(Part):
    """`in_spec` and `out_spec` are JSON of a version and a `TreeSpec`."""

    in_spec: str
    out_spec: str
    forward_arg_names: list[str] | None = None


class ModuleCall(Part):
    fqn: str
    signature: CallSignature | None = None


class GraphModule(Part):
    graph: Graph
    signature: Signature
    module_call_graph: list[ModuleCall]


class Range(Part):
    min_val: int | None
    max_val: int | None


class Version(Part):
    major: Int
    minor: Int


class Header(Part):
    """What says whether the rest can be read."""

    schema_version: Version
    torch_version: str = "of before 2.5"


class ExportedProgram(Header):
    graph_module: GraphModule
    range_constraints: dict[str, Range]


class Payload(Part):
    """Where the bytes of a weight are. Pickled ones need not have a `tensor_meta`."""

    path_name: str
    is_param: bool
    use_pickle: bool
    tensor_meta: TensorMeta | None


class PayloadConfig(Part):
    config: Annotated[dict[str, Payload], Field(max_length=MOST_VALUES)]


class TreeSpec(Part):
    """A nest of containers; a leaf has no type. `context` is JSON: of a dict, its keys."""

    type: str | None
    context: str | None
    children_spec: list[TreeSpec]
