"""What is imported: the program of a module or of an archive, its weights, and how it is run."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter
from torch.fx.traceback import preserve_node_meta
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dpiframe_core.errors import ModelImportError
from dpiframe_core.frontend.convert import Traced
from dpiframe_core.frontend.tracing import capture
from dpiframe_core.frontend.values import Column

if TYPE_CHECKING:
    from dpiframe_core.frontend.pt2.archive import ArchivedModule

ALONE = 32  # samples that are scored alone
MOST_COUNTED = 2**16  # numbers of a buffer that a module may change while it scores
FIXED_BATCH = f"export it with a dynamic batch (torch.export.Dim): {capture.WHAT_BATCH_MEANS}"


@dataclass(frozen=True)
class Source:
    """A model to import. `leaves` are its example arguments, flat; `tensors` the places in them of
    each input, by its name.
    """

    name: str
    module: nn.Module
    traced: Traced
    leaves: tuple[Any, ...]
    tree: pytree.TreeSpec
    tensors: Mapping[str, int]
    outputs: tuple[str, ...]
    batches: tuple[int, int]  # samples that the module takes at least and at most

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """The sizes of each input without the batch, by name, in order."""
        return {self.traced.input_names[n]: shape for n, shape in self.traced.inputs.items()}

    def example(self, name: str) -> Tensor:
        """The example of an input."""
        found = self.leaves[self.tensors[name]]
        assert isinstance(found, Tensor)
        return found

    def arguments(self, inputs: Mapping[str, Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The args and kwargs of the examples with these inputs in their places."""
        leaves = list(self.leaves)
        for name, tensor in inputs.items():
            leaves[self.tensors[name]] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.tree)
        return args, kwargs

    def largest(self, column: Column) -> int:
        """The largest id of a column among the examples."""
        example = self.example(column.input)
        return int(example.reshape(len(example), -1)[:, column.position].max())

    def ids(self, column: Column) -> np.ndarray:
        """The ids of a column in the examples."""
        example = self.example(column.input)
        found: np.ndarray = example.reshape(len(example), -1)[:, column.position].numpy()
        return found

    def most(self, column: Column) -> int | None:
        """The largest number of a column's type; None where that is none of whole numbers."""
        kind = self.example(column.input).dtype
        if kind.is_floating_point or kind.is_complex or kind == torch.bool:
            return None
        return torch.iinfo(kind).max

    def are_ids(self, column: Column) -> bool:
        """Whether the examples of a column can be ids: whole numbers, none negative."""
        example = self.example(column.input)
        if example.is_floating_point() or example.is_complex() or example.dtype == torch.bool:
            return False
        return int(example.reshape(len(example), -1)[:, column.position].min()) >= 0

    def run(self, inputs: Mapping[str, Tensor], kind: torch.dtype) -> list[Tensor]:
        """Each output on a batch, computed by a copy of the module in float32 or float64."""
        found = self._outputs(inputs, kind)
        if self.traced.is_of_some_rows:
            self._refuse_other_branches(inputs, found, kind)
        return found

    def _refuse_other_branches(
        self, inputs: Mapping[str, Tensor], found: list[Tensor], kind: torch.dtype
    ) -> None:
        """ModelImportError where a sample has another score alone, of which a batch of two is."""
        for i in range(min(ALONE, len(next(iter(inputs.values()))))):
            alone = self._outputs({n: t[[i, i]] for n, t in inputs.items()}, kind)
            for whole, own in zip(found, alone, strict=True):
                if not torch.allclose(whole[i], own[0], 1e-4, 1e-5, equal_nan=True):
                    raise ModelImportError(
                        "its control flow asks what samples a batch has, and what it does then "
                        f"depends on it: sample {i} has another score alone than in its batch; "
                        "use torch.where in place of if"
                    )

    def _outputs(self, inputs: Mapping[str, Tensor], kind: torch.dtype) -> list[Tensor]:
        module = copy.deepcopy(self.module).to(kind)
        typed = {n: t.to(kind) if t.is_floating_point() else t for n, t in inputs.items()}
        args, kwargs = self.arguments(typed)
        with (
            torch.no_grad(), _evaluating(module), _made_of(kind), _as_in_float32(), _Float32Norms(),
            _Computed(kind),
        ):  # fmt: skip
            return [x for x in pytree.tree_leaves(module(*args, **kwargs)) if isinstance(x, Tensor)]

    def parameters(self) -> dict[str, Tensor]:
        """Parameters and buffers by name; a tied one has several names."""
        found = dict(self.module.named_parameters(remove_duplicate=False))
        return found | dict(self.module.named_buffers(remove_duplicate=False))


