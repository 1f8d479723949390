"""A product of a kernel: its sizes, the order of its constant operand, its ring, its tiles."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpiframe_core.engine.cuda.tile.index import Index, Scope, size_of, variable
from dpiframe_core.engine.translation import Operation
from dpiframe_core.program.tensor_ops import MatMul, Operand

Order = Literal["lanes", "blocks", "fp16x3"]  # of a constant operand's elements
WARPS = 8  # of a CTA
LEAST_TILE = 8  # rows, columns and inner size of a product on tensor cores
STAGES = 4  # chunks of a ring
LEAST_RESIDENT = 32  # columns of a constant operand that is all in shared memory
MOST_WEIGHT = 32 * 1024  # elements of a linear layer's weight that a group takes in
MOST_RESIDENT = 32 * 1024  # bytes of it
MOST_SUMMED = 128  # columns of a row that a warp sums
MOST_REGISTERS = 96  # of a thread, for sums and operands
# Cycles of a multiprocessor in which a warp reads 16 x 16 elements of an operand, by how they lie.
READING = {"separable": 1.0, "Rows": 2.0, "Columns": 2.0, "Packed": 4.0, "Pairs": 4.0,
           "Apart": 12.0, "operand": 16.0}  # fmt: skip


@dataclass(frozen=True)
class Product:
    """A MatMul as products [rows, outer x inner] x [outer x inner, columns] of a tile.

    Where b is constant, rows are those of all samples and products those of the batch axes; else a
    product is one of a sample.
    """

    op: MatMul
    a: Operand
    b: Operand
    constant: np.ndarray | None
    samples: int
    batches: int
    rows_a_sample: int
    columns: int
    outer: int
    inner: int

    @classmethod
    def of(cls, operation: Operation, op: MatMul, samples: int) -> Product:
        a, b = operation.operands
        source = operation.sources[1]
        shape = b.shape[op.batch : op.batch + op.inner]
        inner = shape[-1] if shape else 1
        outer = size_of(shape) // inner
        if outer > 1 and -(-inner // 16) * 16 > 1.5 * inner:
            inner, outer = inner * outer, 1
        if outer == 1 and inner >= 512 and inner % 64 == 0:
            inner, outer = 64, inner // 64  # chunks
        return cls(
            op,
            a,
            b,
            source if isinstance(source, np.ndarray) else None,
            samples,
            size_of(a.shape[: op.batch]),
            size_of(a.shape[op.batch : op.batch + op.rows]),
            size_of(b.shape[op.batch + op.inner :]),
            outer,
            inner,
        )

    @property
    def products(self) -> int:
        return self.batches if self.constant is not None else self.batches * self.samples

    @property
    def rows(self) -> int:
        return self.rows_a_sample * (self.samples if self.constant is not None else 1)

    @property
    def fills_tiles(self) -> bool:
        """Whether tensor cores take it; less is done number by number. Rows of all samples are
        many, so that tiles which are half empty pay, too.
        """
        inner = self.outer * self.inner
        if self.constant is not None and self.rows >= 16 and self.columns * inner >= 32:
            return min(self.columns, inner) >= LEAST_TILE // 2
        return min(self.rows, self.columns, inner) >= LEAST_TILE

    @property
    def tiles_of_row(self) -> int:
        """Tiles of 16 columns."""
        return -(-self.columns // 16)

    def places(self, scope: Scope) -> tuple[Index, Index, Index]:
        """Sample, place in the batch axes, and row of (q, r)."""
        if self.constant is not None:
            sample, row = scope.divided(variable("r"), self.rows_a_sample)
            return sample, variable("q"), row
        sample, batch = scope.divided(variable("q"), self.batches)
        return sample, batch, variable("r") if "r" in scope.extents else Index()

    def operand_places(
        self, scope: Scope, k: int, within: Index | None = None
    ) -> tuple[list[Index], Index]:
        """Places along the axes of a or b, and the sample; `within`: the inner place, `i`."""
        op, inmost = self.op, within or variable("i")
        sample, batch, row = self.places(scope)
        batches = scope.split(batch, self.a.shape[: op.batch])
        shape = self.b.shape[op.batch : op.batch + op.inner]
        if shape and shape[-1] == self.inner:
            inner = [*scope.split(variable("o"), shape[:-1]), inmost]
        else:
            place = variable("o").times(self.inner).plus(inmost)
            inner = scope.split(place if self.outer > 1 else inmost, shape)
        if k == 0:
            rows = scope.split(row, self.a.shape[op.batch : op.batch + op.rows])
            return [*batches, *rows, *inner], sample
        columns = scope.split(variable("c"), self.b.shape[op.batch + op.inner :])
        return [*batches, *inner, *columns], sample

    def matrices(self) -> np.ndarray:
        """The constant operand [products, outer, inner, columns]."""
        assert self.constant is not None
        return np.ascontiguousarray(self.b.numbers(self.constant)).reshape(
            self.batches, self.outer, self.inner, self.columns
        )

    def ring_bytes(self, element: str) -> int:
        """Bytes of the ring through which the constant operand goes; 0: lanes read it directly,
        since it is small or no more than one block of rows needs it.
        """
        if self.constant is None or self.outer < 2 * STAGES:
            return 0
        if min(self.rows, self.columns, self.outer * self.inner) < 16:
            return 0
        steps, tiles = -(-self.inner // 16), -(-self.columns // 16)
        chunk = steps * tiles * (512 if element != "float" else 1024)
        return STAGES * chunk if chunk <= 16 * 1024 else 0

    def resident_bytes(self, element: str) -> int:
        """Bytes of the whole constant operand in shared memory; 0: it is not worth it, or too much
        for it. Warpgroups own 64 rows.
        """
        if (
            self.constant is None
            or element == "float"
            or self.rows < 0.6 * (-(-self.rows // 64) * 64)
        ):
            return 0
        if self.columns < LEAST_RESIDENT or self.inner < 16:
            return 0
        inner, columns = -(-self.inner // 16) * 16, -(-self.columns // 16) * 16
        size = 2 * self.batches * self.outer * inner * columns
        return size if size <= MOST_RESIDENT else 0

    def tiles(
        self, of_a: float, of_b: float, is_staged: bool, whole_rows: bool = False
    ) -> tuple[int, int]:
        """Row and column tiles of 16 that a warp owns: the least time by a model of it, in cycles
        of a multiprocessor a step of 16. `of_a`, `of_b`: of reading one tile; `whole_rows`: all
        column tiles.
        """
        is_separable = of_a == READING["separable"]
        rows, columns = -(-self.rows // 16), self.tiles_of_row
        best = (math.inf, 1, columns if whole_rows else 1)
        for i, j in itertools.product((1, 2, 4), (columns,) if whole_rows else (1, 2, 4, 8)):
            fixed = 4 * i * -(-self.inner // 16) if is_separable else 0
            if 8 * i * j + 4 * i + fixed > MOST_REGISTERS or i > rows or j > columns:
                continue
            blocks = self.products * -(-rows // i) * -(-columns // j)
            if is_staged:
                blocks = -(-rows // i) * -(-columns // j)
            rounds = -(-blocks // WARPS)
            busy = min(1.0, blocks / WARPS)
            step = max(1.6 * i * j, of_a * i + of_b * j) + 0.2 * (of_a * i + of_b * j)
            best = min(best, (rounds * (step + 6) * WARPS * (0.3 + 0.7 * busy), i, j))
        return best[1], best[2]


def attention_row_tiles(scores: Product, product: Product) -> int:
    """Row tiles of 16 that a warp owns with all its scores and sums, by the rounds it takes; 0:
    these do not fit its registers.
    """
    columns = -(-scores.columns // 16) + -(-product.columns // 16)
    best = (math.inf, 0)
    for tiles in (1, 2):
        if 8 * tiles * columns <= MOST_REGISTERS - 16 * tiles:
            blocks = scores.products * -(-scores.rows // (16 * tiles))
            best = min(best, (-(-blocks // WARPS) * (tiles + 0.5), tiles))
    return best[1]


def packed(matrices: np.ndarray, element: str, order: Order = "lanes") -> np.ndarray:
    """Matrices [products, outer, inner, columns] in the order in which lanes read them; of 16 bits,
    in blocks of 8 columns x 8 inner places; or float32 as FP16x3 in such blocks: bytes.
    """
    products, outer, inner, columns = matrices.shape
    k, n = -(-inner // 16) * 16, -(-columns // 16) * 16
    full = np.zeros((products, outer, k, n), np.float32)
    full[:, :, :inner, :columns] = matrices
    if order == "fp16x3":
        return _as_fp16x3(full)
    if order == "blocks":
        return _in_16_bits(_blocks(full), element)
    if element == "float":
        parts = full.reshape(products, outer, k // 16, 2, 2, 4, n // 16, 2, 8)
        ordered = parts.transpose(0, 1, 2, 3, 6, 8, 5, 7, 4)
        return np.ascontiguousarray(ordered).view(np.uint8).reshape(-1)
    parts = full.reshape(products, outer, k // 16, 2, 4, 2, n // 16, 2, 8)
    return _in_16_bits(parts.transpose(0, 1, 2, 6, 8, 4, 7, 3, 5), element)


def _blocks(full: np.ndarray) -> np.ndarray:
    products, outer, k, n = full.shape
    return full.reshape(products, outer, k // 8, 8, n // 8, 8).transpose(0, 1, 2, 4, 5, 3)


def _as_fp16x3(full: np.ndarray) -> np.ndarray:
    """Of each chunk the large parts, then the small ones, of columns that are multiplied by a power
    of two, so that float16 holds them; behind them the inverses of these powers.
    """
    _, exponents = np.frexp(np.abs(full).max((1, 2), keepdims=True))
    scaled = np.ldexp(full, 14 - exponents)
    large = scaled.astype(np.float16)
    with np.errstate(invalid="ignore"):  # infinite numbers
        small = (scaled - large).astype(np.float16)
    halves = np.stack([_blocks(large), _blocks(small)], 2)
    inverses = np.ldexp(np.float32(1), exponents - 14)
    return np.concatenate(
        [np.ascontiguousarray(x).view(np.uint8).reshape(-1) for x in (halves, inverses)]
    )


def _in_16_bits(numbers: np.ndarray, element: str) -> np.ndarray:
    """Numbers in their order, rounded to the element's type: bytes."""
    ordered = np.ascontiguousarray(numbers)
    if element == "Half":
        return ordered.astype(np.float16).view(np.uint8).reshape(-1)
    bits = ordered.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype(np.uint16).view(np.uint8).reshape(-1)
