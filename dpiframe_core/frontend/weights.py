"""The weights of a model that is imported: which cannot be, which are not needed, which change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dpiframe_core.errors import ModelImportError
from dpiframe_core.frontend.tracing.source import Source

_Place = tuple[int, tuple[int, ...], tuple[int, ...]]


def check_weights(source: Source) -> None:
    """ModelImportError where a weight that the score needs holds numbers that are not finite."""
    used = {_place(tensor) for tensor in _used(source)}
    for name, tensor in source.parameters().items():
        if _place(tensor) not in used or not tensor.is_floating_point():
            continue
        bad = ~torch.isfinite(tensor.detach())
        if bool(bad.any()):
            where = bad.nonzero()[0].tolist()
            raise ModelImportError(
                f"weight {name} of shape {list(tensor.shape)} holds {int(bad.sum())} numbers that "
                f"are not finite, the first at {where}; such a model has not been trained to an "
                "end: take an earlier checkpoint"
            )


def weights_report(source: Source, stored: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """What becomes of the weights: those that the score does not need, those of a type that float32
    rounds or widens, those of several names, and those that are stored several times.
    """
    used = {_place(tensor) for tensor in _used(source)}
    found = {
        name: tensor for name, tensor in source.parameters().items() if tensor.is_floating_point()
    }
    tied = defaultdict(list)
    for name, tensor in found.items():
        if tensor.numel():
            tied[_place(tensor)].append(name)
    copies = defaultdict(list)
    for name, tensor in stored.items():
        copies[_place(tensor)].append(name)

    def of(*kinds: torch.dtype) -> list[str]:
        return [n for n, t in found.items() if t.dtype in kinds and _place(t) in used]

    return {
        "unused_weights": [n for n, t in found.items() if _place(t) not in used],
        "rounded_to_float32": of(torch.float64),
        "widened_to_float32": of(torch.float16, torch.bfloat16),
        "tied_weights": [names for names in tied.values() if len(names) > 1],
        "stored_several_times": [names for names in copies.values() if len(names) > 1],
    }


def _used(source: Source) -> list[Tensor]:
    """The program's tensors that something is computed of."""
    nodes = source.traced.graph.graph.nodes
    names = [str(n.target) for n in nodes if n.op == "placeholder" and n.users]
    return [source.traced.tensors[name] for name in names if name in source.traced.tensors]


def _place(tensor: Tensor) -> _Place:
    """Where a tensor lies: tied weights have one place."""
    return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride())
