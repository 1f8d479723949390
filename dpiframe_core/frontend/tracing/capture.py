"""A PyTorch module traced by torch.export, in core operations, with what feeds it."""

from __future__ import annotations

import builtins
import contextlib
import copy
import dataclasses
import io
import logging
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from dpiframe_core.errors import ModelImportError
from dpiframe_core.frontend.convert import PYTORCH, Traced
from dpiframe_core.frontend.tracing.any_batch import functions_for_any_batch
from dpiframe_core.frontend.tracing.packed import padded_in_place_of_packed
from dpiframe_core.frontend.tracing.some_rows import some_rows
from dpiframe_core.frontend.tracing.whole_batches import batches_taken_apart

Attempt = Callable[[nn.Module, Any, Any], ExportedProgram]

OURS = str(Path(__file__).parent)  # whose files are no more the model's than PyTorch's are
WHAT_BATCH_MEANS = "the first dimension of every input is the batch, which may have any size"
_ONE_AT_A_TIME = threading.RLock()  # what torch.export is changed for is the process's
ASSERTED_BATCHES = (*range(1, 66), 127, 1000, 4096, 65535, 2**20)


def traced(module: nn.Module, inputs: Any) -> Traced:
    """The module's forward on inputs such as these: a tensor, a tuple of arguments (tensors and
    dictionaries of tensors), or a dictionary of keyword arguments or for a forward of one
    dictionary. ModelImportError says what cannot be traced.
    """
    args, kwargs = as_arguments(module, inputs)
    module.eval()
    with _ONE_AT_A_TIME:
        program, attempt = _exported(_with_free_names(module), args, kwargs)
        if attempt is not _with_some_rows:
            return of_program(program, (args, kwargs))
        with some_rows():
            return replace(of_program(program, (args, kwargs)), is_of_some_rows=True)


