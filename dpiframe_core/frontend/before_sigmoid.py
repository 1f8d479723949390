"""The logit behind a probability: what its sigmoid was taken of, also where several sigmoids are
joined or chosen from.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from dpiframe_core.frontend.building import Building
from dpiframe_core.frontend.draft import Compute
from dpiframe_core.frontend.values import BATCH, Fixed, Made, Value
from dpiframe_core.program.tensor_ops import Join, Map, Take


def before_sigmoid(build: Building, value: Value) -> Value | None:
    """The logit of a number a sample that a sigmoid makes, or a choice among such numbers and
    constants; None where it is made otherwise.
    """
    found = _logit(build, value)
    return found if found is not None and isinstance(found.source, Made) else None


def _logit(build: Building, value: Value) -> Value | None:
    """The same, or that of a constant."""
    if isinstance(value.source, Fixed):
        probability = value.source.numbers.reshape(-1)[value.offset].double()
        return Value(Fixed(torch.logit(probability).reshape(1)), ((BATCH,),))
    assert isinstance(value.source, Made)
    module = build.draft.module(value.source.module)
    if not isinstance(module, Compute):
        return None
    place = value.offset
    match module.op:
        case Join(outer):
            row, column = divmod(place, module.op.shape(module.operands)[1])
            for k, operand in enumerate(module.operands):
                width = operand.size // outer
                if column < width:
                    return _logit(build, _element(module, k, row * width + column))
                column -= width
        case Take(index, behind):
            shape = module.operands[0].shape
            last = math.prod(shape[len(shape) - behind :])
            rest, within = divmod(place, last)
            before, taken = divmod(rest, len(index))
            read = (before * shape[len(shape) - 1 - behind] + index[taken]) * last + within
            return _logit(build, _element(module, 0, read))
        case Map(("sigmoid", "x0")):
            return _element(module, 0, place)
        case Map("x0"):
            return _logit(build, _element(module, 0, place))
        case Map(("where", str(condition), (str() | float()) as one, (str() | float()) as other)):
            chosen, *given = (_read(module, part, place) for part in (condition, one, other))
            logits = [_logit(build, x) for x in given]
            found = [x for x in logits if x is not None]
            if len(found) == 2 and not all(isinstance(x.source, Fixed) for x in given):
                return build.mapped(("where", "x0", "x1", "x2"), [chosen, *found])
    return None


def _read(module: Compute, part: str | float, place: int) -> Value:
    """What a Map's expression reads by a name, or a number in it."""
    if isinstance(part, float):
        return Value(Fixed(torch.tensor([part])), ((BATCH,),))
    return _element(module, int(part[1:]), place)


def _element(module: Compute, k: int, place: int) -> Value:
    """An element of an operand."""
    operand = module.operands[k]
    index = np.unravel_index(place, operand.shape or (1,))
    offset = operand.offset + sum(
        int(i) * stride for i, stride in zip(index, operand.strides, strict=False)
    )
    if k < len(module.inputs):
        return Value(Made(module.inputs[k]), ((BATCH,),), offset)
    return Value(Fixed(module.constants[k - len(module.inputs)]), ((BATCH,),), offset)
