"""Names of a program's inputs and outputs, of the containers that `forward` takes and returns."""

from __future__ import annotations

from collections import Counter

from pydantic import TypeAdapter, ValidationError

from dpiframe_core.errors import ModelImportError
from dpiframe_core.frontend.pt2.export_schema import CallSignature, TreeSpec

_TREE = TypeAdapter(tuple[int, TreeSpec])
_KEYS = TypeAdapter(list[str | int | float | bool | None])
_DICTS = ("builtins.dict", "collections.OrderedDict")
_Path = tuple[str, ...]


def input_names(signature: CallSignature) -> list[str]:
    """A name for each leaf of the arguments, in order.

    An argument is called as `forward` calls it, what is in a dict by its key, in other containers
    `argument.0`; where that does not tell two apart, all of them are called `argument.key`.
    """
    tree = _tree(signature.in_spec)
    if len(tree.children_spec) != 2:
        raise ModelImportError("its inputs are not arguments and keyword arguments")
    positional, by_keyword = tree.children_spec
    names = signature.forward_arg_names or []
    count = len(positional.children_spec)
    names = [*names[:count], *(f"arg{i}" for i in range(len(names), count))]
    paths: list[tuple[_Path, bool]] = []
    for name, argument in [
        *zip(names, positional.children_spec, strict=True),
        *zip(_keys(by_keyword), by_keyword.children_spec, strict=True),
    ]:
        paths += [((name, *path), argument.type in _DICTS) for path in _paths(argument)]
    return _distinct(paths)


def output_names(signature: CallSignature) -> list[str]:
    """A name for each leaf of what is returned: its key, its index, or `output`."""
    return [".".join(path) or "output" for path in _paths(_tree(signature.out_spec))]


def _distinct(paths: list[tuple[_Path, bool]]) -> list[str]:
    short = [".".join(path[1:] if in_dict else path) for path, in_dict in paths]
    if len(set(short)) == len(short):
        return short
    names = [".".join(path) for path, _ in paths]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ModelImportError(f"two of its inputs are called {twice[0]}; rename one")
    return names


def _tree(text: str) -> TreeSpec:
    try:
        version, tree = _TREE.validate_json(text)
    except ValidationError:
        version = 0
    if version != 1:
        raise ModelImportError("the containers of its inputs or outputs are of an unknown kind")
    return tree


def _paths(tree: TreeSpec) -> list[_Path]:
    if tree.type is None:
        return [()]
    return [
        (key, *path)
        for key, child in zip(_keys(tree), tree.children_spec, strict=True)
        for path in _paths(child)
    ]


def _keys(tree: TreeSpec) -> list[str]:
    """Keys of a dict's children; of another container, their indices."""
    count = len(tree.children_spec)
    if tree.type not in _DICTS:
        return [str(i) for i in range(count)]
    try:
        keys = _KEYS.validate_json(tree.context or "")
    except ValidationError:
        keys = []
    if len(keys) != count:
        raise ModelImportError(f"a dict of its inputs or outputs has {count} values, not its keys")
    return [str(key) for key in keys]