def as_arguments(module: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as arguments of `forward`; kinds of dataclasses in them become known to torch
    as what holds tensors.
    """
    _register_dataclasses(inputs)
    if isinstance(inputs, Tensor) or _is_dataclass(inputs):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        import inspect

        named = inspect.signature(module.forward).parameters
        if set(inputs) <= set(named):
            return (), dict(inputs)
        return (dict(inputs),), {}
    if isinstance(inputs, Sequence):
        return tuple(inputs), {}
    raise ModelImportError(
        f"example inputs must be a tensor, a tuple or a dictionary, got {type(inputs).__name__}"
    )


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _register_dataclasses(inputs: Any) -> None:
    for leaf in pytree.tree_leaves(inputs):
        if _is_dataclass(leaf):
            torch.export.register_dataclass(type(leaf))
            _register_dataclasses(_values(leaf))


def _values(instance: Any) -> list[Any]:
    """What the fields of a dataclass's instance hold."""
    return [getattr(instance, field.name) for field in dataclasses.fields(instance)]


def _with_free_names(module: nn.Module) -> nn.Module:
    """The module, or where parts have names that a GraphModule has for itself (meta), a copy where
    they have others: the old ones are properties.
    """
    taken = set(dir(GraphModule(nn.Module(), Graph()))) - set(dir(nn.Module()))
    if not (renamed := taken & {*module._parameters, *module._buffers, *module._modules}):
        return module
    found = copy.copy(module)
    for name in renamed:
        for kind in ("_parameters", "_buffers", "_modules"):
            parts = vars(found)[kind]
            vars(found)[kind] = {f"{k}_" if k == name else k: v for k, v in parts.items()}
    free = {name: _other_name(f"{name}_") for name in renamed}
    found.__class__ = type(type(module).__name__, (type(module),), free)
    return found


def _other_name(name: str) -> property:
    return property(lambda module: getattr(module, name))


def _exported(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[ExportedProgram, Attempt]:
    """The program, and the attempt that made it."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    sizes = {t.shape[0] if t.dim() else 0 for t in tensors}
    if not tensors:
        kinds = sorted({type(leaf).__name__ for leaf in pytree.tree_leaves((args, kwargs))})
        raise ModelImportError(
            f"example inputs must be tensors, there is none among: {', '.join(kinds) or 'nothing'}"
        )
    if len(sizes) != 1 or min(sizes) < 2:
        raise ModelImportError(
            f"example inputs must be of one batch of at least 2 samples, got {sorted(sizes)}: "
            f"{WHAT_BATCH_MEANS}. Lists of any length, such as values with offsets, go in as "
            "matrices [B, L], padded; nn.EmbeddingBag takes such with a padding_idx"
        )
    # torch.export makes guards of inputs that share memory, such as a column of another.
    args, kwargs = pytree.tree_map_only(Tensor, Tensor.clone, (args, kwargs))
    errors: list[Exception] = []
    for attempt in ATTEMPTS:
        try:
            return attempt(module, args, kwargs), attempt
        except Exception as error:  # torch.export raises errors of many kinds
            errors.append(error)
    called(copy.deepcopy(module), args, kwargs)
    raise ModelImportError(
        f"torch.export cannot trace the model: {_reason(errors[0])}"
        f"{_place(errors[0]) or _place_that_fixes_the_batch(module, args, kwargs)}"
    ) from errors[0]


def called(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """What the module returns. ModelImportError: it cannot be called with the examples."""
    try:
        with torch.no_grad():
            return module(*args, **kwargs)
    except Exception as error:  # a module raises what it likes
        raise ModelImportError(
            f"the model cannot score the example inputs: {type(error).__name__}: "
            f"{_first_line(error)}{_place(error)}"
        ) from error


def _without_opt_einsum(module: nn.Module, args: Any, kwargs: Any) -> ExportedProgram:
    """In torch 2.11 the search for an order of an einsum of three tensors fixes the batch."""
    enabled = torch.backends.opt_einsum.enabled
    torch.backends.opt_einsum.enabled = False
    try:
        return _export(module, args, kwargs)
    finally:
        torch.backends.opt_einsum.enabled = enabled


def _with_lengths(module: nn.Module, args: Any, kwargs: Any) -> ExportedProgram:
    """Python makes a number of len(x), and so fixes the batch: let it be x.shape[0]."""
    plain = builtins.len

    def length(x: Any) -> Any:
        return x.shape[0] if isinstance(x, Tensor) and x.dim() else plain(x)

    builtins.len = length
    try:
        return _export(module, args, kwargs)
    finally:
        builtins.len = plain


def _strictly(module: nn.Module, args: Any, kwargs: Any) -> ExportedProgram:
    """By the module's byte code, of which int(x.shape[0]) fixes no batch."""
    return _export(module, args, kwargs, strict=True)


def _with_some_rows(module: nn.Module, args: Any, kwargs: Any) -> ExportedProgram:
    """As for a batch with some samples of each kind that it asks for."""
    with some_rows():
        return _with_lengths(module, args, kwargs)


def _with_asserted_guards(module: nn.Module, args: Any, kwargs: Any) -> ExportedProgram:
    """torch refuses a guard that it cannot prove, such as 11 B % 2 B != 0 of a view with heads in
    the batch: it becomes an assertion of the program, which must hold for batches of all kinds.
    """
    program = _export(module, args, kwargs, assert_guards=True)
    for node in program.graph.nodes:
        if node.target is torch.ops.aten._assert_scalar.default:
            held = node.args[0].meta["val"].node.expr
            for size in ASSERTED_BATCHES:
                if not held.subs(dict.fromkeys(held.free_symbols, size)):
                    raise ModelImportError(f"{held} does not hold for a batch of {size}")
    return program


def _export(
    module: nn.Module, args: Any, kwargs: Any, assert_guards: bool = False, strict: bool = False
) -> ExportedProgram:
    batch = Dim("batch", min=1, max=2**20)

    def dynamic(leaf: Any) -> Any:
        if _is_dataclass(leaf):
            return [shapes_of(value) for value in _values(leaf) if value is not None]
        return {0: batch} if isinstance(leaf, Tensor) else None

    def shapes_of(inputs: Any) -> Any:
        return pytree.tree_map(dynamic, inputs, is_leaf=_is_dataclass)

    shapes = shapes_of((args, kwargs))
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            torch.no_grad(), _quiet(), padded_in_place_of_packed(module), batches_taken_apart(),
            functions_for_any_batch(),
        ):  # fmt: skip
            return torch.export.export(
                module, args, kwargs or None,
                dynamic_shapes=_by_argument(module, args, kwargs, shapes), strict=strict,
                prefer_deferred_runtime_asserts_over_guards=assert_guards,
            )  # fmt: skip
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


ATTEMPTS: tuple[Attempt, ...] = (
    _export, _without_opt_einsum, _with_lengths, _strictly, _with_asserted_guards, _with_some_rows,
)  # fmt: skip


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What torch would log, print and warn of, whole programs among it, an error of ours says."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    nowhere = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _by_argument(module: nn.Module, args: Any, kwargs: Any, shapes: Any) -> Any:
    """Dynamic shapes as torch.export wants them: arguments in order, those of *args as one, or by
    name with keywords.
    """
    import inspect

    named = inspect.signature(module.forward).parameters
    plain = [n for n, p in named.items() if p.kind is not p.VAR_POSITIONAL]
    several = [n for n, p in named.items() if p.kind is p.VAR_POSITIONAL]
    given = list(shapes[0])
    if several and len(given) >= (count := list(named).index(several[0])):
        given[count:] = [tuple(given[count:])] if len(given) > count else []
        plain.insert(count, several[0])
    if not kwargs:
        return tuple(given)
    return dict(zip(plain, given, strict=False)) | shapes[1]


def _reason(error: Exception) -> str:
    text = str(error)
    advice = ""
    if "data-dependent" in text or "GuardOnDataDependent" in type(error).__name__:
        advice = " (its control flow depends on the data; use torch.where in place of if)"
    if "unbacked" in text.lower() and not advice:
        advice = (
            " (the size of a tensor depends on the data: make indices, masks and combinations in "
            "__init__, and use torch.where in place of masked_select and nonzero)"
        )
    if "is mutated" in text:
        advice = (
            " (the model changes its own constants while it scores: make new tensors in place of "
            "+= and the like)"
        )
    if not advice and any(word in text for word in ("specialized", "Constraints violated")):
        advice = " (the batch is fixed somewhere in it; use x.shape[0] or -1, never a number)"
    return _first_line(error) + advice


def _first_line(error: Exception) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return f"{next(filter(None, lines), type(error).__name__):.400}"


def _place_that_fixes_the_batch(module: nn.Module, args: Any, kwargs: Any) -> str:
    """The line at which a size becomes a number, if one does: torch tells at the end of tracing."""
    given = ShapeEnv._set_replacement

    def refused(self: ShapeEnv, a: Any, tgt: Any, msg: str) -> None:
        if tgt.is_number:
            raise ModelImportError(f"{a} is {tgt}")
        given(self, a, tgt, msg)

    ShapeEnv._set_replacement = refused  # type: ignore[method-assign]
    try:
        _export(module, args, kwargs)
    except Exception as error:  # this one, or whatever torch makes of it
        return _place(error)
    finally:
        ShapeEnv._set_replacement = given  # type: ignore[method-assign]
    return ""


def _place(error: Exception) -> str:
    """The line of the model's own source that raised, where one did."""
    frames = [
        f for f in traceback.extract_tb(error.__traceback__)
        if not f.filename.startswith((PYTORCH, OURS, "<"))
    ]  # fmt: skip
    if not frames:
        return ""
    return f' ("{frames[-1].filename}", line {frames[-1].lineno}, in {frames[-1].name})'


def of_program(program: ExportedProgram, inputs: Any = None) -> Traced:
    """An exported program in core operations."""
    with _quiet():
        try:
            program = program.run_decompositions()
        except RuntimeError as error:
            raise ModelImportError(
                f"torch.export cannot take the model apart: {_reason(error)}"
            ) from error
    signature = program.graph_signature
    tensors: dict[str, Tensor] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    names: dict[str, str] = {}
    integers = set()
    placeholders = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    user_names = _user_names(program)
    for spec in signature.input_specs:
        name = getattr(spec.arg, "name", "")
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            tensors[name] = _stored(program, str(spec.target))
        elif spec.kind == InputKind.CONSTANT_TENSOR:
            tensors[name] = program.constants[str(spec.target)]
        elif spec.kind == InputKind.USER_INPUT and isinstance(
            placeholders[name].meta.get("val"), Tensor
        ):
            fake = placeholders[name].meta["val"]
            if not fake.shape or isinstance(fake.shape[0], int):
                raise ModelImportError(
                    f"input {user_names.get(name, name)}: the batch is fixed at "
                    f"{fake.shape[0] if fake.shape else 1}; export the model with a dynamic "
                    f"batch: {WHAT_BATCH_MEANS}"
                )
            for n in fake.shape[1:]:
                if not isinstance(n, int):
                    raise ModelImportError(
                        f"input {user_names.get(name, name)}: only the batch may have any size"
                    )
            shapes[name] = tuple(fake.shape[1:])
            names[name] = user_names.get(name, name)
            if not (fake.dtype.is_floating_point or fake.dtype.is_complex):
                integers.add(name)
    _refuse_changed_state(program)
    return Traced(program.graph_module, tensors, shapes, names, frozenset(integers))


def _stored(program: ExportedProgram, name: str) -> Tensor:
    found = program.state_dict.get(name)
    found = program.constants[name] if found is None else found
    assert isinstance(found, Tensor)
    return found.detach()


def _refuse_changed_state(program: ExportedProgram) -> None:
    """ModelImportError where scores depend on buffers that the program itself changes, so that
    those of the next batch are others; what only counts is left out with its outputs.
    """
    signature = program.graph_signature
    changed = set(signature.buffers_to_mutate.values())
    todo = [n for n in program.graph.nodes if n.name in signature.user_outputs]
    seen = set(todo)
    while todo:
        node = todo.pop()
        buffer = signature.inputs_to_buffers.get(node.name)
        if node.op == "placeholder" and buffer in changed:
            raise ModelImportError(
                f"the model changes its own buffers while it scores ({buffer}), and its scores "
                "depend on them; call eval() on it first, or take out what counts or averages in "
                "its forward"
            )
        todo += (given := set(node.all_input_nodes) - seen)
        seen |= given


def _user_names(program: ExportedProgram) -> dict[str, str]:
    """The name of each input as its user knows it: the key of a dictionary, or the argument's;
    where two are alike with the place in a list behind it, or else that of the graph.
    """
    spec = program.call_spec.in_spec
    if spec is None:
        return {}
    count = spec.num_leaves
    tree = pytree.tree_unflatten(list(range(count)), spec)
    paths = pytree.tree_flatten_with_path(tree)[0]
    users = [
        s.arg.name for s in program.graph_signature.input_specs if s.kind == InputKind.USER_INPUT
    ]
    found = {}
    for (path, _), user in zip(paths, users, strict=False):
        keys = [getattr(k, "key", getattr(k, "idx", getattr(k, "name", ""))) for k in path]
        texts = [i for i, k in enumerate(path) if isinstance(getattr(k, "key", None), str)]
        last = keys[texts[-1] :] if texts else [user]
        found[user] = (str(last[0]), "_".join(map(str, last)), user)
    names = dict.fromkeys(found, "")
    for form in range(3):  # the shortest that is no other's
        alike = Counter(name or found[user][form] for user, name in names.items())
        for user, name in names.items():
            if not name and (form == 2 or alike[found[user][form]] == 1):
                names[user] = found[user][form]
    return names
