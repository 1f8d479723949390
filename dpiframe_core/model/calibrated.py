"""A model whose last step corrects its logit: calibration that was fitted after training."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from dpiframe_core.errors import SpecError
from dpiframe_core.model.modules.tensor import Tensor
from dpiframe_core.model.spec import ModelSpec
from dpiframe_core.program.expression import Expression
from dpiframe_core.program.tensor_ops import Map, Operand

NAME = "calibration"
MOST_KNOTS = 256


class Curve(NamedTuple):
    """A rising line through knots (logit of the model, logit that is right), straight in between.

    Below the first and above the last knot it goes on with these slopes.
    """

    knots: tuple[tuple[float, float], ...]
    slope_below: float = 1.0
    slope_above: float = 1.0


def straight(scale: float, shift: float) -> Curve:
    """scale * logit + shift."""
    return Curve(((0.0, shift),), scale, scale)


def calibrated(spec: ModelSpec, curve: Curve) -> ModelSpec:
    """The model with the curve as its last step, in place of one that it has. No weights are added.

    SpecError: knots that do not rise.
    """
    base = uncalibrated(spec)
    compute = Map(expression=curve_expression(curve))
    module = Tensor(name=NAME, inputs=(base.output,), compute=compute, operands=(Operand.whole(1),))
    parts = base.model_dump(mode="python") | {"output": NAME}
    parts["modules"] = [*parts["modules"], module.model_dump(mode="python")]
    return ModelSpec(**parts)


def uncalibrated(spec: ModelSpec) -> ModelSpec:
    """The model without the calibration that `calibrated` gave it."""
    last = spec.modules[-1]
    if spec.output != NAME or not isinstance(last, Tensor) or last.name != NAME:
        return spec
    parts = spec.model_dump(mode="python") | {"output": last.inputs[0]}
    parts["modules"] = parts["modules"][:-1]
    return ModelSpec(**parts)


def curve_expression(curve: Curve) -> Expression:
    """The curve of the operand x0."""
    knots = curve.knots
    if not 1 <= len(knots) <= MOST_KNOTS:
        raise SpecError(f"a calibration needs 1 to {MOST_KNOTS} knots, got {len(knots)}")
    (first_x, first_y), (last_x, _) = knots[0], knots[-1]
    if len(knots) == 1 and curve.slope_below == curve.slope_above:
        scale = curve.slope_below  # as lowering recognises it (fuse_head)
        return ("add", ("mul", "x0", scale), first_y - scale * first_x)
    # Added up from the left, each part for the logits between its two knots.
    below: Expression = ("sub", ("min", "x0", first_x), first_x)
    total: Expression = ("add", ("mul", below, curve.slope_below), first_y)
    for (x, y), (next_x, next_y) in pairwise(knots):
        if next_x <= x or next_y < y:
            raise SpecError(f"knots of a calibration must rise, got {x, y} and {next_x, next_y}")
        inside: Expression = ("sub", ("min", ("max", "x0", x), next_x), x)
        total = ("add", total, ("mul", inside, (next_y - y) / (next_x - x)))
    above: Expression = ("sub", ("max", "x0", last_x), last_x)
    return ("add", total, ("mul", above, curve.slope_above))
