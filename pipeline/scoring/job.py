"""run_job: plan, lock, claim the output, score what is pending, check, publish the manifest."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from pipeline.cluster.ray_cluster import import_meanwhile
from pipeline.cluster.ray_watch import RayWatch
from pipeline.cluster.signals import StopRequestedError, StopSignals
from pipeline.config.job import JobConfig
from pipeline.errors import (
    ConfigError,
    ContractError,
    DpiframeError,
    LockedError,
    ResumableError,
)
from pipeline.planning.plan import JobPlan, make_plan
from pipeline.planning.units import Unit
from pipeline.publishing.lock import OutputLock
from pipeline.publishing.output import (
    check_claim,
    check_rejected,
    claim,
    finish_output,
    published_names,
    storage_errors,
    tidy,
    tidy_finished,
)
from pipeline.publishing.records import (
    ErrorKind,
    Manifest,
    Outcome,
    OutputLayout,
    Quarantined,
    UnitError,
    UnitRecord,
    completed,
    is_whole,
)
from pipeline.scoring.progress import Progress
from pipeline.scoring.tracked import start_tracker

if TYPE_CHECKING:
    from pipeline.cluster.session import Session
    from pipeline.tracking.tracker import Tracker

TRACKING_SECONDS = 20.0
# After a stop signal everything, the end of Ray included, must fit into ten seconds.
TRACKING_SECONDS_STOPPED = 2.0

log = logging.getLogger("dpiframe.job")


class JobResult(BaseModel):
    """What a finished job tells its caller. Rates count this start's rows and seconds only."""

    model_config = ConfigDict(frozen=True)

    output: str
    identity: str
    status: Literal["scored", "complete before"]
    rows: int
    scored: int
    rejected: int
    quarantined: int  # files and units
    units: int
    resumed_units: int
    read_by: dict[str, int] = {}  # who decoded the units -> how many
    seconds: float
    rows_per_s: float
    run_id: str | None = None
    run_url: str | None = None


def run_job(config: JobConfig, verbose: bool = False, own_process: bool = False) -> JobResult:
    """Score the input of `config` into its output, going on where an earlier start stopped.

    Raises ConfigError, ContractError, ResumableError or LockedError; what was published stays
    published. Stop signals are honoured when called from the main thread. `own_process`: the job
    may end the process when a stop takes Ray too long.
    """
    with StopSignals(own_process) as signals:
        try:
            import_meanwhile()
            with signals.waiting():
                plan = make_plan(config)
            return Job(plan, signals, verbose).run()
        except StopRequestedError as stop:
            raise ResumableError(
                f"stopped by {stop}; published units are kept, run the same command to go on"
            ) from None


