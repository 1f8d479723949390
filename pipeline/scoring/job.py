"""run_job: plan, lock, claim the output, score what is pending, check, publish the manifest."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from pipeline.cluster.ray_cluster import quiet_data, ray_cluster
from pipeline.cluster.ray_watch import RayWatch
from pipeline.cluster.signals import StopRequestedError, StopSignals
from pipeline.config.job import JobConfig
from pipeline.errors import JOB_ERRORS, DpiframeError, LockedError, ResumableError
from pipeline.planning.inputs import Quarantined
from pipeline.planning.job_plan import JobPlan
from pipeline.planning.plan import make_plan
from pipeline.planning.units import Unit
from pipeline.publishing.checks import check_rejected
from pipeline.publishing.committed import commit_job
from pipeline.publishing.key_check import keys_are_checked
from pipeline.publishing.last_error import forget_error, note_error
from pipeline.publishing.output import Lock, Output, open_output
from pipeline.publishing.partitioned import PartitionedOutput, Publishers
from pipeline.publishing.records import Manifest, Outcome, UnitError, UnitRecord
from pipeline.reporting.failures import failure
from pipeline.reporting.json_lines import tell
from pipeline.reporting.notify import NOTIFY_SECONDS, NOTIFY_SECONDS_STOPPED, notify
from pipeline.schedule.waiting import wait_for_input
from pipeline.scoring.empty_unit import publish_empty
from pipeline.scoring.evaluated import evaluate_job
from pipeline.scoring.machine_watch import MachineSample
from pipeline.scoring.progress import Progress
from pipeline.scoring.ray_metrics import pending_metric
from pipeline.scoring.runner import TRACKING_SECONDS, RunnerStart, with_runner
from pipeline.scoring.tracked import start_tracker
from pipeline.sizing.job_sizes import choose_sizes
from pipeline.sizing.machine import Machine, local_machine
from pipeline.sizing.sizes import Sizes, work_of
from pipeline.tracking.metrics import Attempt, rate_metrics

if TYPE_CHECKING:
    from pipeline.evaluation.evaluate import Evaluation
    from pipeline.tracking.tracker import Tracker

# After a stop signal everything, the end of Ray included, must fit into ten seconds.
TRACKING_SECONDS_STOPPED = 2.0
COST = "cost_per_million_rows"
# Between two looks at an output that another job writes.
LOCK_SECONDS = 2.0
# How many scorers may lose their GPU before the job gives up; Ray starts new ones meanwhile.
MOST_LOST_GPUS = 8

log = logging.getLogger("dpiframe.job")


class JobResult(BaseModel):
    """What a finished job tells its caller. Rates count this start's rows and seconds only.

    `seconds`: from the begin of planning until the output was finished, as `wall_seconds` in
    MLflow; what Ray and the tracking take to end comes after.
    """

    model_config = ConfigDict(frozen=True)

    output: str
    identity: str
    bundles: dict[str, str] = {}  # digests of the bundles beside `bundle`, by name
    outputs: dict[str, int] = {}  # of `outputs`, the numbers a row by name
    segments: dict[str, int] = {}  # rows with each value of `segments`
    status: Literal["scored", "complete before"]
    rows: int
    scored: int
    rejected: int
    quarantined: int  # files and units
    units: int
    duplicate_keys: int | None = None  # rows beyond the first of each key, where counted
    resumed_units: int
    read_by: dict[str, int] = {}  # who decoded the units -> how many
    seconds: float
    rows_per_s: float
    evaluation: dict[str, float] = {}  # of the scores against label_column, by metric
    startup_s: float | None = None  # of the seconds, up to the first unit's start at a scorer
    cost: float | None = None  # of this start, in the unit of price_per_hour
    cost_per_million_rows: float | None = None
    cost_per_million_rows_without_startup: float | None = None
    run_id: str | None = None
    run_url: str | None = None

    def summary(self) -> dict[str, Any]:
        """All fields and the exit code of the command, fit for JSON."""
        return {"exit_code": 0, **self.model_dump(mode="json")}


def run_job(
    config: JobConfig, verbose: bool = False, own_process: bool = False, wait: bool = False
) -> JobResult:
    """Score the input of `config` into its output, going on where an earlier start stopped.

    With `wait`, an output that another job writes is waited for, without end.

    Raises ConfigError, ContractError, ResumableError or LockedError; what was published stays
    published. Stop signals are honoured when called from the main thread. `own_process`: the caller
    tells the outcome and exits; Ray is shut down then, and the process ended when that takes long.
    """
    tell("start", "the job starts", output=config.output, runner=config.runner, pid=os.getpid())
    with StopSignals(own_process) as signals:
        try:
            result = _run(config, signals, verbose, wait)
        except BaseException as error:
            seconds = NOTIFY_SECONDS_STOPPED if signals.requested else NOTIFY_SECONDS
            _notify(config, {**failure(error), "output": config.output}, seconds)
            raise
        tell("finish", f"{result.rows:,} rows are published", **result.summary())
        _notify(config, result.summary(), NOTIFY_SECONDS)
        return result


def _run(config: JobConfig, signals: StopSignals, verbose: bool, wait: bool) -> JobResult:
    """The job, tried again where it shall `wait` for the output."""
    try:
        start = RunnerStart(config)
        with signals.waiting():
            wait_for_input(config)
        if not wait:  # for a job that may be using the GPU
            start.warm()
        while True:
            began = time.monotonic()
            with signals.waiting():
                plan = with_runner(make_plan(config), start.runner)
            job = Job(plan, signals, verbose, began, start.machine)
            try:
                return job.run()
            except LockedError as error:
                if not wait or job.attempt:
                    raise
                log.warning("waiting: %s", error)
            with signals.waiting():
                time.sleep(LOCK_SECONDS)
    except StopRequestedError as stop:
        raise ResumableError(
            f"stopped by {stop}; published units are kept, run the same command to go on"
        ) from None


def _notify(config: JobConfig, summary: dict[str, Any], seconds: float) -> None:
    if config.notify_command or config.notify_webhook:
        notify(summary, config.notify_command, config.notify_webhook, seconds)


class Job:
    """One start of a job whose plan is made."""

    def __init__(
        self,
        plan: JobPlan,
        signals: StopSignals,
        verbose: bool,
        began: float | None = None,
        machine: Callable[[], Machine] = local_machine,
    ) -> None:
        """`began`: when planning began, by the monotonic clock; default: now. `machine`: what a
        scorer in this process has.
        """
        self.plan, self.config = plan, plan.config
        self.output = PartitionedOutput(plan) if plan.parts else open_output(self.config.output)
        self.signals, self.verbose, self.machine = signals, verbose, machine
        self.began = time.monotonic() if began is None else began
        self.began_epoch = time.time() - (time.monotonic() - self.began)
        self.seconds = 0.0  # until the output was finished, or the job failed
        self.attempt = ""
        self.records: dict[str, UnitRecord] = {}
        self.fresh: dict[str, float] = {}  # units of this start -> seconds to their outcome
        self.quarantined: list[Quarantined] = []
        self.evaluation: Evaluation | None = None
        self.duplicate_keys: int | None = None
        self.resumed_rows = self.rejected = self.num_gpus = 0
        self.short_of_memory: set[tuple[str, int]] = set()
        self.not_unpacking: set[str] = set()  # scorers
        self.lost_gpu: set[str] = set()  # scorers

    def run(self) -> JobResult:
        """Score what is pending and publish the manifest, under the output's lock."""
        plan = self.plan
        facts = {"identity": plan.identity, "files": len(plan.files), "units": len(plan.units)}
        facts["runner"] = self.config.runner
        tell("plan", "planned", **facts, rows=plan.total_rows, bytes=plan.total_bytes)
        with self.output.errors():
            names = (unit.name for unit in plan.units)
            manifest = self.output.completed(self.plan.identity)
            whole = manifest is not None and self.output.is_whole(manifest, names)
            if manifest is not None and whole and keys_are_checked(manifest, self.config):
                self.output.settle()
                self.output.tidy_finished(wait=True)
                self.evaluation = evaluate_job(self.output, self.config)
                self._commit(manifest)
                for output, _ in self._claimed():
                    forget_error(output)
                return self._result(manifest, "complete before", len(manifest.units))
            tracker = None
            # Ray is shut down when tracking has ended and the lock is released.
            with contextlib.ExitStack() as connection, self.output.lock() as lock:
                self.output.check_claim(self.plan)
                try:
                    sizes = self._connect(connection, self._unpublished())
                    lock.check()
                    self.attempt, self.records = self.output.claim(self.plan)
                    resumed = len(self.records)
                    self.resumed_rows = rows_of(self.records.values())
                    tracker = start_tracker(self.plan, self.output, sizes, self.resumed_rows)
                    manifest = self._score_and_finish(lock, tracker, sizes, connection)
                    self.output.tidy()
                    self.seconds = time.monotonic() - self.began
                    self.evaluation = evaluate_job(self.output, self.config)
                    self._commit(manifest)
                except BaseException as error:
                    if self.attempt and not isinstance(error, LockedError):
                        for output, attempt in self._claimed():
                            note_error(output, attempt, _told(error))
                    if tracker is not None:
                        self._end_tracking(tracker, error)
                    raise
                for output, _ in self._claimed():
                    forget_error(output)
                self.duplicate_keys = manifest.duplicate_keys
                self._end_tracking(tracker, None)
        result = self._result(manifest, "scored", resumed)
        return result.model_copy(update={"run_id": tracker.run_id, "run_url": tracker.run_url})

    def _commit(self, manifest: Manifest) -> None:
        """Commit the parts to the job's table, if it has one."""
        with self.signals.waiting():
            if isinstance(self.output, PartitionedOutput):
                commit_job(self.output.manifests(), manifest, self.config)
            else:
                commit_job([(self.output, manifest)], manifest, self.config)

    def _claimed(self) -> list[tuple[Output, str]]:
        """The outputs that this start has claimed, without finished partitions, and the attempt of
        each.
        """
        if isinstance(self.output, PartitionedOutput):
            return self.output.open_outputs
        return [(self.output, self.attempt)]

    def _unpublished(self) -> list[Unit]:
        """Units to score, as far as can be told while the output is not claimed."""
        known = self.output.published_names(self.plan)
        return [unit for unit in self.plan.units if unit.rows and unit.name not in known]

    def _connect(self, connection: contextlib.ExitStack, units: Sequence[Unit]) -> Sizes | None:
        """Start Ray or attach to it, if that is the runner, and settle the sizes for these units;
        None where there are none to score.

        This comes before the output is touched, so that a missing Ray or GPU costs nothing there.
        """
        if not units:
            return None
        choose = partial(choose_sizes, work=work_of(self.plan, units), config=self.config)
        with self.signals.waiting():
            if self.config.runner == "local":
                sizes = choose(self.machine())
            else:
                own = self.signals.own_process
                cluster = ray_cluster(self.config.ray_address, choose, self.verbose, own)
                sizes = connection.enter_context(cluster)
                if not self.verbose:
                    quiet_data()
                import_module("pipeline.scoring.flow")  # while workers start
        self.num_gpus = sizes.scorers * sizes.scorer_gpus
        facts = {"device": sizes.device, "scorers": sizes.scorers, "read_in": sizes.read_in}
        tell("sizes", "sizes are settled, Ray is connected if it is the runner", **facts)
        return sizes

    def _score_and_finish(
        self,
        lock: Lock,
        tracker: Tracker,
        sizes: Sizes | None,
        connection: contextlib.ExitStack,
    ) -> Manifest:
        pending = [unit for unit in self.plan.units if unit.name not in self.records]
        for unit in [unit for unit in pending if not unit.rows]:
            publisher = Publishers(self.config.output, self.attempt).of(unit)
            self.records[unit.name] = publish_empty(self.plan, unit, publisher)
            pending.remove(unit)
            self._unit_done(unit.name)
        self.rejected = sum(record.rejected for record in self.records.values())
        check_rejected(self.plan, self.rejected)
        sizes = sizes or self._connect(connection, pending)  # of units whose files are lost
        if sizes is not None and pending:
            self._score(sizes, pending, tracker)
        return self._finish(lock)

    def _finish(self, lock: Lock) -> Manifest:
        lock.check()
        return self.output.finish(self.plan, self.attempt, self.quarantined, lock.check)

    def _score(self, sizes: Sizes, pending: Sequence[Unit], tracker: Tracker) -> None:
        """Score until no unit is left whose scorer lost its GPU."""
        done = rows_of(self.records.values())
        local = self.config.runner == "local"
        with (
            contextlib.nullcontext() if local else RayWatch(self.signals.stop),
            Progress(
                self.plan.total_rows, done, len(self.plan.units), len(self.records)
            ) as progress,
        ):
            while pending:
                pending = self._score_once(sizes, pending, tracker, progress)

    def _score_once(
        self, sizes: Sizes, pending: Sequence[Unit], tracker: Tracker, progress: Progress
    ) -> list[Unit]:
        """Score these units; returns those to score again."""
        flow = "local_flow" if self.config.runner == "local" else "flow"
        stream_outcomes = import_module(f"pipeline.scoring.{flow}").stream_outcomes
        again = []
        tell_pending = pending_metric(self.config)
        tell_pending(len(self.plan.units) - len(self.records))
        stream = stream_outcomes(self.plan, pending, sizes, self.attempt)
        with contextlib.closing(stream) as outcomes:
            while (outcome := self._next(outcomes)) is not None:
                if isinstance(outcome, MachineSample):
                    tracker.machine(outcome)
                    continue
                if isinstance(outcome, UnitError):
                    if outcome.kind == "gpu_lost":
                        self._gpu_lost(outcome)
                        again.append(self._units[outcome.unit])
                    else:
                        self._failed(outcome)
                    continue
                self.records[outcome.unit] = outcome
                self.fresh[outcome.unit] = time.monotonic() - self.began
                self.rejected += outcome.rejected
                self._warn_of_memory(outcome)
                self._warn_of_unpacking(outcome)
                progress.unit_done(outcome.rows)
                tell_pending(len(self.plan.units) - len(self.records))
                tracker.unit_done(outcome)
                check_rejected(self.plan, self.rejected)
                self._unit_done(outcome.unit)
        return again

    def _unit_done(self, unit: str) -> None:
        """Finish the unit's partition, if it has one, with its last unit."""
        if isinstance(self.output, PartitionedOutput):
            self.output.unit_done(unit)

    def _next(self, outcomes: Iterator[Outcome | MachineSample]) -> Outcome | MachineSample | None:
        """The next outcome, None at the end; a stop signal raises while waiting for it."""
        with self.signals.waiting():
            return next(outcomes, None)

    def _warn_of_memory(self, record: UnitRecord) -> None:
        """Say, once for each scorer and size, that batches had to become smaller."""
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
        """Say, once for each scorer, that the CPU decodes units, from which one on and why."""
        if record.unpack_error and record.scorer not in self.not_unpacking:
            self.not_unpacking.add(record.scorer)
            log.warning(
                "scorer %s: the GPU does not unpack row groups %d..%d of %s, the CPU does, which "
                "is slower: %s",
                record.scorer,
                record.first_row_group,
                record.stop_row_group - 1,
                record.where,
                record.unpack_error,
            )

    def _gpu_lost(self, error: UnitError) -> None:
        """Say, once for each scorer, that it ends and why; ResumableError at one too many."""
        if error.scorer in self.lost_gpu:
            return
        self.lost_gpu.add(error.scorer)
        if len(self.lost_gpu) > MOST_LOST_GPUS:
            raise ResumableError(
                f"{len(self.lost_gpu)} scorers lost their GPU, the last one, {error.scorer}: "
                f"{error.message}; look at the GPU (nvidia-smi, the kernel's log), or leave it out "
                "by CUDA_VISIBLE_DEVICES, then run the command again"
            )
        log.warning(
            "scorer %s lost its GPU and is started again, its units are scored again: %s",
            error.scorer,
            error.message,
        )

    def _failed(self, error: UnitError) -> None:
        """Raise the job's error for a failed unit, or note the unit as quarantined."""
        if error.kind != "corrupt" or self.config.on_corrupt_file != "quarantine":
            raise job_error(error)
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
        if isinstance(self.output, PartitionedOutput):
            self.output.left_out(entry)

    @cached_property
    def _units(self) -> dict[str, Unit]:
        return {unit.name: unit for unit in self.plan.units}

    def _other_metrics(self) -> dict[str, float]:
        """What does not follow from the records of units."""
        counted = {} if self.duplicate_keys is None else {"duplicate_keys": self.duplicate_keys}
        return (self.evaluation.metrics if self.evaluation else {}) | counted

    def _end_tracking(self, tracker: Tracker, error: BaseException | None) -> None:
        stopped = isinstance(error, (StopRequestedError, KeyboardInterrupt))
        self.seconds = self.seconds or time.monotonic() - self.began
        status: Literal["FINISHED", "FAILED", "KILLED"] = "FAILED"
        if error is None or stopped:
            status = "KILLED" if stopped else "FINISHED"
        tracker.finish(
            status,
            list(self.records.values()),
            self.seconds,
            self.num_gpus,
            None if error is None else f"{type(error).__name__}: {error}",
            self._other_metrics(),
            self.evaluation.model_dump(mode="json") if self.evaluation else None,
        )
        wait = self.config.tracking_wait
        if wait == "auto":  # a job that is local by its configuration is one of seconds
            wait = 0 if self.config.runner == "local" else TRACKING_SECONDS
        seconds = float(wait)
        tracker.close(min(seconds, TRACKING_SECONDS_STOPPED) if stopped else seconds)

    def _result(
        self, manifest: Manifest, status: Literal["scored", "complete before"], resumed: int
    ) -> JobResult:
        seconds = self.seconds or time.monotonic() - self.began
        fresh = manifest.rows - self.resumed_rows if status == "scored" else 0
        price = self.config.price_per_hour
        attempt = Attempt(
            self.began_epoch, seconds, self.num_gpus, price_per_hour=price, done=self.fresh
        )
        rates = rate_metrics([self.records[unit] for unit in self.fresh], attempt)
        cost = None if price is None else price * max(self.num_gpus, 1) * seconds / 3600
        return JobResult(
            output=self.output.address,
            identity=manifest.identity,
            bundles=manifest.bundles,
            outputs=manifest.outputs,
            segments=manifest.segment_rows,
            status=status,
            rows=manifest.rows,
            scored=manifest.scored,
            rejected=manifest.rejected,
            quarantined=len(manifest.quarantined),
            units=len(manifest.units),
            duplicate_keys=manifest.duplicate_keys,
            resumed_units=resumed,
            evaluation=self.evaluation.metrics if self.evaluation else {},
            read_by=Counter(unit.read_by for unit in manifest.units if unit.read_by),
            seconds=seconds,
            rows_per_s=fresh / seconds,
            startup_s=rates.get("startup_seconds"),
            cost=cost,
            cost_per_million_rows=rates.get(COST),
            cost_per_million_rows_without_startup=rates.get(f"{COST}_without_startup"),
        )


def _told(error: BaseException) -> BaseException:
    """The error as the caller of the job will see it."""
    if isinstance(error, (StopRequestedError, KeyboardInterrupt)):
        return ResumableError(f"stopped by {error}")
    if isinstance(error, OSError):
        return ResumableError(str(error))
    return error


def job_error(error: UnitError) -> DpiframeError:
    """The job's error for a unit that failed."""
    return JOB_ERRORS[error.kind](f"{error.message} (unit {error.unit})")


def rows_of(records: Iterable[UnitRecord]) -> int:
    """Rows of some units."""
    return sum(record.rows for record in records)
