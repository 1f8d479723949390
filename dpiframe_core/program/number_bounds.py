"""How large a program's numbers can become, and so whether fp16 holds them all.

bf16 has float32's range and three bits of mantissa less than fp16, which takes the same bytes and
the same time. Where the weights show that nothing becomes too large for fp16, scores are some eight
times as near by it (docs/engine.md). Numbers below 6e-8, which bf16 would keep, become 0.

A bound is the largest magnitude of each column of a buffer, a sum of magnitudes from the tables on,
whatever the ids. It is far above the truth, which does no harm: a model's numbers are near 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import FusedLinear, Linear, LinearRows, Lookup, MappedLinear
from dpiframe_core.program.views import DENSE, Bounds, Weight

# fp16 holds up to 65,504: roundings on the way are within the factor of two.
MOST = 2.0**15
# Below 2^-14 fp16 loses bits. Where the largest number of a table, of a product's weight or of what
# a step may write is smaller than this, many that matter may be down there.
LEAST = 2.0**-8
THREADS = 8


def input_bounds(program: Program, dense: Sequence[float]) -> Bounds:
    """Bounds before any step: of the weights, and of each dense feature as given [N]."""
    columns = {name: np.full(width, np.inf) for name, width in program.buffers.items()}
    columns[DENSE] = np.asarray(dense, np.float64)
    slots = [slot for s in program.steps if isinstance(s, Lookup) for slot in s.slots]
    names = sorted(_kept_in_halves(program) | {slot.wide for slot in slots if slot.wide})
    with ThreadPoolExecutor(THREADS) as pool:  # tables are large; numpy releases the GIL
        sizes = pool.map(lambda name: _largest(program.weights[name]), names)
        return Bounds(columns, program.weights, dict(zip(names, sizes, strict=True)))


def holds_in_fp16(program: Program, dense: Sequence[float]) -> bool:
    """Whether fp16 can keep every number that a GPU keeps in 16 bits.

    `dense` [N]: the largest magnitude of each dense feature, infinite where it is not known.
    """
    bounds = input_bounds(program, dense)
    if not all(_is_held(bounds.largest[name]) for name in _kept_in_halves(program)):
        return False
    floats = program.float_buffers()
    for step in program.steps:
        with np.errstate(invalid="ignore", over="ignore"):  # infinity times 0: no bound either
            step.bound(bounds)
        halves = [view for view in step.writes() if view.buffer not in floats]
        if not all(_is_held(bounds[view].max()) for view in halves):
            return False
    return True


def _is_held(largest: float) -> bool:
    """False for NaN, which is no bound."""
    return largest == 0 or LEAST <= largest <= MOST


def _kept_in_halves(program: Program) -> set[Weight]:
    """Tables and weights of products."""
    slots = [slot for s in program.steps if isinstance(s, Lookup) for slot in s.slots]
    products = [
        s for s in program.steps if isinstance(s, (Linear, FusedLinear, LinearRows, MappedLinear))
    ]
    return {slot.table for slot in slots if slot.table} | {s.weight for s in products}


def _largest(weight: np.ndarray) -> float:
    """The largest magnitude, NaN if there is one; without a copy of what may be a large table."""
    return float(np.maximum(weight.max(), -weight.min())) if weight.size else 0.0