class Job:
    """One start of a job whose plan is made."""

    def __init__(self, plan: JobPlan, signals: StopSignals, verbose: bool) -> None:
        self.config = plan.config.with_absolute_paths()
        self.plan = plan.model_copy(update={"config": self.config})
        self.layout = OutputLayout(self.config.output)
        self.signals, self.verbose = signals, verbose
        self.began = time.monotonic()
        self.attempt = ""
        self.records: dict[str, UnitRecord] = {}
        self.quarantined: list[Quarantined] = []
        self.resumed_rows = self.rejected = self.num_gpus = 0
        self.short_of_memory: set[tuple[str, int]] = set()
        self.not_unpacking: set[str] = set()  # scorers

    def run(self) -> JobResult:
        """Do the whole job under the output's lock."""
        with storage_errors(self.layout):
            names = (unit.name for unit in self.plan.units)
            manifest = completed(self.layout, self.plan.identity)
            if manifest is not None and is_whole(self.layout, manifest, names):
                tidy_finished(self.layout, wait=True)
                return self._result(manifest, "complete before", len(manifest.units))
            tracker = None
            with OutputLock(self.config.output) as lock:
                check_claim(self.layout, self.plan)
                try:
                    with contextlib.ExitStack() as stack:
                        session = self._connect(stack, self._unpublished())
                        self.attempt, self.records = claim(self.layout, self.plan)
                        resumed = len(self.records)
                        self.resumed_rows = rows_of(self.records.values())
                        tracker = start_tracker(self.plan, self.layout, self.resumed_rows)
                        manifest = self._score_and_finish(lock, tracker, session, stack)
                except BaseException as error:
                    if tracker is not None:
                        self._end_tracking(tracker, error)
                    raise
                tidy(self.layout)
                self._end_tracking(tracker, None)
        result = self._result(manifest, "scored", resumed)
        return result.model_copy(update={"run_id": tracker.run_id, "run_url": tracker.run_url})

    def _unpublished(self) -> list[Unit]:
        """Units to score, as far as can be told while the output is not claimed."""
        known = published_names(self.layout, self.plan)
        return [unit for unit in self.plan.units if unit.name not in known]

    def _connect(self, stack: contextlib.ExitStack, units: Sequence[Unit]) -> Session | None:
        """Ray, before the output is touched: its absence must not cost what lies there."""
        if not units:
            return None
        from pipeline.cluster.session import open_session

        with self.signals.waiting():
            session = stack.enter_context(open_session(self.plan, units, self.verbose))
        stack.enter_context(RayWatch(self.signals.stop))
        self.num_gpus = session.num_gpus
        return session

    def _score_and_finish(
        self,
        lock: OutputLock,
        tracker: Tracker,
        session: Session | None,
        stack: contextlib.ExitStack,
    ) -> Manifest:
        pending = [unit for unit in self.plan.units if unit.name not in self.records]
        self.rejected = sum(record.rejected for record in self.records.values())
        check_rejected(self.plan, self.rejected)
        session = session or self._connect(stack, pending)  # units whose files are lost
        if session is not None and pending:
            self._score(session, pending, tracker)
        return self._finish(lock)  # before Ray ends, which takes a second

    def _finish(self, lock: OutputLock) -> Manifest:
        lock.check()
        return finish_output(self.layout, self.plan, self.quarantined, lock.check)

    def _score(self, session: Session, pending: Sequence[Unit], tracker: Tracker) -> None:
        done = rows_of(self.records.values())
        with (
            session.outcomes(pending, self.attempt) as outcomes,
            Progress(self.plan.total_rows, done, len(pending)) as progress,
        ):
            while (outcome := self._next(outcomes)) is not None:
                if isinstance(outcome, UnitError):
                    self._failed(outcome)
                    continue
                self.records[outcome.unit] = outcome
                self.rejected += outcome.rejected
                self._warn_of_memory(outcome)
                self._warn_of_unpacking(outcome)
                progress.unit_done(outcome.rows)
                tracker.unit_done(outcome)
                check_rejected(self.plan, self.rejected)

    def _next(self, outcomes: Iterator[Outcome]) -> Outcome | None:
        """The next outcome, None at the end; a stop signal raises while waiting for it."""
        with self.signals.waiting():
            return next(outcomes, None)

    def _warn_of_memory(self, record: UnitRecord) -> None:
        """Say once a scorer and size that its batches had to become smaller."""
        if record.reduced_batch is None:
            return
        if (record.scorer, record.reduced_batch) not in self.short_of_memory:
            self.short_of_memory.add((record.scorer, record.reduced_batch))
            log.warning(
                "scorer %s: the GPU's memory is too short for max_batch, it goes on with %d rows",
                record.scorer,
                record.reduced_batch,
            )

    def _warn_of_unpacking(self, record: UnitRecord) -> None:
        """Say once a scorer that its GPU left units to the CPU, at which unit and why."""
        if record.unpack_error and record.scorer not in self.not_unpacking:
            self.not_unpacking.add(record.scorer)
            log.warning(
                "scorer %s: the GPU does not unpack row groups %d..%d of %s, the CPU does, which "
                "is slower: %s",
                record.scorer,
                record.first_row_group,
                record.stop_row_group - 1,
                record.path,
                record.unpack_error,
            )

    def _failed(self, error: UnitError) -> None:
        """Raise the job's error for a failed unit, or note the unit as quarantined."""
        if error.kind != "corrupt" or self.config.on_corrupt_file != "quarantine":
            raise error_of(error)
        log.warning("quarantined: %s", error.message)
        unit = self._units[error.unit]
        entry = Quarantined(
            path=unit.path,
            reason=error.message,
            unit=unit.name,
            first_row_group=unit.first_row_group,
            stop_row_group=unit.stop_row_group,
            rows=unit.rows,
        )
        self.quarantined.append(entry)

    @cached_property
    def _units(self) -> dict[str, Unit]:
        return {unit.name: unit for unit in self.plan.units}

    def _end_tracking(self, tracker: Tracker, error: BaseException | None) -> None:
        stopped = isinstance(error, (StopRequestedError, KeyboardInterrupt))
        status: Literal["FINISHED", "FAILED", "KILLED"] = "FAILED"
        if error is None or stopped:
            status = "KILLED" if stopped else "FINISHED"
        tracker.finish(
            status,
            list(self.records.values()),
            time.monotonic() - self.began,
            self.num_gpus,
            None if error is None else f"{type(error).__name__}: {error}",
        )
        tracker.close(TRACKING_SECONDS_STOPPED if stopped else TRACKING_SECONDS)

    def _result(
        self, manifest: Manifest, status: Literal["scored", "complete before"], resumed: int
    ) -> JobResult:
        seconds = time.monotonic() - self.began
        fresh = manifest.rows - self.resumed_rows if status == "scored" else 0
        return JobResult(
            output=str(self.layout.root),
            identity=manifest.identity,
            status=status,
            rows=manifest.rows,
            scored=manifest.scored,
            rejected=manifest.rejected,
            quarantined=len(manifest.quarantined),
            units=len(manifest.units),
            resumed_units=resumed,
            read_by=Counter(unit.read_by for unit in manifest.units if unit.read_by),
            seconds=seconds,
            rows_per_s=fresh / seconds,
        )


# What went wrong with a unit -> the error, and so the exit code, of the job.
ERRORS: dict[ErrorKind, type[DpiframeError]] = {
    "removed": ContractError,
    "changed": ContractError,
    "corrupt": ContractError,
    "bad_row": ContractError,
    "io": ResumableError,
    "storage": ResumableError,
    "memory": ResumableError,
    "bundle": ConfigError,
    "superseded": LockedError,
    "internal": DpiframeError,
}


def error_of(error: UnitError) -> DpiframeError:
    """The job's error for a unit that failed."""
    return ERRORS[error.kind](f"{error.message} (unit {error.unit})")


def rows_of(records: Iterable[UnitRecord]) -> int:
    """Rows of some units."""
    return sum(record.rows for record in records)
