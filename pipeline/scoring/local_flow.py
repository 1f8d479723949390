"""Units through one scorer in the driver's own process: `runner: local`.

    driver -> threads, each reads, checks, encodes, scores, publishes a unit -> outcomes

What `flow` is to Ray: the same scorer, the same outcomes, without processes to start.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from pipeline.errors import ResumableError
from pipeline.planning.job_plan import JobPlan
from pipeline.planning.units import Unit
from pipeline.publishing.records import Outcome, UnitError
from pipeline.scoring.machine_watch import MachineSample
from pipeline.scoring.scorer_actor import ScorerActor
from pipeline.sizing.sizes import Sizes


def stream_outcomes(
    plan: JobPlan, units: Sequence[Unit], sizes: Sizes, attempt: str
) -> Generator[Outcome | MachineSample, None, None]:
    """Score and publish units here; yields one outcome a unit, as they finish, and samples of this
    machine.

    Closing the iterator begins no more units and waits for those in hand, as they still publish.
    Raises ResumableError when the GPU is lost to this process; other faults are outcomes.
    """
    if not units:
        return
    scorer = ScorerActor(plan.for_workers, sizes, attempt)
    left = iter(units)
    with ThreadPoolExecutor(sizes.calls, "scorer") as threads:
        running: set[Future[Outcome]] = set()
        try:
            while True:
                while len(running) < sizes.calls and (unit := next(left, None)) is not None:
                    running.add(threads.submit(scorer.outcome, unit))
                if not running:
                    break
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield _here(future.result())
                yield from scorer.samples()
        finally:
            threads.shutdown(cancel_futures=True)
            scorer.close()


def _here(outcome: Outcome) -> Outcome:
    """The outcome, unless nothing more can be scored in this process."""
    if isinstance(outcome, UnitError) and outcome.kind == "gpu_lost":
        raise ResumableError(
            f"the GPU is lost to this process: {outcome.message}; look at it (nvidia-smi, the "
            "kernel's log), then run the command again"
        )
    return outcome
