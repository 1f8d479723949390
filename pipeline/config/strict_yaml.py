"""A YAML loader without surprises: see `StrictLoader`."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml


class StrictLoader(yaml.SafeLoader):
    """YAML where a key given twice is an error, 1e6 a number and 2026-11-20 a text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, Hashable):
                text = f"the key in line {line} is a {type(key).__name__}, not a text"
                raise yaml.constructor.ConstructorError(None, None, text)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice (again in line {line})"
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_MERGE = "tag:yaml.org,2002:merge"
_TIMESTAMP, _FLOAT = "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:float"
StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
StrictLoader.add_implicit_resolver(
    _FLOAT, re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
