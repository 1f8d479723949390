"""Steps that only programs for a device have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpiframe_core.program.steps import Step, View, Weight


@dataclass(frozen=True)
class FusedLinear(Step):
    """y = x weight^T + bias, ReLU on the column ranges `relu`, then y = x0 * y + xl on the columns
    from `cross_start` on (as many as x0 has); out = y unless None; head_out [B, 1] = the columns of
    y from `head_start` on . head (float32 whatever the type of y).
    """

    x: View
    weight: Weight
    bias: Weight | None
    out: View | None
    relu: tuple[tuple[int, int], ...] = ()
    cross_start: int = 0
    x0: View | None = None
    xl: View | None = None
    head_start: int = 0
    head: Weight | None = None
    head_out: View | None = None


@dataclass(frozen=True)
class LoadDense(Step):
    """out = x, the batch's dense features, which arrive as columns."""

    x: View
    out: View


def joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of columns, without empty ones, those that touch made one."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(r for r in ranges if r[0] < r[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found
