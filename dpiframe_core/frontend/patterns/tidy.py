"""Equal modules are one, joins of joins are one join, a join of one whole output is no join."""

from __future__ import annotations

import torch

from dpiframe_core.frontend.draft import Compute, Draft, Lookup
from dpiframe_core.program.tensor_ops import Join, Operand


def share_equal(draft: Draft) -> None:
    """What a model computes twice, such as a mask or a norm of the same numbers, is there once."""
    seen: dict[object, list[Compute | Lookup]] = {}
    for module in draft.modules:
        if isinstance(module, Lookup):
            key: object = (tuple(module.columns), tuple(module.tables))
        elif isinstance(module, Compute):
            key = (module.op, tuple(module.inputs), tuple(module.operands))
        else:
            continue
        others = seen.setdefault(key, [])
        same = next((other for other in others if _has_constants_of(other, module)), None)
        if same is None:
            others.append(module)
        else:
            draft.redirect(module.name, same.name)


def _has_constants_of(a: Compute | Lookup, b: Compute | Lookup) -> bool:
    if not isinstance(a, Compute) or not isinstance(b, Compute):
        return True
    return all(
        x is y or (x.dtype == y.dtype and torch.equal(x, y))
        for x, y in zip(a.constants, b.constants, strict=True)
    )


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
