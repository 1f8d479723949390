"""For which batches a chain of products is one kernel, and how many CTAs share a tile: where a
model of the time says that this is faster than one product after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpiframe_core import _core
from dpiframe_core.engine.cuda.chain.areas import GROUP, ROWS, Areas, own_columns
from dpiframe_core.engine.cuda.chain.layers import Layer
from dpiframe_core.program.steps import MappedLinear

MULTIPROCESSORS = 132
# CTAs that share a tile, and how many such clusters run at once: a cluster lies in one GPC.
CLUSTERS = {1: 132, 2: 66, 4: 30, 8: 14}

# Microseconds, fitted to chains and products of random widths (docs/kernels_chain.md).
ONCE = 1.4  # a launch, until the first product
INPUT_CHUNK = 0.115  # 64 columns of a tile's inputs
MEETING = 0.27  # a product
# From asking for weights until they are there, where all multiprocessors do; a byte of them at the
# least.
LATENCY, BYTE = 0.81, 1 / 85.6e3
COLUMN, SENT_COLUMN = 11e-3, 11.9e-3  # a warpgroup's column in the epilogue; to one more CTA
OPERATION = 0.118  # of the former, for each operation of an expression
LATER = 0.95  # of a tile's time behind another one, whose loads and products overlap
# Of products one by one: times as long as alone, how much earlier one begins than the one before
# ends, and an epilogue that is an expression, once and for an element.
IN_SEQUENCE, EARLIER = 1.02, 0.49
MAPPED, MAPPED_ELEMENT = 0.95, 0.52e-6
# A chain must take less than this part of their time: they may run beside others, and the model is
# a tenth wrong.
WORTHWHILE = 0.93


def fits_gpu(ctas: int, rows: int) -> bool:
    """Whether so many CTAs may share a tile: then all tiles of a batch run at once."""
    return ctas == 1 or -(-rows // ROWS) <= CLUSTERS[ctas]


def chain_microseconds(layers: Sequence[Layer], areas: Areas, rows: int) -> float:
    """Of so many rows as one kernel. Weights come as fast as their bytes on the way allow."""
    ctas, tiles = areas.ctas, -(-rows // ROWS)
    busy = min(1.0, tiles * ctas / MULTIPROCESSORS)
    flight = (areas.stages - 1) * areas.stage_bytes
    byte = max(BYTE, LATENCY * busy / flight)
    tile = INPUT_CHUNK * sum(area.chunks for area in areas.inputs)
    for layer in layers:
        own, steps = own_columns(layer.n, ctas), -(-layer.k // GROUP)
        operations = 1 + OPERATION * layer.body.count("const float")
        tile += steps * GROUP * 2 * own * 2 * byte
        tile += own * (COLUMN * operations + SENT_COLUMN * (ctas - 1)) + MEETING
    rounds = -(-tiles // CLUSTERS[ctas])
    return ONCE + tile * (1 + LATER * (rounds - 1))


def steps_microseconds(layers: Sequence[Layer], rows: int, precision: str) -> float:
    """Of the same products one by one."""
    total = 0.0
    for layer in layers:
        alone = _core.linear_microseconds(precision, rows, layer.n, layer.k)
        total += IN_SEQUENCE * alone - EARLIER
        if isinstance(layer.step, MappedLinear):
            total += MAPPED + MAPPED_ELEMENT * rows * layer.n
    return total


def chain_rows(
    layers: Sequence[Layer], areas: Areas, rows: Sequence[int], precision: str
) -> tuple[int, ...]:
    """Those of the numbers of rows for which the chain is faster."""
    return tuple(
        count
        for count in rows
        if chain_microseconds(layers, areas, count)
        < WORTHWHILE * steps_microseconds(layers, count, precision)
    )
