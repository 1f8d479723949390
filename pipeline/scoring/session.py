"""A scoring session: Ray is up, the plan streams; both end with the session."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from pipeline.config import JobConfig
from pipeline.planning.plan import JobPlan
from pipeline.planning.units import Unit
from pipeline.publishing.records import Outcome
from pipeline.scoring.cluster import Shares, ray_cluster, share_out

# Guesses for the plan only: the bytes a row takes in a dictionary column, and in a text column.
DICTIONARY_BYTES, TEXT_BYTES = 8, 32


class Session(NamedTuple):
    """Outcomes as they come, one a unit, and the number of GPUs that make them."""

    outcomes: Iterator[Outcome]
    num_gpus: int


@contextlib.contextmanager
def open_session(
    plan: JobPlan, pending: Sequence[Unit], attempt: str, verbose: bool
) -> Iterator[Session]:
    """Connect to Ray and start to score the pending units (at least one) of a plan."""
    size = row_bytes(plan, pending[0].path)
    largest = max(unit.rows for unit in pending) * size
    with ray_cluster(plan.config.ray_address, largest, verbose):
        from pipeline.scoring.flow import stream_outcomes
        from pipeline.scoring.scorer import ScorerSettings

        shares = cluster_shares(plan.config)
        settings = ScorerSettings(
            config=plan.config,
            columns=plan.columns,
            bundle_digest=plan.bundle_digest,
            attempt=attempt,
            device=shares.device,
            threads=shares.threads,
        )
        with contextlib.closing(stream_outcomes(pending, settings, shares, size)) as outcomes:
            yield Session(outcomes, shares.scorers * shares.scorer_gpus)


def cluster_shares(config: JobConfig) -> Shares:
    """Share out the cluster that Ray is connected to."""
    import ray

    from dpiframe_core.loading import DEVICES

    found = ray.cluster_resources()
    return share_out(config, found.get("CPU", 0.0), found.get("GPU", 0.0), "cuda" in DEVICES)


def row_bytes(plan: JobPlan, path: str) -> int:
    """About the bytes of one row of a unit in memory, from the column types of one input file."""
    schema: pa.Schema = next(f.arrow_schema for f in plan.files if f.path == path)
    copied = {*plan.columns.key_columns, *plan.columns.carry_columns}
    return sum(
        column_bytes(schema.field(name).type, name in copied) for name in plan.columns.read_columns
    )


def column_bytes(kind: pa.DataType, copied: bool) -> int:
    """About the bytes of one value of a column."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:  # no fixed width: text
        return TEXT_BYTES if copied else DICTIONARY_BYTES
