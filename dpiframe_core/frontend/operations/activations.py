"""Activations that give several results, or that training computes otherwise."""

from __future__ import annotations

from typing import Any

from dpiframe_core.frontend.building import Building, CannotConvertError
from dpiframe_core.frontend.operations.elementwise import leaky_relu
from dpiframe_core.frontend.operations.table import Table
from dpiframe_core.frontend.values import Value

TABLE = Table()


@TABLE.of("rrelu_with_noise")
def rrelu(build: Building, x: Value, noise: Any, lower: float = 1 / 8, upper: float = 1 / 3,
          training: bool = False, **options: Any) -> Value:  # fmt: skip
    """Leaky ReLU by the mean of the two slopes (Xu et al., 2015)."""
    if training:
        raise CannotConvertError("random slopes: call eval() on the model first")
    return build.mapped(leaky_relu("x0", (lower + upper) / 2), [x])


@TABLE.of("rrelu_with_noise_functional")
def rrelu_functional(build: Building, x: Value, noise: Any, *rest: Any, **options: Any
                     ) -> tuple[Value, Any]:  # fmt: skip
    """`rrelu`, and the noise that it did not use."""
    return rrelu(build, x, noise, *rest, **options), noise
