"""What an Engine and its backend hand each other beside arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpiframe_core.engine.host_inputs import Columns

# Ids [F, B], dense [N, B], and where the scores [B] go.
HostPart = tuple[Columns, Columns, np.ndarray]


class DeviceSeconds(NamedTuple):
    """Time on a GPU by what it did; the three overlap between neighbouring batches."""

    copy_in: float = 0.0
    compute: float = 0.0
    copy_out: float = 0.0


class BadIds(NamedTuple):
    """Ids outside their tables: how many a field [F], and sample, field and value of the first,
    which is not looked up where it scores as the field's `oov_row`.
    """

    counts: np.ndarray
    first: tuple[int, int, int] | None


class TensorScorer(NamedTuple):
    """Scores tensors of torch on a GPU in few calls.

    `score(ids, dense)`: scores [B] there, the call's seconds, and counters of bad ids, None without
    any; None where arrays are to be asked one by one: they are no tensors, on another device, or do
    not fit, or B is not in 1 .. max_batch. `bad_ids(ids, counters)`: which they were.
    """

    score: Callable[[Any, Any], tuple[Any, float, np.ndarray | None] | None]
    bad_ids: Callable[[Any, np.ndarray], BadIds]
