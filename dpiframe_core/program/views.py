"""Columns of a program's buffers, and what they hold while a program is run or bounded.

A buffer is a matrix [B, width] of activations; a view is a range of its columns. `dense` [B, N],
the dense features, is the one buffer that comes from outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

DENSE = "dense"  # the buffer of the dense features


class Weight(str):
    """The name of a program's weight; its type tells it from other strings."""


@dataclass(frozen=True)
class View:
    """Columns start .. start+width-1 of a buffer."""

    buffer: str
    start: int
    width: int

    def columns(self, start: int, width: int) -> View:
        """A range of this view's columns."""
        return View(self.buffer, self.start + start, width)

    def overlaps(self, other: View) -> bool:
        """Whether the two share a column."""
        return (
            self.buffer == other.buffer
            and self.start < other.start + other.width
            and other.start < self.start + self.width
        )

    def contains(self, other: View) -> bool:
        """Whether all columns of the other are this view's."""
        ends = other.start + other.width <= self.start + self.width
        return self.buffer == other.buffer and self.start <= other.start and ends

    def __str__(self) -> str:
        return f"{self.buffer}[{self.start}:{self.start + self.width}]"


class State:
    """What a running program sees: buffers [B, width], weights, ids [F, B]."""

    def __init__(
        self, buffers: dict[str, Tensor], weights: Mapping[str, Tensor], ids: Tensor
    ) -> None:
        self.buffers, self.weights, self.ids = buffers, weights, ids

    def __getitem__(self, view: View) -> Tensor:
        buffer = self.buffers[view.buffer]
        if view.width == buffer.shape[1]:
            return buffer
        return buffer[:, view.start : view.start + view.width]


class Bounds:
    """The largest magnitude that each column of each buffer can have, infinite where not known.

    `largest`: the largest magnitude of each table and of each product's weight.
    """

    def __init__(
        self,
        columns: dict[str, np.ndarray],
        weights: Mapping[str, np.ndarray],
        largest: Mapping[str, float],
    ) -> None:
        self._columns, self._weights, self.largest = columns, weights, largest

    def __getitem__(self, view: View) -> np.ndarray:
        return self._columns[view.buffer][view.start : view.start + view.width]

    def __setitem__(self, view: View, bounds: np.ndarray | float) -> None:
        self[view][:] = bounds

    def size(self, weight: Weight | None) -> Any:
        """Magnitudes of a weight's numbers; 0 for none."""
        return np.abs(self._weights[weight].astype(np.float64)) if weight else 0.0
