"""Products with a fixed matrix as linear layers; linear layers with ReLU, one behind another, as an
MLP.
"""

from __future__ import annotations

import math

from torch import Tensor

from dpiframe_core.frontend.draft import Compute, Draft, Known
from dpiframe_core.model.modules import MLP, Linear
from dpiframe_core.program.tensor_ops import Map, MatMul
from dpiframe_core.program.views import DENSE


def find_linear(draft: Draft) -> None:
    """x W^T of a whole output, and the bias that is added to it next."""
    for module in list(draft.modules):
        weight = _matrix(draft, module)
        if weight is None or not isinstance(module, Compute):
            continue
        units = weight.shape[0]
        weights = {"weight": weight}
        reader = draft.only_reader(module.name)
        bias = _bias(module, reader)
        if bias is not None:
            assert isinstance(reader, Compute)
            weights["bias"] = bias
            draft.redirect(reader.name, module.name)
            draft.modules.remove(reader)
        name = module.name
        linear = Linear(name=name, inputs=(module.inputs[0],), units=units, bias=bias is not None)
        draft.replace(module, Known(linear, weights, units))


def _matrix(draft: Draft, module: object) -> Tensor | None:
    """The matrix [units, W] of a product of one whole output, row by row of the batch."""
    if not isinstance(module, Compute) or not isinstance(module.op, MatMul):
        return None
    if (module.op.batch, module.op.rows) != (0, 0) or module.op.inner < 1:
        return None
    if len(module.inputs) != 1 or len(module.constants) != 1:
        return None
    x, w = module.operands
    width = draft.width(module.inputs[0])
    constant = module.constants[0]
    if not x.is_whole or x.offset or x.size != width or not w.is_whole or w.offset:
        return None
    if constant.numel() != w.size:
        return None
    return constant.reshape(width, -1).T.contiguous()


def _bias(module: Compute, reader: object) -> Tensor | None:
    """The vector that the only reader adds to a product."""
    if not isinstance(reader, Compute) or reader.op != Map(("add", "x0", "x1")):
        return None
    if reader.inputs != [module.name] or len(reader.constants) != 1:
        return None
    x, b = reader.operands
    size = math.prod(module.op.shape(module.operands))
    if not x.is_whole or x.offset or x.size != size:
        return None
    constant = reader.constants[0].reshape(-1)
    if not b.is_whole and any(b.strides):
        return None
    found = constant[b.offset : b.offset + 1].expand(size) if not any(b.strides) else constant
    return found.contiguous() if found.numel() == size else None


def find_mlps(draft: Draft) -> None:
    """Chains of linear layers with a bias, each followed by a ReLU that only the next one reads."""
    done: set[str] = set()
    for module in list(draft.modules):
        if module.name in done:
            continue
        chain = []
        layer = module
        while (pair := _layer(draft, layer)) is not None:
            chain.append(pair)
            done.update(m.name for m in pair)
            following = draft.only_reader(pair[1].name)
            if not isinstance(following, Known) or following.inputs != [pair[1].name]:
                break
            layer = following
        if chain:
            _replace(draft, chain)


def _layer(draft: Draft, module: object) -> tuple[Known, Compute] | None:
    """A linear layer with a bias and its ReLU."""
    if not isinstance(module, Known) or not isinstance(module.module, Linear):
        return None
    if not module.module.bias or (module.module.inputs == (DENSE,) and draft.num_dense == 0):
        return None
    relu = draft.only_reader(module.name)
    if not isinstance(relu, Compute) or relu.op != Map(("relu", "x0")):
        return None
    (operand,) = relu.operands
    whole = operand.is_whole and operand.offset == 0 and operand.size == module.width
    return (module, relu) if whole else None


def _replace(draft: Draft, chain: list[tuple[Known, Compute]]) -> None:
    name = draft.name("mlp")
    weights = {
        f"{i}/{part}": linear.weights[part]
        for i, (linear, _) in enumerate(chain)
        for part in ("weight", "bias")
    }
    hidden = tuple(linear.width for linear, _ in chain)
    mlp = MLP(name=name, inputs=tuple(chain[0][0].inputs), hidden=hidden)
    last = chain[-1][1]
    draft.replace(last, Known(mlp, weights, hidden[-1]))
    draft.redirect(last.name, name)
    for linear, relu in chain:
        draft.modules = [m for m in draft.modules if m is not linear and m is not relu]
