"""Any PyTorch module with its embedding tables in one: what its author would do to speed it up."""

from __future__ import annotations

import itertools
import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.tools_common import legalize_graph

from pipeline.errors import DpiframeError

EMBEDDING = torch.ops.aten.embedding.default


@torch.no_grad()
def one_table(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    """The module for inputs of these shapes, its lookups of one width made one lookup of one table.

    It is exported, so it computes the same operations; only what it looks up by ids that depend on
    other lookups stays as it is. DpiframeError where there are no two lookups to join.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of how the module is written
        exported = torch.export.export(module, args, kwargs, strict=False)
    program = exported.module(check_guards=False)
    assert isinstance(program, GraphModule)
    found = _joined(program)
    if not found:
        raise DpiframeError("it has no two lookups that could be one")
    for number, nodes in enumerate(found):
        _join(program, nodes, f"one_table_{number}")
    legalize_graph(program)
    program.graph.eliminate_dead_code()
    program.recompile()
    return program


def _joined(program: GraphModule) -> list[list[Node]]:
    """The lookups that can be one, by width and type of their tables."""
    behind: set[Node] = set()  # of a lookup
    groups: dict[tuple[int, torch.dtype], list[Node]] = defaultdict(list)
    for node in program.graph.nodes:
        table = node.args[0] if node.target is EMBEDDING else None
        if isinstance(table, Node) and table.op == "get_attr" and node.args[1] not in behind:
            weight = _tensor(program, table)
            groups[weight.shape[1], weight.dtype].append(node)
        if node.target is EMBEDDING or behind.intersection(node.all_input_nodes):
            behind.add(node)
    return [nodes for nodes in groups.values() if len(nodes) > 1]


def _join(program: GraphModule, nodes: Sequence[Node], name: str) -> None:
    """One lookup of one table, and the part of it that each of the lookups was."""
    graph: Graph = program.graph
    weights = {table: _tensor(program, table) for table in (node.args[0] for node in nodes)}
    rows = itertools.accumulate((len(w) for w in weights.values()), initial=0)
    starts = dict(zip(weights, rows, strict=False))
    program.register_buffer(name, torch.cat(list(weights.values())))
    shapes = [tuple(node.args[1].meta["val"].shape) for node in nodes]  # type: ignore[union-attr]
    with graph.inserting_before(nodes[0]):
        flat = [
            graph.call_function(
                torch.add, (graph.call_function(torch.flatten, (n.args[1],)), starts[n.args[0]])
            )
            for n in nodes
        ]
        looked_up = graph.call_function(
            EMBEDDING, (graph.get_attr(name), graph.call_function(torch.cat, (flat,)))
        )
        sizes = [torch.Size(shape).numel() for shape in shapes]
        split = graph.call_function(torch.split, (looked_up, sizes))
        for i, (node, shape) in enumerate(zip(nodes, shapes, strict=True)):
            part = graph.call_method("__getitem__", (split, i))
            part = graph.call_function(torch.unflatten, (part, 0, shape))
            node.replace_all_uses_with(part)
    for node in nodes:
        graph.erase_node(node)


def _tensor(program: GraphModule, node: Any) -> Tensor:
    found: Any = program
    for part in node.target.split("."):
        found = getattr(found, part)
    assert isinstance(found, Tensor)
    return found
