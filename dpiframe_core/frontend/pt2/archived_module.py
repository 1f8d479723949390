"""A program of an archive and its weights, as a module of torch.fx."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from dpiframe_core.errors import ModelImportError
from dpiframe_core.frontend.pt2 import export_schema as schema
from dpiframe_core.frontend.pt2.argument_names import input_names, output_names
from dpiframe_core.frontend.pt2.export_graph import GraphBuilder
from dpiframe_core.frontend.pt2.stored_tensors import check_layout, dtype_of

MOST_NESTED_MODULES = 64
_USER_INPUTS = ("user_input", "constant_input")
_EXPORT_AGAIN = "export the model again with torch 2.9 or later"


@dataclass(frozen=True)
class ArchivedInput:
    """A tensor that the program takes.

    `sizes`: None for the dynamic batch dimension. `is_used`: whether an output depends on it; of
    one that is not, every dynamic dimension is None.
    """

    name: str
    dtype: torch.dtype
    sizes: tuple[int | None, ...]
    is_used: bool


@dataclass(frozen=True)
class ArchivedModule:
    """A program and its weights.

    `module` takes the inputs in their order, by position, and returns a tuple of the outputs. Its
    parameters and buffers have their names in the model, as far as these can be attributes; they
    are views of the mapped file, which must not be cut short while they are in use. Of its nodes,
    a weight has its name in the model as `meta["weight"]`, a call its module and its line of source
    as `meta["module_path"]` and `meta["source"]`, "" where the file does not tell.

    `min_batch`, `max_batch`: which batches the program was exported for; None: no bound. Where no
    input has a dynamic dimension the program is of one batch size.
    """

    module: GraphModule
    inputs: tuple[ArchivedInput, ...]
    outputs: tuple[str, ...]
    min_batch: int | None
    max_batch: int | None


def rebuild(
    program: schema.ExportedProgram, tensors: Mapping[str, torch.Tensor], parameters: set[str]
) -> ArchivedModule:
    """The module of a program; of the tensors, by name, `parameters` are no buffers.

    ModelImportError, without the file's name, where the program makes no sense or is not supported.
    """
    calls = [call.signature for call in program.graph_module.module_call_graph if call.fqn == ""]
    if len(calls) != 1 or calls[0] is None:
        raise ModelImportError(f"has no signature of the model; {_EXPORT_AGAIN}")
    names, outputs = input_names(calls[0]), output_names(calls[0])
    module = GraphModule(torch.nn.Module(), Graph())
    attributes = _attach(module, tensors, parameters)
    builder = GraphBuilder()
    placeholders = _add_inputs(builder, program.graph_module.signature, names, attributes)
    for call in program.graph_module.graph.nodes:
        builder.call(call)
    results = [_result_of(spec) for spec in program.graph_module.signature.output_specs]
    _check_count(results, outputs, "outputs")
    builder.output(results)
    module.graph = builder.graph
    values = program.graph_module.graph.tensor_values
    metas = {name: values.get(value) for name, (value, _) in placeholders.items()}
    live = _live(module.graph)
    used = {name for name, (_, node) in placeholders.items() if node in live}
    inputs, batch = _inputs(metas, used)
    bounds = program.range_constraints.get(batch or "")
    return ArchivedModule(
        module,
        inputs,
        tuple(outputs),
        bounds.min_val if bounds else None,
        bounds.max_val if bounds else None,
    )


def _add_inputs(
    builder: GraphBuilder,
    signature: schema.Signature,
    names: list[str],
    attributes: Mapping[str, str],
) -> dict[str, tuple[str, Node]]:
    """Adds placeholders, then reads of weights; each input's value in the file, and its node."""
    user_inputs = [spec for spec in signature.input_specs if spec.kind in _USER_INPUTS]
    _check_count(user_inputs, names, "inputs")
    placeholders = {}
    for name, spec in zip(names, user_inputs, strict=True):
        if spec.user_input is None:
            continue  # a constant: the program was made for its value
        argument = spec.user_input.arg
        if argument.as_tensor is None:
            raise ModelImportError(
                f"input {name} is of kind {argument.kind}, not a tensor; give `forward` tensors "
                "only and export again"
            )
        value = argument.as_tensor.name
        placeholders[name] = (value, builder.placeholder(value))
    for spec in signature.input_specs:
        if spec.kind not in _USER_INPUTS:
            value, weight = _weight_of(spec)
            if weight not in attributes:
                raise ModelImportError(f"has no weight {weight}; {_EXPORT_AGAIN}")
            builder.weight(value, attributes[weight], weight)
    return placeholders


