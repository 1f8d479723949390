"""What an Engine and its backend hand each other beside arrays."""

from __future__ import annotations

from typing import NamedTuple

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
