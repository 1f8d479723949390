"""The graph of an archive's program, rebuilt as a torch.fx graph node by node.

torch's own loader evaluates the symbolic sizes of the file as Python; here no text of the file is
evaluated. torch.fx writes a graph as Python source and compiles it, so every name that it puts
there is made of letters, digits and underscores first.
"""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch.fx import Graph, Node

from dpiframe_core.errors import ModelImportError
from dpiframe_core.frontend.pt2 import export_schema as schema
from dpiframe_core.frontend.pt2.export_operators import SIZE_OPERATORS, tensor_operator
from dpiframe_core.frontend.pt2.stored_tensors import check_layout, dtype_of

_MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
_VALUE = {"as_tensor", "as_sym_int", "as_sym_float", "as_sym_bool"}


class GraphBuilder:
    """Adds placeholders, weights and calls to `graph`; the file's names of values lead to them.

    Errors are ModelImportError and name the node, its module and source line.
    """

    def __init__(self) -> None:
        self.graph = Graph()
        self._values: dict[str, Node] = {}

    def placeholder(self, name: str) -> Node:
        """The next positional input; `name`: its value's name in the file. Before all else."""
        node = self.graph.placeholder(_identifier(name))
        node.target = node.name  # unlike its target, a node's name is none of another node
        return self._define(name, node)

    def weight(self, name: str, attribute: str, weight: str) -> Node:
        """A read of `attribute`; `weight`: its name in the model, put into `meta["weight"]`."""
        node = self.graph.create_node("get_attr", attribute, name=_identifier(name))
        node.meta["weight"] = weight
        return self._define(name, node)

    def call(self, call: schema.Node) -> None:
        """A call of an operator, with `meta["module_path"]` and `meta["source"]`."""
        place = {
            "module_path": _module_path(call.metadata.get("nn_module_stack", "")),
            "source": _source(call.metadata.get("stack_trace", "")),
        }
        try:
            if call.target in SIZE_OPERATORS:
                nodes = self._size_call(call)
            else:
                nodes = self._tensor_call(call)
        except ModelImportError as error:
            module = place["module_path"] or "the model itself"
            line = f", {place['source']}" if place["source"] else ""
            raise ModelImportError(f"a call in {module}{line}: {error}") from None
        for node in nodes:
            node.meta.update(place)

    def output(self, outputs: list[schema.Argument]) -> None:
        """The end of the graph: a tuple of these values."""
        self.graph.output(tuple(self._argument(output) for output in outputs))

    def _size_call(self, call: schema.Node) -> list[Node]:
        function, count = SIZE_OPERATORS[call.target]
        args = [self._argument(found.arg) for found in call.inputs]
        if len(args) != count or not all(isinstance(arg, Node | int | float) for arg in args):
            raise _senseless(f"{call.target} does not take {len(args)} arguments of these kinds")
        if len(call.outputs) != 1:
            raise _senseless(f"{call.target} has {len(call.outputs)} results, not 1")
        name = _value_name(call.outputs[0])
        node = self.graph.create_node("call_function", function, tuple(args), {}, _identifier(name))
        return [self._define(name, node)]

    def _tensor_call(self, call: schema.Node) -> list[Node]:
        function = tensor_operator(call.target)
        parameters = {arg.name: arg for arg in function._schema.arguments}
        order = list(parameters)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for found in call.inputs:
            value = self._argument(found.arg)
            if found.name not in parameters or found.name in [*order[: len(args)], *kwargs]:
                raise _senseless(f"{call.target} has no argument {found.name} left to set")
            is_positional = found.kind == 1 and not parameters[found.name].kwarg_only
            if is_positional and not kwargs and order[len(args)] == found.name:
                args.append(value)
            else:
                kwargs[found.name] = value
        missing = [
            name
            for name in order[len(args) :]
            if name not in kwargs and not parameters[name].has_default_value()
        ]
        if missing:
            raise _senseless(f"{call.target} has no argument {missing[0]}")
        results = call.outputs
        returned = len(function._schema.returns)
        if len(results) != returned:
            raise _senseless(f"{call.target} has {len(results)} results, not {returned}")
        is_one = returned == 1 and results[0].kind in _VALUE
        name = _value_name(results[0]) if is_one else function._schema.name.split("::")[-1]
        node = self.graph.create_node(
            "call_function", function, tuple(args), kwargs, _identifier(name)
        )
        if is_one:
            return [self._define(name, node)]
        if returned == 1:
            return [node, *self._items(node, results[0])]
        return [node, *(n for i, result in enumerate(results) for n in self._item(node, i, result))]

    def _item(self, node: Node, index: int, result: schema.Argument) -> list[Node]:
        """One of several results; nothing where no value of it is named."""
        if result.kind == "as_none":
            return []
        name = "item" if result.kind == "as_tensors" else _value_name(result)
        item = self._getitem(node, index, name)
        if result.kind == "as_tensors":
            return [item, *self._items(item, result)]
        return [self._define(name, item)]

    def _items(self, node: Node, result: schema.Argument) -> list[Node]:
        """The results of a node that returns a list."""
        if result.kind == "as_none":
            return []
        if result.kind != "as_tensors":
            raise _senseless(f"a result of kind {result.kind}")
        names = [tensor.name for tensor in result.value]
        return [self._define(name, self._getitem(node, i, name)) for i, name in enumerate(names)]

    def _getitem(self, node: Node, index: int, name: str) -> Node:
        args = (node, index)
        return self.graph.create_node(
            "call_function", operator.getitem, args, {}, _identifier(name)
        )

    def _define(self, name: str, node: Node) -> Node:
        if name in self._values:
            raise _senseless(f"two values are named {name}")
        self._values[name] = node
        return node

    def _value(self, name: str) -> Node:
        if name not in self._values:
            raise _senseless(f"{name} is used, but nothing before computes it")
        return self._values[name]

    def _argument(self, argument: schema.Argument) -> Any:
        """What a node is called with: a node, a constant, or a list of these."""
        kind, value = argument.kind, argument.value
        match kind:
            case "as_none":
                return None
            case "as_tensor":
                return self._value(value.name)
            case "as_tensors":
                return [self._value(tensor.name) for tensor in value]
            case "as_optional_tensor":
                return self._optional(value)
            case "as_optional_tensors":
                return [self._optional(tensor) for tensor in value]
            case "as_sym_int" | "as_sym_float" | "as_sym_bool":
                return self._size(value)
            case "as_sym_ints" | "as_sym_floats" | "as_sym_bools":
                return [self._size(size) for size in value]
            case "as_scalar_type":
                return dtype_of(value)
            case "as_layout":
                check_layout(value)
                return torch.strided
            case "as_memory_format" if value in _MEMORY_FORMATS:
                return _MEMORY_FORMATS[value]
            case "as_device" if value.type in ("cpu", "cuda"):
                return torch.device("cpu")  # a program exported on a GPU runs here as well
            case "as_int" | "as_float" | "as_bool" | "as_string":
                return value
            case "as_ints" | "as_floats" | "as_bools" | "as_strings":
                return list(value)
        raise ModelImportError(
            f"an argument of kind {kind} ({str(value)[:100]}) is not supported; take it out of "
            "forward and export again"
        )

    def _optional(self, tensor: schema.OptionalTensor) -> Node | None:
        return None if tensor.as_tensor is None else self._value(tensor.as_tensor.name)

    def _size(self, size: schema.Union) -> Any:
        return self._value(size.value) if size.kind == "as_name" else size.value


