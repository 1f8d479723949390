"""What the float32 one-kernel pass with cross layers computes from its plan, on the host.

Names are those of csrc/kernels/forward_split_layout.h. Products are made of the plan's pieces in
the order of their use, quarter by quarter, of activations that are split as the kernel splits them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

STRIP, PART = 16, 4  # columns


def first(strips: int, quarter: int) -> int:
    return (strips * quarter + 3) // 4


def column(place: int) -> int:
    """forward_split_column."""
    return place % 8 // 2 * 4 + place // 8 * 2 + place % 2


LOGICAL = np.argsort([column(p) for p in range(STRIP)])  # where a strip's columns lie


def split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows as two float16 a number, and their inverse powers of two."""
    largest = np.abs(x).max(1, initial=0).astype(np.float32)
    exponent = np.maximum(largest.view(np.uint32) >> 23, 16).astype(np.int32)
    scaled = np.ldexp(x, (127 + 14 - exponent)[:, None]).astype(np.float32)
    large = scaled.astype(np.float16)
    small = (scaled - large.astype(np.float32)).astype(np.float16)
    return large, small, np.ldexp(np.float32(1), exponent - 127 - 14)


@dataclass
class Product:
    """Of one block: a quarter of k to its large and small weights [2 tile, columns], in the order
    of the output's columns; bias, inverse powers of two and head [3, 2 tile].
    """

    weights: dict[int, tuple[np.ndarray, np.ndarray]]
    vectors: np.ndarray


class SplitKernel:
    """The plan of a model with `num_cross` cross layers."""

    def __init__(self, plan: dict, num_cross: int) -> None:
        self.plan, self.num_cross = plan, num_cross
        x, h = plan["x_strips"], plan["h_strips"]
        cross = [(plan["cross_tile"], x, x)] * num_cross
        deep = [(plan["deep_tile"], k, n) for k, n in zip([x, *h], h, strict=False)]
        self.shapes = [deep[0], *cross, *deep[1:]]
        self.blocks = [list(self._products(block)) for block in range(2)]

    def _products(self, block: int) -> Iterator[Product]:
        weights = self.plan["weights"].view(np.float16).reshape(2, -1)[block]
        vectors = self.plan["vectors"].reshape(2, -1)[block]
        pieces, at = iter(self.plan["pieces"]), 0
        for tile, in_strips, _ in self.shapes:
            found = {}
            for quarter in (2 * block, 2 * block + 1, 2 - 2 * block, 3 - 2 * block):
                count = first(in_strips, quarter + 1) - first(in_strips, quarter)
                made = [_piece(weights, next(pieces), tile) for _ in range(count) for _ in range(2)]
                found[quarter] = _joined(made[::2], tile), _joined(made[1::2], tile)
            yield Product(found, vectors[at : at + 6 * tile].reshape(3, 2 * tile))
            at += 6 * tile
        assert next(pieces, None) is None and at == len(vectors)

    def gather(
        self, tables: Sequence[np.ndarray | None], ids: np.ndarray, use_oov: bool = False
    ) -> np.ndarray:
        """x0 [B, 16 x_strips] of ids [F, B]; a slot's table by its made-up address."""
        x0 = np.zeros((ids.shape[1], STRIP * self.plan["x_strips"]), np.float32)
        for i, (address, rows, row_bytes, oov_row, ids_row) in enumerate(self.plan["parts"]):
            if address == 0:
                assert (rows, oov_row, ids_row) == (0, -1, 0)
                continue
            table, begin = tables[(address >> 32) - 1], address % 2**32 // 4
            assert table is not None and table.shape == (rows, row_bytes // 4)
            row = ids[ids_row].copy()
            bad = (row < 0) | (row >= rows)
            row[bad] = oov_row if use_oov and oov_row >= 0 else 0
            four = table[row, begin : begin + PART]
            four[bad & (not use_oov or oov_row < 0)] = 0
            x0[:, PART * i : PART * i + PART] = four
        return x0

    def dots(self, x0: np.ndarray) -> np.ndarray:
        """The heads' dots of both chains [B] of x0 [B, 16 x_strips]."""
        x = h = x0
        total = np.zeros(len(x0))
        for number in range(len(self.shapes)):
            is_cross = 0 < number <= self.num_cross
            y, head = self.multiply(number, x if is_cross or number == 0 else h)
            if is_cross:
                made = x = x0 * y + (x0 if number == 1 else self.kept(x))
            else:
                made = h = np.maximum(y, 0)
            total += (made.astype(np.float64) * head).sum(1)
        return total

    def kept(self, x: np.ndarray) -> np.ndarray:
        """x_l as it lies in shared memory."""
        strips = self.plan["x_strips"]
        cuts = [STRIP * first(strips, quarter) for quarter in range(1, 4)]
        quarters = (split(own) for own in np.split(x, cuts, 1))
        return np.concatenate(
            [
                (large.astype(np.float32) + small.astype(np.float32)) * inverse[:, None]
                for large, small, inverse in quarters
            ],
            1,
        )

    def multiply(self, number: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """x w^T + bias [B, 16 out_strips] as float32 sums, and the head of these columns."""
        tile, in_strips, out_strips = self.shapes[number]
        out, heads = [], []
        for block in range(2):
            product = self.blocks[block][number]
            sums = np.zeros((len(x), 2 * tile), np.float32)
            for quarter, parts in product.weights.items():
                columns = slice(STRIP * first(in_strips, quarter), None)
                own = x[:, columns][:, : parts[0].shape[1]]
                large, small, inverse = (v.astype(np.float64) for v in split(own))
                w, v = (part.astype(np.float64) for part in parts)
                sums += ((large @ (w + v).T + small @ w.T) * inverse[:, None]).astype(np.float32)
            bias, inverse, head = product.vectors
            y = sums * inverse + bias
            for group in range(2):
                quarter = 2 * block + group
                width = STRIP * (first(out_strips, quarter + 1) - first(out_strips, quarter))
                assert not y[:, group * tile + width : (group + 1) * tile].any()
                out.append(y[:, group * tile :][:, :width])
                heads.append(head[group * tile :][:width])
        return np.concatenate(out, 1), np.concatenate(heads)


def _piece(weights: np.ndarray, piece: tuple[int, int, int, int], tile: int) -> np.ndarray:
    """16 columns of k [2 tile, 16], the output's columns in their own order."""
    source, _, size, _ = piece
    assert size == 2 * tile * STRIP * 2
    stored = weights[source // 2 : (source + size) // 2].reshape(2, 2 * tile // STRIP, STRIP, 8)
    return stored[:, :, LOGICAL].reshape(2, 2 * tile, 8).transpose(1, 0, 2).reshape(2 * tile, STRIP)


def _joined(pieces: Sequence[np.ndarray], tile: int) -> np.ndarray:
    return np.concatenate([np.zeros((2 * tile, 0), np.float16), *pieces], 1)
