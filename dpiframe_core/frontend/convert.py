"""A traced program, operation by operation, as modules of a draft.

What moves numbers changes how values are read; what computes adds a module. How, each function in
`operations` says.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from dpiframe_core.errors import ModelImportError
from dpiframe_core.frontend.building import Building, CannotConvertError
from dpiframe_core.frontend.operations import OF_REAL_NUMBERS, OPERATIONS, elementwise
from dpiframe_core.frontend.operations.fourier import COMPLEX, complex_map
from dpiframe_core.frontend.values import (
    BATCH,
    BATCH_SIZE,
    Column,
    Columns,
    Dim,
    Factor,
    Scalar,
    Value,
    of_tensor,
    packed,
)
from dpiframe_core.program.expression import Expression
from dpiframe_core.program.tensor_ops import TooLargeError

PYTORCH = str(Path(torch.__file__).parent)  # lines of it are not the model's own
FOLDED_AS_FLOAT64 = 2**22  # elements; larger constants are tables, which nothing is computed of


@dataclass(frozen=True)
class Traced:
    """A program in core operations, and what feeds it: each input's name and sizes without the
    batch (() for one number a sample), in order. `is_of_some_rows`: traced as for a batch with some
    samples of each kind that it asks for.
    """

    graph: GraphModule
    tensors: Mapping[str, Tensor]  # by placeholder's name: weights, buffers, constants
    inputs: Mapping[str, tuple[int, ...]]  # by placeholder's name
    input_names: Mapping[str, str]  # the user's name of each
    integer_inputs: frozenset[str]
    is_of_some_rows: bool = False


class Converter:
    """Runs a program over values."""

    def __init__(self, traced: Traced, building: Building) -> None:
        self.traced, self.build = traced, building

    def run(self) -> Any:
        """The program's outputs, as values."""
        return self._run(self.traced.graph, self._input)

    def _run(self, graph: GraphModule, given: Callable[[Node], Any]) -> Any:
        env: dict[Node, Any] = {}
        needed = _needed(graph)
        for node in graph.graph.nodes:
            if node not in needed and node.op != "placeholder":
                continue
            if node.op == "output":
                return torch.fx.map_arg(node.args[0], lambda n: env[n])
            if node.op == "placeholder":
                env[node] = given(node)
            elif node.op == "get_attr":
                env[node] = _attribute(graph, str(node.target))
            else:
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: env[n])
                env[node] = self._told(node, list(args), dict(kwargs))
        raise AssertionError("a graph without an output")

    def _told(self, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The node's result; an error says where in the model it is."""
        try:
            return self._call(node, args, kwargs)
        except (CannotConvertError, TooLargeError) as error:
            raise ModelImportError(f"{operation(node)}{where(node)}: {error}") from None
        except ModelImportError:
            raise
        except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError,
                AttributeError) as error:  # fmt: skip
            raise ModelImportError(
                f"{operation(node)}{where(node)}: this use of it is not known "
                f"({type(error).__name__}: {error}); write that part of the model with other "
                "operations"
            ) from error

    def _input(self, node: Node) -> Any:
        name = str(node.target)
        if name in self.traced.tensors:
            return self.traced.tensors[name]
        if name not in self.traced.inputs:
            return None
        shape = self.traced.inputs[name]
        columns = [
            Scalar(Column(self.traced.input_names[name], i)) for i in range(math.prod(shape))
        ]
        dims: list[Dim] = [(BATCH,), *(((Factor(n, 1),) if n > 1 else ()) for n in shape)]
        integer = name in self.traced.integer_inputs
        return Value(Columns(tuple(columns)), packed(dims), is_integer=integer)

    def _call(self, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        target: Any = node.target
        if not isinstance(target, torch._ops.OpOverload):
            return self._outside_of_tensors(node, args)
        name = target._schema.name.split("::")[1]
        args, kwargs = _normal(target, args, kwargs)
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        if not any(isinstance(leaf, Value) or _is_batch(leaf) for leaf in leaves):
            return _folded(target, args, kwargs)
        if name in elementwise.FUNCTIONS or name in _SHIFTS:
            return self._elementwise(node, name, args, kwargs)
        convert = OPERATIONS.get(name)
        if convert is None:
            raise CannotConvertError(
                "no form of the engine does this; rewrite that part of the model with other "
                "operations, or move it before the model, to where its features are made"
            )
        if name in OF_REAL_NUMBERS and any(isinstance(v, Value) and v.is_complex for v in leaves):
            raise CannotConvertError(COMPLEX)
        return _as_told(node, convert(self.build, *args, **kwargs))

    def _outside_of_tensors(self, node: Node, args: list[Any]) -> Any:
        """Python's own operations on sizes, and regions of the program that are graphs."""
        target: Any = node.target
        if target is operator.getitem:
            return args[0][args[1]]
        if target.__name__ in _REGIONS:
            at = next(i for i, a in enumerate(args) if isinstance(a, GraphModule))
            inputs = iter(args[at + 1 :])
            return self._run(args[at], lambda node: next(inputs))
        if target is torch.sym_sum:
            return sum(args[0])
        if not all(isinstance(a, (int, float, bool)) for a in args):
            raise CannotConvertError(
                "control flow or a number of the program depends on the data; use torch.where in "
                "place of if"
            )
        found = target(*args)
        of_batch = any(_is_batch(a) for a in args)
        if of_batch and not isinstance(found, bool) and found and not _is_batch(found):
            raise CannotConvertError("a number of the program depends on the size of the batch")
        return found

    def _elementwise(self, node: Node, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        values: list[Value] = []

        def part(x: Any) -> Any:
            if isinstance(x, Tensor):
                x = x.item() if x.dim() == 0 and not x.is_complex() else of_tensor(x)
            if isinstance(x, complex):
                x = of_tensor(torch.tensor(x, dtype=torch.complex128))
            if _is_batch(x):
                raise CannotConvertError("it computes with the size of the batch")
            if isinstance(x, (bool, int)):
                return float(x)
            if isinstance(x, Value):
                values.append(x)
                return f"x{len(values) - 1}"
            return x

        given = [part(x) for x in args]
        named = {k: part(v) for k, v in kwargs.items() if not isinstance(v, torch.dtype)}
        of_bits = name in _SHIFTS or name.startswith("bitwise")
        bits = 0
        if of_bits and not (_is_truth(node) or _of_two_truths(node)):
            bits = EXACT_BITS if self._is_of_ids(values) else FLOAT32_BITS
            bits = min(bits, _TYPE_BITS.get(node.meta["val"].dtype, bits))
            expression = elementwise.of_bits(name, *given, bits=bits)
        else:
            functions = elementwise.FUNCTIONS
            if _is_truth(node):
                functions = functions | elementwise.FUNCTIONS_OF_TRUTHS
            elif not _are_whole(values, [*given, *named.values()]):
                functions = functions | elementwise.FUNCTIONS_OF_FLOATS
            expression = functions[name](*given, **named)
        if any(v.is_complex for v in values):
            return complex_map(self.build, name, values, expression)
        made = _as_told(node, self.build.mapped(expression, values))
        if name in ("bitwise_xor", "bitwise_or", "bitwise_and") and bits:
            of = partial(_of_bits, name, given)
            self.build.note_bits(of, bits, values, made)
        return made

    def _is_of_ids(self, values: list[Value]) -> bool:
        """Whether numbers are functions of an id each, or may be while no feature is chosen yet."""
        columns = {_columns(value) for value in values}
        if len(columns) != 1 or None in columns:
            return False
        is_chosen = self.build.id_columns or self.build.dense_columns
        return not is_chosen or set(columns.pop() or ()) <= self.build.id_columns.keys()


def _of_bits(name: str, given: list[Any], bits: int) -> Expression:
    last = [g % 2.0**bits if isinstance(g, float) else g for g in given]
    return elementwise.of_bits(name, *last, bits=bits)


def operation(node: Node) -> str:
    """The operation as PyTorch calls it."""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target).removesuffix(".default")
    return getattr(target, "__name__", str(target))


def where(node: Node) -> str:
    """In which module of the model, and at which line of its source."""
    stack = node.meta.get("nn_module_stack") or {}
    path = node.meta.get("module_path") or ""
    for found in stack.values() if isinstance(stack, dict) else ():
        path = found[0] or path
    source = node.meta.get("source") or ""
    trace = node.meta.get("stack_trace")
    if trace:
        lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
        own = [line for line in lines if PYTORCH not in line] or lines
        source = own[-1].removeprefix("File ") if own else ""
    path = path.removeprefix("L['self'].")
    text = f" in {path}" if path and path != "L['self']" else ""
    return text + (f" ({source})" if source else "")


def _needed(graph: GraphModule) -> set[Node]:
    """The nodes that the outputs are made of: checks of the inputs are none of them."""
    found: set[Node] = set()
    for node in reversed(graph.graph.nodes):
        if node.op == "output" or node in found:
            found.update([node, *node.all_input_nodes])
    return found


def _attribute(module: GraphModule, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found.detach() if isinstance(found, Tensor) else found


def _normal(
    target: Any, args: list[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments that a schema wants by name stay so; those by place come by place."""
    found = list(args)
    for argument in target._schema.arguments[len(args) :]:
        if argument.kwarg_only or argument.name not in kwargs:
            break
        found.append(kwargs.pop(argument.name))
    return found, kwargs


def _is_batch(x: Any) -> bool:
    """Whether it is a size that the batch is part of."""
    return isinstance(x, int) and not isinstance(x, bool) and x != 0 and x % BATCH_SIZE == 0


def _are_whole(values: list[Value], given: list[Any]) -> bool:
    numbers = [x for x in given if isinstance(x, float)]
    return all(v.is_integer for v in values) and all(x.is_integer() for x in numbers)


def first_narrow(traced: Traced) -> str | None:
    """The first cast of numbers to 16 bits, or else to small whole ones: to which type, and where
    it is; None where there is none.
    """
    casts: dict[int, str] = {}
    for node in traced.graph.graph.nodes:
        told = node.meta.get("val")
        if node.op != "call_function" or not isinstance(told, Tensor) or told.dtype not in _NARROW:
            continue
        before = [x.meta.get("val") for x in node.all_input_nodes]
        if any(isinstance(x, Tensor) and x.dtype not in (torch.bool, *_NARROW) for x in before):
            text = f"{told.dtype} by {operation(node)}{where(node)}"
            casts.setdefault(not told.dtype.is_floating_point, text)
    return casts[min(casts)] if casts else None


def _is_truth(node: Node) -> bool:
    told = node.meta.get("val")
    return not isinstance(told, Tensor) or told.dtype == torch.bool


def _folded(target: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The result of constants, in float64."""

    def widened(x: Any) -> Any:
        if isinstance(x, Tensor) and x.dtype.is_floating_point and x.numel() <= FOLDED_AS_FLOAT64:
            return x.double()
        if isinstance(x, Tensor) and x.is_complex():
            return x.to(torch.complex128)
        if isinstance(x, torch.dtype) and x.is_floating_point:
            return torch.float64
        return torch.device("cpu") if isinstance(x, torch.device) else x

    given = torch.utils._pytree.tree_map(widened, (args, kwargs))
    with torch.no_grad():
        return target(*given[0], **given[1])


def _columns(value: Value) -> tuple[Column, ...] | None:
    """The columns that a value is still made of, alone; None where it is something else."""
    if not isinstance(value.source, Columns):
        return None
    return tuple(scalar.column for scalar in value.source.scalars)


def _of_two_truths(node: Node) -> bool:
    """Whether its arguments are two nodes that are 0 or 1, made of truths."""
    given = node.all_input_nodes
    return len(given) == 2 and all(
        operation(one) in _CASTS and all(map(_is_truth, one.all_input_nodes)) for one in given
    )


def _as_told(node: Node, result: Any) -> Any:
    """The result, known to be whole numbers where PyTorch says so."""
    told = node.meta.get("val")
    if isinstance(result, Value) and isinstance(told, Tensor):
        kind = told.dtype
        is_integer = not (kind.is_floating_point or kind.is_complex)
        return replace(result, is_integer=is_integer, is_truth=kind == torch.bool)
    return result


_TYPE_BITS = {torch.uint8: 8, torch.int8: 7, torch.int16: 15}
EXACT_BITS, FLOAT32_BITS = 52, 24  # of functions of a column, which are numbers of a table; others
_CASTS = {"aten._to_copy", "aten.to.dtype"}
_NARROW = (torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16)
_SHIFTS = {"bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__"}

# Graphs that are called once, with what their region is for: gradients, types, memory.
_REGIONS = {
    "wrap_with_set_grad_enabled", "wrap_with_autocast", "tag_activation_checkpoint",
    "hints_wrapper", "wrap",
}  # fmt: skip