def of_module(module: nn.Module, example_inputs: Any) -> Source:
    """A PyTorch module, called on inputs such as these. It is left as it was."""
    module = _unwrapped(module)
    _check_kinds(module)
    if any(t.device.type != "cpu" for t in (*module.parameters(), *module.buffers())):
        module = copy.deepcopy(module).cpu()
    args, kwargs = pytree.tree_map(
        lambda x: x.detach().cpu() if isinstance(x, Tensor) else x,
        capture.as_arguments(module, example_inputs),
    )
    with _evaluating(module):
        traced = capture.traced(module, kwargs if kwargs else args)
        outputs = capture.called(module, args, kwargs)
    return _source(type(module).__name__, module, traced, args, kwargs, _names_of(outputs))


def of_archive(archived: ArchivedModule, name: str) -> Source:
    """A program that was read from an archive of torch.export."""
    least, most = archived.min_batch or 1, archived.max_batch or 2**20
    batch = min(max(least, 2), most)
    examples = []
    for found in archived.inputs:
        if found.is_used and (not found.sizes or found.sizes[0] is not None):
            raise ModelImportError(f"input {found.name}: the batch is fixed; {FIXED_BATCH}")
        if None in found.sizes[1:]:
            raise ModelImportError(f"input {found.name}: only the batch may have any size")
        sizes = [batch, *(n for n in found.sizes[1:] if n is not None)]
        examples.append(torch.zeros(sizes, dtype=found.dtype))
    module = archived.module
    _check_kinds(module)
    args = tuple(examples)
    traced = capture.traced(_Program(module), (args,))
    for node in traced.graph.graph.nodes:
        if node.meta.get("custom"):  # where the call stood in the model, not here
            node.meta.pop("stack_trace", None)
            node.meta.update(node.meta["custom"])
    names = dict(zip(traced.inputs, (found.name for found in archived.inputs), strict=True))
    source = _source(name, module, replace(traced, input_names=names), args, {}, archived.outputs)
    return replace(source, batches=(least, most))


class _Program(nn.Module):
    """A program of an archive; what is traced of it keeps the module and source of each call."""

    def __init__(self, program: GraphModule) -> None:
        super().__init__()
        self.program = program
        for node in program.graph.nodes:
            places = {key: node.meta[key] for key in ("module_path", "source") if key in node.meta}
            node.meta["custom"] = places

    def forward(self, inputs: tuple[Tensor, ...]) -> Any:
        # In one tuple: dynamic sizes of an argument list of any length cannot be named.
        with preserve_node_meta():
            return Interpreter(self.program).run(*inputs)


def _source(
    name: str, module: nn.Module, traced: Traced, args: Any, kwargs: Any, outputs: tuple[str, ...]
) -> Source:
    leaves, tree = pytree.tree_flatten((args, kwargs))
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    names = [traced.input_names[n] for n in traced.inputs]
    if len(set(names)) != len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise ModelImportError(f"two inputs of the model are called {twice!r}: rename one")
    for n, i in zip(traced.inputs, at, strict=True):
        assert tuple(leaves[i].shape[1:]) == traced.inputs[n]
    tensors = dict(zip(names, at, strict=True))
    return Source(name, module, traced, tuple(leaves), tree, tensors, outputs, (1, 2**20))


def _names_of(outputs: Any) -> tuple[str, ...]:
    """A name for each tensor that the model returns: its key, its index, or `output`."""
    found = []
    for path, leaf in pytree.tree_flatten_with_path(outputs)[0]:
        if isinstance(leaf, Tensor):
            keys = [getattr(key, "key", getattr(key, "idx", "")) for key in path]
            found.append(".".join(str(key) for key in keys) or "output")
    return tuple(found)


