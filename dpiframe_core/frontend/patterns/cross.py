"""Cross networks, by what their layers compute: x0 * (W x + b) + x is one of DCNv2, and
x0 (w . x) + b + x one of DCN.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpiframe_core.frontend.draft import Compute, Draft, Known
from dpiframe_core.model.modules import CrossV1, CrossV2, Linear
from dpiframe_core.program.expression import evaluate
from dpiframe_core.program.tensor_ops import Map

SAMPLES = 64


@dataclass
class _Layer:
    """One cross layer: its map, its product, what it reads, and the weights."""

    out: Compute
    product: Known
    x0: str
    xl: str
    weight: Tensor
    bias: Tensor


def find_crosses(draft: Draft) -> None:
    """Replace each chain of layers over one x0."""
    layers = {}
    for module in draft.modules:
        layer = _layer(draft, module)
        if layer is not None:
            layers[module.name] = layer
    for name, layer in layers.items():
        if layer.xl == layer.x0 and name not in {m for m in layers if layers[m].xl != layers[m].x0}:
            chain = [layer]
            while (following := _next(draft, layers, chain)) is not None:
                chain.append(following)
            _replace(draft, chain)


def _next(draft: Draft, layers: dict[str, _Layer], chain: list[_Layer]) -> _Layer | None:
    """The layer that alone reads the last one, of the same kind and x0."""
    last = chain[-1]
    found = [x for x in layers.values() if x.xl == last.out.name and x.x0 == last.x0]
    if len(found) != 1 or found[0].weight.shape != last.weight.shape:
        return None
    allowed = {found[0].out.name, found[0].product.name}
    readers = {m.name for m in draft.readers(last.out.name)}
    return found[0] if readers <= allowed and draft.output != last.out.name else None


def _layer(draft: Draft, module: object) -> _Layer | None:
    if not isinstance(module, Compute) or not isinstance(module.op, Map):
        return None
    products = [
        maker for name in module.inputs
        if isinstance(maker := draft.module(name), Known) and isinstance(maker.module, Linear)
        and draft.only_reader(name) is module
    ]  # fmt: skip
    for product in products:
        xl = product.inputs[0]
        width = draft.width(xl)
        others = {name for name in module.inputs if name not in (product.name, xl)}
        x0 = others.pop() if others else xl
        if others or draft.width(x0) != width or draft.width(module.name) != width:
            continue
        if product.width not in (1, width):
            continue
        layer = _fitting(draft, module, product, x0, xl, width)
        if layer is not None:
            return layer
    return None


def _fitting(
    draft: Draft, module: Compute, product: Known, x0: str, xl: str, width: int
) -> _Layer | None:
    """The layer, where the map is one on random numbers."""
    generator = torch.Generator().manual_seed(0)

    def numbers(n: int) -> Tensor:
        return torch.randn(SAMPLES, n, generator=generator, dtype=torch.float64)

    values = {x0: numbers(width), xl: numbers(width), product.name: numbers(product.width)}
    if xl == x0:
        values[xl] = values[x0]
    constants = [c.double().reshape(1, -1) for c in module.constants]
    tensors = [values[name] for name in module.inputs] + constants
    read = [o.read(t) for o, t in zip(module.operands, tensors, strict=True)]
    assert isinstance(module.op, Map)
    found = evaluate(module.op.expression, read).reshape(SAMPLES, -1)
    plain = values[x0] * values[product.name] + values[xl]
    if found.shape != plain.shape:
        return None
    rest = found - plain
    weight, bias = product.weights["weight"], product.weights.get("bias")
    if product.width == width and width > 1:
        if float(rest.abs().max()) > 1e-9:
            return None
        bias = torch.zeros(width, dtype=weight.dtype) if bias is None else bias
        return _Layer(module, product, x0, xl, weight, bias)
    own = 0.0 if bias is None else float(bias)
    if product.width != 1 or own != 0.0 or float((rest - rest[:1]).abs().max()) > 1e-9:
        return None
    added = rest[0]
    exact = [c for c in constants if c.numel() == width and (c[0] - added).abs().max() < 1e-9]
    return _Layer(module, product, x0, xl, weight, exact[0][0] if exact else added)


def _replace(draft: Draft, chain: list[_Layer]) -> None:
    is_v2 = chain[0].weight.shape[0] > 1
    kind = CrossV2 if is_v2 else CrossV1
    module = kind(name=draft.name("cross"), inputs=(chain[0].x0,), layers=len(chain))
    weights = {}
    for i, layer in enumerate(chain):
        weights[f"{i}/weight"], weights[f"{i}/bias"] = layer.weight, layer.bias
    last = chain[-1].out
    draft.replace(last, Known(module, weights, draft.width(last.name)))
    draft.redirect(last.name, module.name)
    for layer in chain:
        gone = (layer.out, layer.product)
        draft.modules = [m for m in draft.modules if m not in gone]
