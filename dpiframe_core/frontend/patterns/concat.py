"""Joins of whole outputs as concats."""

from __future__ import annotations

from dpiframe_core.frontend.draft import Compute, Draft, Known
from dpiframe_core.frontend.patterns.tidy import is_flat_join
from dpiframe_core.model.modules import Concat


def find_concats(draft: Draft) -> None:
    """Every join of whole outputs."""
    for join in list(draft.modules):
        if not isinstance(join, Compute) or not is_flat_join(join) or len(join.inputs) < 2:
            continue
        widths = [draft.width(name) for name in join.inputs]
        if all(
            o.offset == 0 and o.size == width
            for o, width in zip(join.operands, widths, strict=True)
        ):
            concat = Concat(name=join.name, inputs=tuple(join.inputs))
            draft.replace(join, Known(concat, {}, sum(widths)))