def _unwrapped(module: nn.Module) -> nn.Module:
    """The module inside of DataParallel, DistributedDataParallel and torch.compile."""
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelImportError("a TorchScript module cannot be traced: give the module itself")
    if not isinstance(module, nn.Module):
        raise ModelImportError(
            f"the model must be a torch.nn.Module or a .pt2 archive, got {type(module).__name__}"
        )
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    inner = module.module if isinstance(module, parallel) else getattr(module, "_orig_mod", None)
    return _unwrapped(inner) if isinstance(inner, nn.Module) else module


def _check_kinds(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise ModelImportError(
                f"part {name} is TorchScript, which cannot be traced: make the model with the "
                "module itself, which takes the same state_dict"
            )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.layout != torch.strided:
            raise ModelImportError(f"weight {name} is sparse: store it dense (to_dense()) first")
        if tensor.is_quantized or tensor.device.type == "meta":
            what = "quantized" if tensor.is_quantized else "without numbers (device meta)"
            raise ModelImportError(f"weight {name} is {what}: load the model's float weights first")


@contextlib.contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode, and afterwards as it was, with what it counts in buffers."""
    before = {part: part.training for part in module.modules()}
    counted = [
        (part._buffers, name, buffer, buffer.clone())
        for part in before
        for name, buffer in part._buffers.items()
        if buffer is not None and buffer.numel() <= MOST_COUNTED and buffer.layout == torch.strided
    ]
    module.eval()
    try:
        yield
    finally:
        for part, training in before.items():
            part.training = training
        for buffers, name, buffer, kept in counted:
            buffers[name] = buffer
            if not torch.equal(buffer, kept):
                buffer.copy_(kept)


@contextlib.contextmanager
def _made_of(kind: torch.dtype) -> Iterator[None]:
    """New tensors have this type unless told: a module may make some while it scores."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _as_in_float32() -> Iterator[None]:
    """The limits of float64 are float32's: a module may keep a logarithm from 0 by its type's eps,
    which is part of the model.
    """
    given = torch.finfo

    def limits(kind: torch.dtype | None = None) -> torch.finfo:
        return given(torch.float32 if kind in (None, torch.float64) else kind)

    torch.finfo = limits  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        torch.finfo = given  # type: ignore[misc]


class _Float32Norms(TorchFunctionMode):
    """RMS norms without an eps have float32's, which PyTorch takes of the type."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if func in (functional.rms_norm, torch.rms_norm):
            names = ("input", "normalized_shape", "weight", "eps")
            named = dict(zip(names, args, strict=False)) | named
            if named.get("eps") is None:
                named["eps"] = torch.finfo(torch.float32).eps
            args = ()
        return func(*args, **named)


class _Computed(TorchDispatchMode):
    """Operations compute in the type that is wanted what they name float32 or float64, as in
    `x.float()`. Of equal numbers the first come first, which PyTorch leaves open.
    """

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kind = kind

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        def wanted(x: Any) -> Any:
            return self.kind if x in (torch.float32, torch.float64) else x

        if func is torch.ops.aten._assert_tensor_metadata.default:
            return None
        args, kwargs = pytree.tree_map_only(torch.dtype, wanted, (args, kwargs or {}))
        return first_of_equal(func, args, kwargs)


def first_of_equal(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation of aten returns; of equal numbers topk and sort take the first first."""
    aten = torch.ops.aten
    if func is aten.topk.default:
        return _stable_topk(*args, **kwargs)
    if func is aten.sort.default:
        named = dict(zip(("dim", "descending"), args[1:], strict=False))
        return aten.sort.stable(args[0], stable=True, **named, **kwargs)
    return func(*args, **kwargs)


def _stable_topk(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, ordered: bool = True
) -> tuple[Tensor, Tensor]:
    values, places = x.sort(stable=True, dim=dim, descending=largest)
    return values.narrow(dim, 0, k), places.narrow(dim, 0, k)
