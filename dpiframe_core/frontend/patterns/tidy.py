"""Joins of joins are one join, equal joins are the same, a join of one whole output is no join."""

from __future__ import annotations

from dpiframe_core.frontend.draft import Compute, Draft
from dpiframe_core.program.tensor_ops import Join, Operand


def is_flat_join(module: object) -> bool:
    """Whether it sets outputs side by side, each read column by column."""
    return (
        isinstance(module, Compute)
        and module.op == Join(1)
        and not module.constants
        and all(o.is_whole for o in module.operands)
    )


def merge_joins(draft: Draft) -> None:
    """Flatten and share joins; neighbours that continue one another are read as one."""
    seen: dict[tuple[tuple[str, int, int], ...], str] = {}
    for join in list(draft.modules):
        if not isinstance(join, Compute) or not is_flat_join(join):
            continue
        pieces: list[tuple[str, int, int]] = []  # module, first column, columns
        for name, operand in zip(join.inputs, join.operands, strict=True):
            inner = draft.module(name)
            whole = operand.offset == 0 and operand.size == draft.width(name)
            if isinstance(inner, Compute) and is_flat_join(inner) and whole:
                read = zip(inner.inputs, inner.operands, strict=True)
                found = [(n, o.offset, o.size) for n, o in read]
            else:
                found = [(name, operand.offset, operand.size)]
            for piece in found:
                last = pieces[-1] if pieces else None
                if last and last[0] == piece[0] and last[1] + last[2] == piece[1]:
                    pieces[-1] = (last[0], last[1], last[2] + piece[2])
                else:
                    pieces.append(piece)
        join.inputs = [name for name, _, _ in pieces]
        join.operands = [Operand((n,), (1,), start) for _, start, n in pieces]
        key = tuple(pieces)
        if key in seen:
            draft.redirect(join.name, seen[key])
            continue
        seen[key] = join.name
        if len(pieces) == 1 and (join.name != draft.output or pieces[0][1:] == (
            0, draft.width(pieces[0][0]))):  # fmt: skip
            draft.redirect(join.name, pieces[0][0], pieces[0][1])
