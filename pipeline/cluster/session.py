"""A scoring session: Ray is up, the plan streams; both end with the session."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pipeline.cluster.ray_cluster import quiet_data, ray_cluster
from pipeline.planning.plan import JobPlan
from pipeline.planning.units import Unit
from pipeline.publishing.records import Outcome
from pipeline.sizing.job_sizes import choose_sizes
from pipeline.sizing.sizes import Sizes, work_of


@dataclass(frozen=True)
class Session:
    """A connected Ray, and the sizes that fit it and the plan. It has touched no output."""

    plan: JobPlan
    sizes: Sizes

    @property
    def num_gpus(self) -> int:
        """GPUs that score."""
        return self.sizes.scorers * self.sizes.scorer_gpus

    @contextlib.contextmanager
    def outcomes(self, pending: Sequence[Unit], attempt: str) -> Iterator[Iterator[Outcome]]:
        """Score units of the plan for an attempt; outcomes as they come, one a unit."""
        from pipeline.scoring.flow import stream_outcomes
        from pipeline.scoring.scorer_settings import ScorerSettings

        settings = ScorerSettings(
            config=self.plan.config.model_copy(update={"mlflow_uri": None}),  # the driver tracks
            columns=self.plan.columns,
            bundle_digest=self.plan.bundle_digest,
            attempt=attempt,
            device=self.sizes.device,
            threads=self.sizes.threads,
            max_batch=self.sizes.max_batch,
        )
        stream = stream_outcomes(pending, settings, self.sizes, self.plan.row_bytes)
        with contextlib.closing(stream):
            yield stream


@contextlib.contextmanager
def open_session(plan: JobPlan, pending: Sequence[Unit], verbose: bool) -> Iterator[Session]:
    """Connect to Ray, with sizes for the pending units (at least one) of a plan."""
    choose = partial(choose_sizes, work=work_of(plan, pending), config=plan.config)
    with ray_cluster(plan.config.ray_address, choose, verbose) as sizes:
        if not verbose:
            quiet_data()
        yield Session(plan, sizes)
