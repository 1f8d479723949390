"""The order and the names of a finished draft's modules, the same however a model was written."""

from __future__ import annotations

from collections import Counter

from dpiframe_core.frontend.draft import AnyModule, Compute, Draft, Known, Lookup
from dpiframe_core.program.views import DENSE

FIRST = ("embedding", "dense_embedding", "cross_v1", "cross_v2")  # before all that could run then
NAMES = {"dense_embedding": "dense_fields", "cross_v1": "cross", "cross_v2": "cross"}


def order_modules(draft: Draft) -> None:
    """Sort modules, each behind what it reads, and name them for what they do."""
    left, done, ordered = list(draft.modules), {DENSE}, []
    while left:
        ready = [m for m in left if isinstance(m, Lookup) or done.issuperset(m.inputs)]
        chosen = min(ready, key=_rank)  # of equals the first
        left.remove(chosen)
        done.add(chosen.name)
        ordered.append(chosen)
    draft.modules = ordered
    _rename(draft)


def _rank(module: AnyModule) -> int:
    kind = _kind(module)
    return FIRST.index(kind) if kind in FIRST else len(FIRST)


def _kind(module: AnyModule) -> str:
    if isinstance(module, Lookup):
        return "embedding"
    return module.op.kind if isinstance(module, Compute) else module.module.op


def _rename(draft: Draft) -> None:
    counts: Counter[str] = Counter()
    new = {DENSE: DENSE}
    for module in draft.modules:
        kind = "logit" if module.name == draft.output else NAMES.get(_kind(module), _kind(module))
        counts[kind] += 1
        new[module.name] = kind if counts[kind] == 1 else f"{kind}_{counts[kind]}"
    for module in draft.modules:
        name = new[module.name]
        if isinstance(module, Known):
            inputs = tuple(new[i] for i in module.inputs)
            module.module = module.module.model_copy(update={"name": name, "inputs": inputs})
        else:
            module.name = name
            if isinstance(module, Compute):
                module.inputs = [new[i] for i in module.inputs]
    draft.output = new[draft.output]
