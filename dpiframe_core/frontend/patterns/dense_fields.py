"""Dense features as fields: each number times a vector of its own, joined in order."""

from __future__ import annotations

import torch
from torch import Tensor

from dpiframe_core.frontend.draft import Compute, Draft, Known
from dpiframe_core.frontend.patterns.tidy import is_flat_join, merge_joins
from dpiframe_core.model.modules import DenseEmbedding
from dpiframe_core.program.tensor_ops import Map, MatMul
from dpiframe_core.program.views import DENSE


def find_dense_fields(draft: Draft) -> None:
    """A run of all dense features in order, each times a vector, is a dense embedding."""
    for join in [m for m in draft.modules if isinstance(m, Compute) and is_flat_join(m)]:
        run: list[tuple[str, Tensor]] = []
        for name, operand in zip(join.inputs, join.operands, strict=True):
            vector = _vector(draft, name, len(run))
            whole = (operand.offset, operand.size) == (0, draft.width(name))
            if vector is None or not whole or (run and len(vector) != len(run[0][1])):
                if len(run) == draft.num_dense:
                    break
                run = []
                continue
            run.append((name, vector))
        if draft.num_dense and len(run) == draft.num_dense and len(run[0][1]) > 1:
            _replace(draft, join, run)
    merge_joins(draft)


def _vector(draft: Draft, name: str, feature: int) -> Tensor | None:
    """The vector [D] that the output of this name is dense feature `feature` times."""
    module = draft.module(name)
    if not isinstance(module, Compute) or module.inputs != [DENSE] or len(module.constants) != 1:
        return None
    if module.op not in (MatMul(0, 0, 0), Map(("mul", "x0", "x1"))):
        return None
    x, w = module.operands
    if x.offset != feature or any(x.strides) or not w.is_whole or w.offset:
        return None
    return module.constants[0].reshape(-1) if module.constants[0].numel() == w.size else None


def _replace(draft: Draft, join: Compute, run: list[tuple[str, Tensor]]) -> None:
    dim = len(run[0][1])
    module = DenseEmbedding(name=draft.name("dense_fields"), inputs=(DENSE,), dim=dim)
    weight = torch.stack([vector for _, vector in run])
    known = Known(module, {"weight": weight}, weight.numel())
    first = draft.modules.index(draft.module(run[0][0]))  # type: ignore[arg-type]
    draft.modules.insert(first, known)
    for i, (name, _) in enumerate(run):
        draft.redirect(name, module.name, i * dim)
