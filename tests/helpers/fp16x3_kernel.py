"""What the fused FP16x3 cross kernel computes from its plan, on the host.

Products are made of the plan's stages in the order of their use, quarter by quarter, of activations
that are split as the kernel splits them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from fp16x3_stages import STRIP, Stages, count, first, shapes

PART = 4  # columns


def split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows as two float16 a number, and their inverse powers of two, which are kept as a byte."""
    largest = np.abs(x).max(1, initial=0).astype(np.float32)
    exponent = np.maximum(largest.view(np.uint32) >> 23, 16).astype(np.int32)
    scaled = np.ldexp(x, (127 + 14 - exponent)[:, None]).astype(np.float32)
    large = scaled.astype(np.float16)
    small = (scaled - large.astype(np.float32)).astype(np.float16)
    return large, small, (_byte(exponent - 14).astype(np.uint32) << 23).view(np.float32)


def _byte(exponent: np.ndarray) -> np.ndarray:
    assert ((exponent > 0) & (exponent < 255)).all()  # of a number
    return exponent.astype(np.uint8)


def to_words(quarters: Sequence[np.ndarray], tile: int) -> np.ndarray:
    """x0 of both warpgroups, [64, columns] each, as their threads store it: [strips, 4, 128, 4].

    The axes of either form: group, warp, which of a thread's two rows, row, strip, four columns,
    column.
    """
    x = np.stack([np.pad(q, ((0, 0), (0, tile - q.shape[1]))) for q in quarters])
    x = x.reshape(2, 4, 2, 8, tile // STRIP, 4, PART).transpose(4, 0, 2, 1, 3, 5, 6)
    return x.reshape(-1, 4, 128, PART)


def from_words(words: np.ndarray, group: int) -> np.ndarray:
    """As one of them reads it: [64, columns] of the strips that `words` are of."""
    x = words.reshape(-1, 2, 2, 4, 8, 4, PART)[:, group].transpose(2, 1, 3, 0, 4, 5)
    return x.reshape(64, -1)


@dataclass
class Product:
    """Of one cta: a quarter of k to its large and small weights [2 tile, columns], in the order
    of the output's columns; bias, inverse powers of two and head [3, 2 tile]; of a cross layer what
    is read of x0, a slice of the cta's scratch after the other.
    """

    weights: dict[int, tuple[np.ndarray, np.ndarray]]
    vectors: np.ndarray
    x0: list[slice]


class Fp16x3Kernel:
    """The plan of a model with `num_cross` cross layers."""

    def __init__(self, plan: dict, num_cross: int) -> None:
        self.plan, self.num_cross = plan, num_cross
        self.shapes = shapes(plan, num_cross)
        self.ctas = [list(self._products(cta)) for cta in range(2)]

    def _products(self, cta: int) -> Iterator[Product]:
        stages = Stages(self.plan, cta)
        for shape in self.shapes:
            weights = {}
            for quarter in (2 * cta, 2 * cta + 1, 2 - 2 * cta, 3 - 2 * cta):
                strips = [stages.strip(shape) for _ in range(count(shape.in_strips, quarter))]
                none = np.zeros((2, 2 * shape.tile, 0), np.float16)
                large, small = np.concatenate([none, *strips], 2)
                weights[quarter] = large, small
            vectors, x0 = [], []
            if shape.is_cross:
                for _, strips in shape.ends():
                    vectors.append(stages.columns(strips))
                    x0.append(stages.words(strips))
            else:
                vectors.append(stages.columns(shape.tile // STRIP))
            yield Product(weights, np.concatenate(vectors, 2).reshape(3, 2 * shape.tile), x0)
        assert next(stages.rest, None) is None

    def gather(
        self, tables: Sequence[np.ndarray | None], ids: np.ndarray, use_oov: bool = False
    ) -> np.ndarray:
        """x0 [B, 16 x_strips] of ids [F, B]; a slot's table by its made-up address."""
        x0 = np.zeros((ids.shape[1], STRIP * self.plan["x_strips"]), np.float32)
        own = self.plan["groups"][: 4 * self.plan["x_strips"]]
        for i, (address, rows, row_bytes, oov_row, ids_row) in enumerate(own):
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
        scratch = self.stored(x0)
        total = np.zeros(len(x0))
        products = np.zeros_like(x0)  # of all cross layers so far
        for number, shape in enumerate(self.shapes):
            sums = self.multiply(number, x if shape.is_cross or number == 0 else h)
            bias, inverse, last = self.vectors(number)
            if shape.is_cross:
                products = products + sums
                own = self.loaded(number, scratch)
                made = x = own + own * (products * inverse + bias)
                assert np.isfinite(products).all()
            else:
                made = h = np.maximum(sums * inverse + bias, 0)
            if shape.is_cross and number < self.num_cross:  # behind the first deep layer
                products = products * last
            else:
                total += (made.astype(np.float64) * last).sum(1)
        return total

    def quarters(self, x: np.ndarray) -> list[np.ndarray]:
        cuts = [STRIP * first(self.plan["x_strips"], quarter) for quarter in range(1, 4)]
        return np.split(x, cuts, 1)

    def stored(self, x0: np.ndarray) -> list[np.ndarray]:
        """x0 in either cta's scratch, as `to_words`."""
        quarters = self.quarters(x0)
        return [to_words(pair, self.plan["cross_tile"]) for pair in (quarters[:2], quarters[2:])]

    def loaded(self, number: int, scratch: list[np.ndarray]) -> np.ndarray:
        """x0 by the stages of a cross layer."""
        found = []
        for quarter in range(4):
            cta, group = divmod(quarter, 2)
            places = self.ctas[cta][number].x0
            own = np.concatenate([from_words(scratch[cta][place], group) for place in places], 1)
            width = STRIP * count(self.plan["x_strips"], quarter)
            assert not own[:, width:].any()
            found.append(own[:, :width])
        return np.concatenate(found, 1)

    def vectors(self, number: int) -> np.ndarray:
        """Those of a product's columns [3, 16 out_strips]."""
        shape, found = self.shapes[number], []
        for cta in range(2):
            vectors = self.ctas[cta][number].vectors
            for group in range(2):
                width = STRIP * count(shape.out_strips, 2 * cta + group)
                found.append(vectors[:, group * shape.tile :][:, :width])
        return np.concatenate(found, 1)

    def multiply(self, number: int, x: np.ndarray) -> np.ndarray:
        """x w^T [B, 16 out_strips] as float32 sums, in w's powers of two."""
        shape = self.shapes[number]
        out = []
        for cta in range(2):
            product = self.ctas[cta][number]
            sums = np.zeros((len(x), 2 * shape.tile), np.float32)
            for quarter, parts in product.weights.items():
                columns = slice(STRIP * first(shape.in_strips, quarter), None)
                own = x[:, columns][:, : parts[0].shape[1]]
                large, small, inverse = (v.astype(np.float64) for v in split(own))
                w, v = (part.astype(np.float64) for part in parts)
                sums += ((large @ (w + v).T + small @ w.T) * inverse[:, None]).astype(np.float32)
            for group in range(2):
                width = STRIP * count(shape.out_strips, 2 * cta + group)
                own = sums[:, group * shape.tile :][:, : shape.tile]
                assert not own[:, width:].any()
                out.append(own[:, :width])
        return np.concatenate(out, 1)
