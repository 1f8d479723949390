"""A scoring session: Ray is up, the plan streams; both end with the session."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from pipeline.cluster.ray_cluster import quiet_data, ray_cluster
from pipeline.planning.plan import JobPlan
from pipeline.planning.units import Unit
from pipeline.publishing.records import Outcome
from pipeline.sizing.job_sizes import choose_sizes
from pipeline.sizing.sizes import work_of


class Session(NamedTuple):
    """Outcomes as they come, one a unit, and the number of GPUs that make them."""

    outcomes: Iterator[Outcome]
    num_gpus: int


@contextlib.contextmanager
def open_session(
    plan: JobPlan, pending: Sequence[Unit], attempt: str, verbose: bool
) -> Iterator[Session]:
    """Connect to Ray and start to score the pending units (at least one) of a plan."""
    choose = partial(choose_sizes, work=work_of(plan, pending), config=plan.config)
    with ray_cluster(plan.config.ray_address, choose, verbose) as sizes:
        if not verbose:
            quiet_data()
        from pipeline.scoring.flow import stream_outcomes
        from pipeline.scoring.scorer_settings import ScorerSettings

        settings = ScorerSettings(
            config=plan.config,
            columns=plan.columns,
            bundle_digest=plan.bundle_digest,
            attempt=attempt,
            device=sizes.device,
            threads=sizes.threads,
            max_batch=sizes.max_batch,
        )
        outcomes = stream_outcomes(pending, settings, sizes, plan.row_bytes)
        with contextlib.closing(outcomes):
            yield Session(outcomes, sizes.scorers * sizes.scorer_gpus)
