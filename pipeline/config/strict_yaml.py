"""A YAML loader without surprises: see `StrictLoader`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from yaml import SafeLoader as _Loader
else:
    _Loader = object

MOST_DEPTH = 20
MOST_DIGITS = 100
MOST_NODES = 1_000_000  # with what aliases repeat
LONG = 100_000  # characters: a list of so many files is worth libyaml


def load_yaml(text: str) -> Any:
    """The value of a document. ValueError says in one line what is wrong, in which line, column."""
    if len(text) > LONG and _LONG_LOADER is not None:
        with contextlib.suppress(yaml.YAMLError, RecursionError):  # told below, in the same words
            if not _is_deep(text):
                return yaml.load(text, Loader=_LONG_LOADER)
    try:
        return yaml.load(text, Loader=StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ValueError(f"{error.problem or error.context}{where}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        where = f"(line {line}, column {column})"
        raise ValueError(f"the character {error.character:#x} is not allowed {where}") from None


def dump_yaml(data: Any) -> str:
    """Plain data as YAML, by libyaml where it is there: ten times as fast, the same text."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(data, None, dumper, sort_keys=False, default_flow_style=None, width=100)
    return text


class _Strict(_Loader):
    """What is refused, before a loader of PyYAML, which may be libyaml's."""

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None and _count_nodes(node, {}) > MOST_NODES:
            text = f"aliases make it more than {MOST_NODES:,} values"
            raise yaml.composer.ComposerError(None, None, text, node.start_mark)
        return node

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        if node.tag == _INT and len(node.value) > MOST_DIGITS:
            text = f"a whole number of {len(node.value):,} characters"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark)
        return super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            text = None
            if not isinstance(key, Hashable):
                text = f"a key is a {type(key).__name__}, not a text"
            elif key in seen:
                text = f"key {key!r} is given twice"
            if text:
                raise yaml.constructor.ConstructorError(None, None, text, key_node.start_mark)
            seen.add(key)
        found: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return found

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError):
            # What PyYAML raises for a text that is not of the type that its tag names.
            text = f"{node.value!r:.100} is no {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark) from None


class StrictLoader(_Strict, yaml.SafeLoader):
    """YAML where a key given twice is an error, 1e6 a number and 2026-11-20 a text.

    Neither nested brackets, nor aliases of aliases, nor endless digits take long: they are errors.
    """

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, f"more than {MOST_DEPTH} levels of nesting", mark
            )
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _is_deep(text: str) -> bool:
    """Whether a document has more than MOST_DEPTH levels of nesting, by libyaml, which is asked for
    no more events then: what lies deeper costs it ever more.
    """
    depth = 1
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MOST_DEPTH:
                return True
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return False


def _count_nodes(node: yaml.Node, known: dict[int, int]) -> int:
    """Values below a node, those of an alias counted where it stands."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        known[id(node)] = MOST_NODES + 1  # until it is known: a node within itself
        pairs = isinstance(node, yaml.MappingNode)
        below = [n for pair in node.value for n in pair] if pairs else node.value
        known[id(node)] = 1 + sum(_count_nodes(n, known) for n in below)
    return known[id(node)]


_INT = "tag:yaml.org,2002:int"
_MERGE = "tag:yaml.org,2002:merge"
_TIMESTAMP, _FLOAT = "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:float"
StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
StrictLoader.add_implicit_resolver(
    _FLOAT, re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)

# The same YAML by libyaml, ten times as fast.
_LONG_LOADER: Any = None
if yaml.__with_libyaml__:
    _LONG_LOADER = type("LongLoader", (_Strict, yaml.CSafeLoader), {})
    _LONG_LOADER.yaml_implicit_resolvers = StrictLoader.yaml_implicit_resolvers
