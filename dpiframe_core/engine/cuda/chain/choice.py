"""For which batches a chain of products is one kernel: where a model of the time says that this is
faster than one product after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpiframe_core import _core
from dpiframe_core.engine.cuda.chain.areas import GROUP, ROWS, Areas, own_columns
from dpiframe_core.engine.cuda.chain.layers import Layer

MULTIPROCESSORS = 132
# Microseconds on an H100 (docs/kernels_chain.md).
ONCE = 2.5  # a launch, until the first product
INPUTS = 1.5  # a tile
MEETING = 0.6  # a product
STEP_COLUMN = 1 / 1500  # 16 terms of a warpgroup's column
# From asking for weights until they are there, where one multiprocessor does, and where all do; and
# a byte of them at the least.
ALONE, TOGETHER, BYTE = 1.0, 1.6, 1 / 100e3
COLUMN = 8e-3  # a warpgroup's column in the epilogue
OPERATION = 0.7  # of that, for each operation of an expression
LATER = 0.65  # of a tile's time behind another one, whose loads and products overlap
IN_SEQUENCE = 1.2  # times as long as alone: a product behind another one


def chain_microseconds(layers: Sequence[Layer], areas: Areas, rows: int) -> float:
    """Of so many rows as one kernel. Weights come as fast as their bytes on the way allow."""
    tiles = -(-rows // ROWS)
    latency = ALONE + (TOGETHER - ALONE) * min(1.0, tiles / MULTIPROCESSORS)
    byte = max(BYTE, latency / ((areas.stages - 1) * areas.stage_bytes))
    tile = INPUTS
    for layer in layers:
        own, steps = own_columns(layer.n), -(-layer.k // GROUP)
        weights = steps * GROUP * 2 * own * 2
        operations = 1 + OPERATION * layer.body.count("const float")
        tile += max(steps * own * STEP_COLUMN, weights * byte)
        tile += own * COLUMN * operations + MEETING
    rounds = -(-tiles // MULTIPROCESSORS)
    return ONCE + tile * (1 + LATER * (rounds - 1))


def steps_microseconds(layers: Sequence[Layer], rows: int, precision: str) -> float:
    """Of the same products one by one."""
    alone = sum(_core.linear_microseconds(precision, rows, x.n, x.k) for x in layers)
    return IN_SEQUENCE * alone


def chain_rows(
    layers: Sequence[Layer], areas: Areas, rows: Sequence[int], precision: str
) -> tuple[int, ...]:
    """Those of the numbers of rows for which the chain is faster."""
    return tuple(
        count
        for count in rows
        if chain_microseconds(layers, areas, count) < steps_microseconds(layers, count, precision)
    )