def _senseless(what: str) -> ModelImportError:
    return ModelImportError(f"{what}, which torch does not write; export the model again")


def _value_name(result: schema.Argument) -> str:
    """The name of a result that is one value."""
    if result.kind == "as_tensor":
        return str(result.value.name)
    if result.kind in _VALUE and result.value.kind == "as_name":
        return str(result.value.value)
    raise _senseless(f"a result of kind {result.kind}")


def _identifier(name: str) -> str:
    """The name, or what is like it, for Python source; torch.fx makes it unique.

    It is cut short as torch.fx reads digits at its end as a number.
    """
    letters = re.sub("[^0-9A-Za-z_]", "_", name[:100])
    return f"v_{letters}" if letters in ("", "self") else letters


def _module_path(stack: str) -> str:
    """The innermost module's path, of `key,path,type;key,path,type`."""
    return stack.rsplit(";", 1)[-1].partition(",")[2].rpartition(",")[0]


def _source(trace: str) -> str:
    """`file:line` of the innermost frame of a stack trace that is not torch's own, or ""."""
    frames = re.findall(r'File "([^"\n]*)", line (\d+)', trace)
    own = [frame for frame in frames if "/torch/" not in frame[0]]
    return ":".join((own or frames or [("", "")])[-1]).strip(":")
