"""Products of the fused FP16x3 cross kernel, and the stages that they stream.

Names are those of csrc/kernels/fused/cross_fp16x3/smem_layout.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

STRIP = 16  # columns
EPILOGUE_STRIPS = 4  # of x0 and a cross layer's vectors
X0_BYTES = 2 * 2 * 128 * 16  # of a strip
VECTOR_BYTES = 3 * 2 * 4  # a column


class Source(IntEnum):
    """Of a stage; the upper two bits of its `source`."""

    WEIGHTS = 0
    VECTORS = 1
    X0 = 2


def first(strips: int, quarter: int) -> int:
    return (strips * quarter + 3) // 4


def count(strips: int, quarter: int) -> int:
    return first(strips, quarter + 1) - first(strips, quarter)


def column(place: int) -> int:
    """strip_column."""
    return place % 8 // 2 * 4 + place // 8 * 2 + place % 2


LOGICAL = np.argsort([column(p) for p in range(STRIP)])  # where a strip's columns lie


@dataclass
class Shape:
    """Fp16x3Product."""

    is_cross: bool
    tile: int
    in_strips: int
    out_strips: int

    @property
    def parts(self) -> int:
        """Of the large and the small weights a stage has so many."""
        return 1 if self.tile > 128 else 2

    @property
    def weight_bytes(self) -> int:
        """Of a stage."""
        return self.parts * 2 * self.tile * STRIP * 2

    def ends(self) -> Iterator[tuple[int, int]]:
        """A cross layer's strips whose vectors and x0 come together: the first, how many."""
        for begin in range(0, self.tile // STRIP, EPILOGUE_STRIPS):
            yield begin, min(EPILOGUE_STRIPS, self.tile // STRIP - begin)


def shapes(plan: dict, num_cross: int) -> list[Shape]:
    """fp16x3_products."""
    x, h = plan["x_strips"], plan["h_strips"]
    deep = [Shape(False, plan["deep_tile"], k, n) for k, n in zip([x, *h], h, strict=False)]
    return [deep[0], *[Shape(True, plan["cross_tile"], x, x)] * num_cross, *deep[1:]]


class Stages:
    """A cta's, one after the other."""

    def __init__(self, plan: dict, cta: int) -> None:
        self.weights = plan["weights"].view(np.float16).reshape(2, -1)[cta]
        self.vectors = plan["vectors"].reshape(2, -1)[cta]
        self.rest = iter(plan["stages"])

    def next(self, kind: Source, size: int) -> int:
        """Where the next one is, which must be of that kind and of so many bytes."""
        source, _, found, _ = next(self.rest)
        assert (source >> 30, found) == (kind, size)
        return source % 2**30

    def strip(self, shape: Shape) -> np.ndarray:
        """16 columns of k [large or small, 2 tile, 16], all columns in their order."""
        made = []
        for _ in range(2 // shape.parts):
            begin = self.next(Source.WEIGHTS, shape.weight_bytes) // 2
            made.append(self.weights[begin : begin + shape.weight_bytes // 2])
        stored = np.concatenate(made).reshape(2, 2, 2 * shape.tile // STRIP, STRIP, 8)
        own = stored[:, :, :, LOGICAL].reshape(2, 2, 2 * shape.tile, 8)
        return own.transpose(0, 2, 1, 3).reshape(2, 2 * shape.tile, STRIP)[:, :, LOGICAL]

    def columns(self, strips: int) -> np.ndarray:
        """Vectors [3, 2, columns]."""
        begin = self.next(Source.VECTORS, VECTOR_BYTES * strips * STRIP) // 4
        return self.vectors[begin : begin + 6 * strips * STRIP].reshape(3, 2, -1)

    def words(self, strips: int) -> slice:
        """Of x0 of so many strips."""
        begin = self.next(Source.X0, strips * X0_BYTES)
        return slice(begin // X0_BYTES, begin // X0_BYTES + strips)
