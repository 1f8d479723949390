"""Factorisation machines, by what is computed, not by how it is written.

A part of the model without weights that makes one number a sample of one output X [F, D] is run on
random numbers: where it gives 1/2 sum_d ((sum_f x_fd)^2 - sum_f x_fd^2), it is one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpiframe_core.frontend.draft import Compute, Draft, Known, Lookup
from dpiframe_core.model.modules import FM, Concat, DenseEmbedding
from dpiframe_core.program.tensor_ops import Map, MatMul, Reduce

SAMPLES = 5
MOST_MODULES = 40


def find_fm(draft: Draft) -> None:
    """Replace each part that is a factorisation machine, the largest first."""
    for module in reversed(list(draft.modules)):
        if module not in draft.modules or not isinstance(module, Compute):
            continue
        if not isinstance(module.op, (Map, Reduce, MatMul)) or draft.width(module.name) != 1:
            continue
        part = _part(draft, module)
        if part is None:
            continue
        source, inside = part
        inputs = _fields(draft, source)
        dims = {dim for name in inputs for dim in _dims(draft, name)}
        if len(dims) == 1 and _is_fm(draft, source, inside, dims.pop()):
            fm = FM(name=draft.name("fm"), inputs=tuple(inputs))
            draft.replace(module, Known(fm, {}, 1))
            draft.redirect(module.name, fm.name)


def _part(draft: Draft, module: Compute) -> tuple[str, list[Compute]] | None:
    """The one output that the module is made of without any weight, and the modules between."""
    sources: set[str] = set()
    inside: dict[str, Compute] = {}
    left = [module]
    while left:
        current = left.pop()
        if current.name in inside:
            continue
        inside[current.name] = current
        if len(inside) > MOST_MODULES or len(sources) > 1:
            return None
        for name in current.inputs:
            maker = draft.module(name)
            if isinstance(maker, Compute) and not _has_weights(maker):
                left.append(maker)
            else:
                sources.add(name)
    if len(sources) != 1 or _has_weights(module):
        return None
    ordered = [m for m in draft.modules if m.name in inside and isinstance(m, Compute)]
    return sources.pop(), ordered


def _has_weights(module: Compute) -> bool:
    """Whether it reads numbers other than 0 and 1, which masks are made of, and 1/2."""
    return any(not bool(((c == 0) | (c == 1) | (c == 0.5)).all()) for c in module.constants)


def _fields(draft: Draft, source: str) -> list[str]:
    """The modules that make the fields of an output."""
    maker = draft.module(source)
    if isinstance(maker, Known) and isinstance(maker.module, Concat):
        return maker.inputs
    return [source]


def _dims(draft: Draft, name: str) -> list[int]:
    """The width of each field of a module; 0 where it has no fields."""
    maker = draft.module(name)
    if isinstance(maker, Lookup):
        return [draft.tables[key].weight.shape[1] for key in maker.tables]
    if isinstance(maker, Known) and isinstance(maker.module, DenseEmbedding):
        return [maker.module.dim]
    return [0]


def _is_fm(draft: Draft, source: str, inside: list[Compute], dim: int) -> bool:
    width = draft.width(source)
    if dim < 1 or width % dim or width == dim:
        return False
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, width, generator=generator, dtype=torch.float64)
    fields = x.reshape(SAMPLES, -1, dim)
    wanted = 0.5 * (fields.sum(1).square() - fields.square().sum(1)).sum(1)
    found = run_part(inside, {source: x})[:, 0]
    return bool((found - wanted).abs().max() < 1e-9 * wanted.abs().max())


def run_part(modules: list[Compute], values: dict[str, Tensor]) -> Tensor:
    """The last module's output, with those of others given."""
    batch = next(iter(values.values())).shape[0]
    for module in modules:
        tensors = [values[name] for name in module.inputs]
        tensors += [c.double().reshape(1, -1) for c in module.constants]
        read = [o.read(t) for o, t in zip(module.operands, tensors, strict=True)]
        out = module.op.compute(read)
        values[module.name] = out.expand(batch, *out.shape[1:]).reshape(batch, -1).contiguous()
    return values[modules[-1].name]
