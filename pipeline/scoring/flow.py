"""The Ray Data pipeline: units to a fixed pool of scorer actors, one outcome a unit to the driver.

    read_in scorer   descriptions of a few units -> scorer actor, whose threads read -> outcomes
    read_in tasks    read task on any CPU -> object store -> scorer actor -> outcome

Rows never pass the driver, and Ray's backpressure bounds what waits in the object store.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask
from ray.data.exceptions import ExecutionTimeoutError
from ray.exceptions import RayActorError, RayError, RayTaskError

from pipeline.cluster.ray_private import map_whole_blocks, maps_whole_blocks
from pipeline.errors import DpiframeError, ResumableError, UnitFailedError
from pipeline.planning.job_plan import JobPlan, WorkerPlan
from pipeline.planning.units import Unit
from pipeline.publishing.records import Outcome
from pipeline.reading.reader import read_unit
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.scoring.machine_watch import MachineSample
from pipeline.scoring.scorer_actor import ScorerActor
from pipeline.scoring.transport import (
    columns_to_table,
    failure_to_table,
    outcomes_from_table,
    units_to_table,
)
from pipeline.sizing.memory_fit import STORE_SHARE
from pipeline.sizing.sizes import Sizes
from pipeline.sizing.unit_groups import group_units

# How many scorers may die over one unit before the job gives up; Ray starts new ones meanwhile.
SCORER_DEATHS = 8
# How long nothing may move before the job gives up.
STALL_SECONDS = 1800.0


class UnitSource(Datasource):  # type: ignore[misc]  # Ray ships no types
    """Units of the input as a Ray Data source: a read task gives the table of one unit."""

    def __init__(self, units: Sequence[Unit], plan: WorkerPlan, row_bytes: int) -> None:
        super().__init__()
        self.units, self.plan, self.row_bytes = units, plan, row_bytes

    def get_name(self) -> str:
        """Name of the read stage in Ray's own displays."""
        return "Units"

    def estimate_inmemory_data_size(self) -> int:
        """Bytes of all units in memory, as the types of their columns tell."""
        return sum(unit.rows for unit in self.units) * self.row_bytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """One task a unit, whatever parallelism Ray would like."""
        return [self._task(unit) for unit in self.units]

    def _task(self, unit: Unit) -> ReadTask:
        metadata = BlockMetadata(
            num_rows=unit.rows,
            size_bytes=unit.rows * self.row_bytes,
            input_files=[unit.path],
            exec_stats=None,
        )
        return ReadTask(partial(read_task, unit, self.plan), metadata)


def read_task(unit: Unit, plan: WorkerPlan) -> list[pa.Table]:
    """Body of a read task: one block. Faults of the input become data, not exceptions, as the
    driver decides what they mean for the job.
    """
    try:
        return [columns_to_table(unit, read_unit(unit, plan, UnitBuffer()))]
    except UnitFailedError as error:
        return [failure_to_table(unit, error)]


def stream_outcomes(
    plan: JobPlan, units: Sequence[Unit], sizes: Sizes, attempt: str
) -> Generator[Outcome | MachineSample, None, None]:
    """Score and publish units on the connected Ray; yields one outcome a unit, as they finish, and
    samples of the scorers' machines.

    Closing the iterator stops the work. Raises ResumableError when Ray itself is lost; faults of
    the input or the output are outcomes.
    """
    if not units:
        return
    if sizes.scorer_gpus and not maps_whole_blocks():  # units would be cut apart
        sizes = replace(sizes, read_in="scorer")
    context = ray.data.DataContext.get_current().copy()
    context.target_max_block_size = None  # a block is a unit, however large
    context.override_object_store_memory_limit_fraction = STORE_SHARE
    context.enable_progress_bars = False
    context.execution_no_progress_timeout_s = STALL_SECONDS
    context.execution_options.preserve_order = False
    with ray.data.DataContext.current(context):
        dataset = score(source(plan, units, sizes), plan.for_workers, sizes, attempt)
        batches = iter(
            dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
        )
    try:
        with ray_errors():
            for batch in batches:
                yield from outcomes_from_table(batch)
    finally:
        if hasattr(batches, "close"):
            batches.close()


@contextlib.contextmanager
def ray_errors() -> Iterator[None]:
    """Turn what Ray raises while it works into errors of the job."""
    try:
        yield
    except RayTaskError as error:
        raise DpiframeError(f"unexpected error in a worker: {error}") from error
    except RayActorError as error:
        raise ResumableError(
            f"scorers died {SCORER_DEATHS + 1} times over one unit, the last by: {error}; look for "
            "a lack of memory (then a smaller unit_rows or max_batch helps) and at the logs that "
            "--verbose shows, then run the command again"
        ) from error
    except RayError as error:
        raise ResumableError(f"Ray lost the job: {error}; run the command again") from error
    except ExecutionTimeoutError as error:
        raise ResumableError(
            f"nothing moved for {STALL_SECONDS:g} s: the cluster may have no room for a scorer, or "
            "its object store none for a unit (then a smaller unit_rows helps); run the command "
            f"again: {error}"
        ) from error
    except OSError as error:  # never of the output, which only scorers write: that is an outcome
        raise ResumableError(
            f"Ray cannot write its own files below {tempfile.gettempdir()}: {error}; make room "
            "there, or set TMPDIR, then run the command again"
        ) from error


def source(plan: JobPlan, units: Sequence[Unit], sizes: Sizes) -> ray.data.Dataset:
    """What scorers are called with: descriptions of units, or their decoded columns."""
    if sizes.read_in == "scorer":
        groups = group_units(units, sizes.scorers * sizes.calls, sizes.device)
        return ray.data.from_blocks([units_to_table(group) for group in groups])
    return ray.data.read_datasource(
        UnitSource(units, plan.for_workers, plan.row_bytes),
        override_num_blocks=len(units),
        num_cpus=sizes.read_cpus,
        compute=ray.data.TaskPoolStrategy(size=sizes.read_tasks),
    )


def score(dataset: Any, plan: WorkerPlan, sizes: Sizes, attempt: str) -> ray.data.Dataset:
    """Scorers over the blocks; Ray does not fuse them with read tasks, as resources differ."""
    return map_whole_blocks(
        dataset,
        ScorerActor,
        fn_constructor_args=(plan, sizes, attempt),
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(
            size=sizes.scorers,
            max_tasks_in_flight_per_actor=sizes.tasks_in_flight,
            max_concurrent_calls_per_actor=sizes.calls,
            enable_true_multi_threading=True,
        ),
        num_cpus=sizes.scorer_cpus,
        num_gpus=sizes.scorer_gpus or None,
        # Ray's default is to retry for ever, also a unit that crashes every scorer it meets.
        max_task_retries=SCORER_DEATHS,
    )