def _check_count(found: list[Any], names: list[str], what: str) -> None:
    if len(found) != len(names):
        raise ModelImportError(
            f"has {len(found)} {what}, and names for {len(names)}; {_EXPORT_AGAIN}"
        )


def _weight_of(spec: schema.InputSpec) -> tuple[str, str]:
    """The name of a weight's value in the graph, and in the model."""
    if spec.parameter is not None:
        return spec.parameter.arg.name, spec.parameter.parameter_name
    if spec.buffer is not None:
        return spec.buffer.arg.name, spec.buffer.buffer_name
    if spec.tensor_constant is not None:
        return spec.tensor_constant.arg.name, spec.tensor_constant.tensor_constant_name
    raise ModelImportError(
        f"takes an input of kind {spec.kind[:40]}, which is no tensor; take objects other than "
        "tensors out of the model and export again"
    )


def _result_of(spec: schema.OutputSpec) -> schema.Argument:
    if spec.user_output is None:
        raise ModelImportError(
            f"has an output of kind {spec.kind[:40]}: the program trains, or changes its weights "
            "or inputs; call model.eval() and export again"
        )
    return spec.user_output.arg


def _attach(
    module: torch.nn.Module, tensors: Mapping[str, torch.Tensor], parameters: set[str]
) -> dict[str, str]:
    """Makes the tensors parameters and buffers of the module; their attributes by name."""
    attributes: dict[str, str] = {}
    for name, tensor in tensors.items():
        parts = [_attribute(part) for part in name.split(".")]
        if len(parts) > MOST_NESTED_MODULES:
            raise ModelImportError(f"weight {name[:100]}... is in {len(parts)} nested modules")
        owner = module
        for i, part in enumerate(parts[:-1]):
            if part not in owner._modules and hasattr(owner, part):
                parts[i] = f"{part}_{len(attributes)}"
            if parts[i] not in owner._modules:
                owner.add_module(parts[i], torch.nn.Module())
            owner = owner.get_submodule(parts[i])
        if hasattr(owner, parts[-1]):
            parts[-1] += f"_{len(attributes)}"
        if name in parameters:
            owner.register_parameter(parts[-1], torch.nn.Parameter(tensor, requires_grad=False))
        else:
            owner.register_buffer(parts[-1], tensor)
        attributes[name] = ".".join(parts)
    return attributes


def _attribute(part: str) -> str:
    """The part of a name, or what is like it, for Python source, where torch.fx puts it."""
    letters = re.sub(r"\W", "_", unicodedata.normalize("NFKC", part)) or "_"
    return letters + "_" if keyword.iskeyword(letters) else letters


def _live(graph: Graph) -> set[Node]:
    """The nodes that an output depends on; what changes a tensor in place counts as one."""
    live: set[Node] = set()
    for node in reversed(graph.nodes):
        changes = isinstance(node.target, OpOverload) and node.target._schema.is_mutable
        if node.op == "output" or changes or node in live:
            live.add(node)
            live.update(node.all_input_nodes)
    return live


def _inputs(
    metas: Mapping[str, schema.TensorMeta | None], used: set[str]
) -> tuple[tuple[ArchivedInput, ...], str | None]:
    """The inputs, and the symbol of the batch dimension."""
    batch: str | None = None
    inputs = []
    for name, meta in metas.items():
        if meta is None:
            raise ModelImportError(f"does not say of what sizes input {name} is; {_EXPORT_AGAIN}")
        for axis, size in enumerate(meta.sizes):
            if size.as_expr is not None and name in used:
                symbol = _symbol(size.as_expr.expr_str)
                if symbol is None or symbol != (batch or symbol):
                    raise ModelImportError(
                        f"dimension {axis} of input {name} is {size.as_expr.expr_str[:100]}; only "
                        "the batch may be dynamic, and the same in every input: export with one "
                        "Dim for it and fixed sizes elsewhere"
                    )
                batch = symbol
        try:
            check_layout(meta.layout)
            dtype = dtype_of(meta.dtype)
        except ModelImportError as error:
            raise ModelImportError(f"input {name}: {error}") from None
        sizes = tuple(size.as_int for size in meta.sizes)
        inputs.append(ArchivedInput(name, dtype, sizes, name in used))
    return tuple(inputs), batch


def _symbol(expression: str) -> str | None:
    """The name of a symbol alone; None of any other expression."""
    found = re.fullmatch(r"Symbol\('(\w+)'(, \w+=\w+)*\)", expression)
    return found[1] if found else None
