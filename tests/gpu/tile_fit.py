"""The numbers of the model that chooses a product's tiles (csrc/kernels/gemm/tile_config.cpp),
fitted to a sweep, and how far its choices are from the best tiles of that sweep.

    python tests/gpu/tile_sweep.py --precision fp16 --shapes 500 --json sweep.json
    python tests/gpu/tile_fit.py sweep.json --precision fp16

Times near a shape's best count most: the others need only be known as long. The fit leaves out
times that memory bounds, for which the model has numbers of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

MULTIPROCESSORS = 132
AT_ONCE = {1: 132, 2: 132, 4: 120, 8: 112}  # CTAs, by how many share a tile
K_TILE = {"fp32": 32, "tf32": 32, "fp16": 64, "bf16": 64}
NEAR, FAR = (1.15, 1.0), (1.5, 0.3)  # times the best, up to which a time has that weight
LEAST = 0.05
MEMORY, RATE = 2.5, 4.2e6  # microseconds, bytes a microsecond
BOUND = 0.6  # the part of a time from which memory bounds it


class Tile(NamedTuple):
    """128x64/2: rows, columns, two CTAs share a tile; 128x128t: two warpgroups take turns."""

    rows: int
    columns: int
    in_turn: bool
    split: int

    @classmethod
    def named(cls, name: str) -> Tile:
        found = re.fullmatch(r"(\d+)x(\d+)(t?)(?:/(\d+))?", name)
        assert found, name
        return cls(int(found[1]), int(found[2]), bool(found[3]), int(found[4] or 1))


class Work(NamedTuple):
    """Of a product in some tiles: rounds of CTAs, k tiles of one, busy multiprocessors, columns
    that a CTA sends.
    """

    rounds: int
    steps: int
    busy: float
    sent: float

    @classmethod
    def of(cls, tile: Tile, shape: Mapping[str, Any]) -> Work:
        ctas = -(-shape["rows"] // tile.rows) * -(-shape["n"] // tile.columns) * tile.split
        k_tiles = -(-shape["k"] // K_TILE[shape["precision"]])
        return cls(
            -(-ctas // AT_ONCE[tile.split]),
            -(-k_tiles // tile.split),
            min(ctas, MULTIPROCESSORS) / MULTIPROCESSORS,
            tile.columns * (tile.split - 1) / tile.split,
        )

    def terms(self) -> list[float]:
        """What a step, a step where all are busy, a tile's end and a launch are counted by."""
        steps = self.rounds * self.steps
        return [steps, steps * self.busy, self.rounds, 1]


def fitted(terms: list[list[float]], times: list[float], weights: list[float]) -> np.ndarray:
    """Least squares without negative numbers."""
    a, b, scale = np.array(terms), np.array(times), np.array(weights)
    used = list(range(a.shape[1]))
    while True:
        found = np.zeros(a.shape[1])
        found[used] = np.linalg.lstsq(a[:, used] * scale[:, None], b * scale, rcond=None)[0]
        if (found >= 0).all():
            return found
        used.remove(int(np.argmin(found)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--precision", default="fp16")
    options = parser.parse_args()
    shapes = [
        s for s in json.loads(options.sweep.read_text()) if s["precision"] == options.precision
    ]
    timed = defaultdict(list)  # of a tile: shape, time, weight of its error
    for shape in shapes:
        taken = {n: t for n, t in shape["us"].items() if n not in ("torch", "chosen")}
        best = min(taken.values())
        for name, time in taken.items():
            weight = next((w for most, w in (NEAR, FAR) if time < most * best), LEAST)
            timed[Tile.named(name)].append((shape, time, weight / time))
    model = {}
    for tile in sorted(t for t in timed if t.split == 1):
        free = [x for x in timed[tile] if _memory(x[0]) - MEMORY < BOUND * x[1]]
        works = [Work.of(tile, shape).terms() for shape, _, _ in free]
        model[tile] = fitted(works, [t for _, t, _ in free], [w for _, _, w in free])
        numbers = ", ".join(f"{name} {x:.4f}" for name, x in zip(TERMS, model[tile], strict=True))
        print(f"{tile.rows} x {tile.columns}{' in turn' if tile.in_turn else ''}: {numbers}")
    exchange = _exchange(model, timed)
    print(f"exchange: once {exchange[0]:.4f}, a column {exchange[1]:.4f}")
    away, over, wrong = [], [], []
    for shape in shapes:
        taken = {n: t for n, t in shape["us"].items() if n not in ("torch", "chosen")}
        chosen = min(taken, key=lambda n: _whole(model, exchange, Tile.named(n), shape))
        away.append(taken[chosen] / min(taken.values()))
        over.append(shape["us"]["torch"] / taken[chosen])
        said = _whole(model, exchange, Tile.named(chosen), shape) / taken[chosen]
        wrong.append(max(said, 1 / said))
    print(
        f"{len(shapes)} shapes: chosen over best {statistics.geometric_mean(away):.3f} (most "
        f"{max(away):.2f}), torch over chosen {statistics.geometric_mean(over):.2f}, its time said "
        f"within {statistics.geometric_mean(wrong):.3f}"
    )


TERMS = ("step", "busy step", "tile", "once")
Model = Mapping[Tile, np.ndarray]


def _time(model: Model, exchange: np.ndarray, tile: Tile, shape: Mapping[str, Any]) -> float:
    work = Work.of(tile, shape)
    alone = float(model[tile._replace(split=1)] @ work.terms())
    return alone + (float(exchange @ [1, work.rounds * work.sent]) if tile.split > 1 else 0)


def _memory(shape: Mapping[str, Any]) -> float:
    """Microseconds that a product's bytes take."""
    rows, n, k = shape["rows"], shape["n"], shape["k"]
    return MEMORY + (rows * (n + k) + n * k) * 128 / K_TILE[shape["precision"]] / RATE


def _whole(model: Model, exchange: np.ndarray, tile: Tile, shape: Mapping[str, Any]) -> float:
    """With memory: the longer of the two, more where they are as long. To take turns needs two
    tiles.
    """
    if tile.in_turn and Work.of(tile, shape).rounds == 1:
        return math.inf
    return float((_time(model, exchange, tile, shape) ** 4 + _memory(shape) ** 4) ** 0.25)


def _exchange(model: Model, timed: Mapping[Tile, list[tuple[Any, float, float]]]) -> np.ndarray:
    """What tiles that CTAs share take beyond their own work: once, and a column sent."""
    terms, times, weights = [], [], []
    for tile in (t for t in timed if t.split > 1):
        for shape, time, weight in timed[tile]:
            work = Work.of(tile, shape)
            terms.append([1, work.rounds * work.sent])
            times.append(time - _time(model, np.zeros(2), tile, shape))
            weights.append(weight)
    return fitted(terms, times, weights) if terms else np.zeros(2)


if __name__ == "__main__":
    main()
