"""The sizes of a job: how many scorers, readers, units in memory; from machine, input and keys.

What a key gives is taken as it is; the rest follows from it. Nothing is looked up here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from pipeline.config import JobConfig
from pipeline.errors import ConfigError
from pipeline.planning.job_plan import JobPlan
from pipeline.planning.row_cost import ModelCost
from pipeline.planning.units import Unit
from pipeline.scoring.machine import Machine
from pipeline.words import size

MIB, GIB = 1 << 20, 1 << 30
# Ray Data plans with half of the object store, so it must be twice as large as what lies in it.
STORE_FACTOR = 2
LEAST_STORE = 256 * MIB
# A reader's own memory: the decoded columns and the block made of them, in units.
UNITS_A_READER = 2
MEMORY_FRACTION, STORE_FRACTION = 0.8, 0.4  # of what is free, for all of the job and for its store
SLOW_STORE_BYTES = 9 * 10**9  # Ray refuses a larger store where /dev/shm is too small for it
SCORER_BYTES = 2 * GIB  # of a scorer besides its tables: torch, CUDA, one unit's arrays

CORES_A_SCORER = 8  # without GPUs
IN_FLIGHT, LEAST_IN_FLIGHT = 4, 2  # one waits while one is scored
MAX_BATCH, MIN_BATCH = 65536, 1024
RING_SLOTS = 3  # batches in flight on a GPU
GPU_RESERVE = GIB  # CUDA's context, libraries, graphs
KEYS = (
    "num_scorers",
    "threads",
    "max_batch",
    "max_read_tasks",
    "max_tasks_in_flight",
    "object_store_bytes",
)
ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}


class Work(NamedTuple):
    """What is to be scored. `largest_rows`: rows of the largest unit."""

    rows: int
    units: int
    largest_rows: int
    row_bytes: int
    form: Literal["raw", "encoded"]
    model: ModelCost

    @property
    def unit_bytes(self) -> int:
        """The largest unit in memory."""
        return self.largest_rows * self.row_bytes


def work_of(plan: JobPlan, pending: Sequence[Unit]) -> Work:
    """What the pending units (at least one) of a plan are."""
    return Work(
        rows=sum(unit.rows for unit in pending),
        units=len(pending),
        largest_rows=max(unit.rows for unit in pending),
        row_bytes=plan.row_bytes,
        form=plan.columns.form,
        model=plan.model,
    )


@dataclass(frozen=True)
class Sizes:
    """What one scorer and one read task take of the cluster, and how many there are.

    `store_bytes`: of all object stores; `reasons`: configuration key -> why it got its value.
    """

    device: Literal["cpu", "cuda"]
    scorers: int
    scorer_cpus: float
    scorer_gpus: int
    read_cpus: float
    threads: int
    read_tasks: int = 1
    tasks_in_flight: int = IN_FLIGHT
    max_batch: int = MAX_BATCH
    store_bytes: int = LEAST_STORE
    reasons: Mapping[str, str] = field(default_factory=dict)

    def because(self, **reasons: str) -> Sizes:
        """The same sizes, with these reasons for some."""
        return replace(self, reasons={**self.reasons, **reasons})


def choose_sizes(machine: Machine, work: Work, config: JobConfig) -> Sizes:
    """Settle all sizes. ConfigError when the job cannot run there, saying what to change."""
    wants_gpu = config.device == "cuda" or (
        config.device == "auto" and machine.gpus >= 1 and machine.has_cuda
    )
    sizes = _on_gpus(machine, work, config) if wants_gpu else _on_cpus(machine, work, config)
    sizes = _in_memory(sizes, machine, work, config)
    return sizes.because(**{k: "as configured" for k in KEYS if getattr(config, k) != "auto"})


def _on_gpus(machine: Machine, work: Work, config: JobConfig) -> Sizes:
    """One scorer a GPU with about a sixth of its cores, to pack and write; the others read."""
    if machine.gpus < 1 or not machine.has_cuda:
        raise ConfigError(
            f"device is {config.device}, but there are {machine.gpus} GPUs"
            f"{'' if machine.has_cuda else ' and this build of the engine has no CUDA part'}; "
            "set device to cpu or auto"
        )
    scorers = _given(config.num_scorers, max(1, min(machine.gpus, work.units)))
    if scorers > machine.gpus:
        raise ConfigError(f"num_scorers is {scorers}, but there are {machine.gpus} GPUs")
    cores = machine.cores / scorers
    scorer_cpus = 0.0 if cores < 2 else float(min(4, max(1, round(cores / 6))))
    batch, reason = _gpu_batch(machine, work, config)
    return Sizes(
        device="cuda",
        scorers=scorers,
        scorer_cpus=scorer_cpus,
        scorer_gpus=1,
        read_cpus=min(1.0, machine.cores / 2),
        threads=_given(config.threads, max(1, int(scorer_cpus))),
        max_batch=batch,
    ).because(
        num_scorers="one a GPU, no more than units",
        threads=f"of {cores:g} cores a GPU, to pack and write; the others read",
        max_batch=reason,
    )


def _on_cpus(machine: Machine, work: Work, config: JobConfig) -> Sizes:
    """A scorer for 8 cores, together on half of the cores, so that reading never starves.

    The shares of a scorer and of a read task always differ: Ray fuses alike stages into one, and
    reading would no longer run beside scoring.
    """
    wanted = max(1, min(int(machine.cores // CORES_A_SCORER), work.units))
    scorers = _given(config.num_scorers, wanted)
    read_cpus = 1.0 if machine.cores >= 4 else 0.5
    if scorers * 0.1 + read_cpus > machine.cores:
        raise ConfigError(f"num_scorers is {scorers}, too many for {machine.cores:g} cores")
    scorer_cpus = max(0.1, math.floor(machine.cores / 2 / scorers * 10) / 10)
    if scorer_cpus == read_cpus:
        scorer_cpus -= 0.1
    return Sizes(
        device="cpu",
        scorers=scorers,
        scorer_cpus=round(scorer_cpus, 1),
        scorer_gpus=0,
        read_cpus=read_cpus,
        threads=_given(config.threads, min(1024, max(1, int(machine.cores // scorers)))),
        max_batch=_given(config.max_batch, MAX_BATCH),
    ).because(
        num_scorers=f"no GPU: one for {CORES_A_SCORER} cores, no more than units",
        threads="the cores shared among the scorers",
        max_batch="of no weight on a CPU, which computes tile by tile",
    )


def _gpu_batch(machine: Machine, work: Work, config: JobConfig) -> tuple[int, str]:
    """The largest power of two up to MAX_BATCH that fits beside the tables, and why."""
    if config.max_batch != "auto":
        return config.max_batch, ""
    element = ELEMENT_BYTES[config.precision]
    tables = work.model.table_values * element
    room = None if machine.gpu_bytes is None else machine.gpu_bytes - GPU_RESERVE - tables
    ring = RING_SLOTS * (8 * work.model.fields + 4 * work.model.dense + 4)
    row = work.model.values * element + ring
    if room is not None and room < MIN_BATCH * row:
        raise ConfigError(
            f"the tables take {size(tables)} in {config.precision}, a batch of {MIN_BATCH} rows "
            f"{size(MIN_BATCH * row)} and CUDA {size(GPU_RESERVE)}, but a GPU has only "
            f"{size(machine.gpu_bytes or 0)} free; use fp16 or bf16, smaller tables, a larger GPU "
            "or device cpu"
        )
    batch = MAX_BATCH
    while room is not None and batch * row > room:
        batch //= 2
    if room is None or batch == MAX_BATCH:
        return batch, "the fastest that was measured"
    return batch, f"what the {size(room)} of GPU memory beside the tables hold"


def _in_memory(sizes: Sizes, machine: Machine, work: Work, config: JobConfig) -> Sizes:
    """Readers, units in flight and the store, such that all of it fits."""
    left = machine.cores - sizes.scorers * sizes.scorer_cpus
    readers = max(1, min(int(left / sizes.read_cpus + 1e-6), work.units, 1024))
    waiting = max(1, min(IN_FLIGHT, -(-work.units // sizes.scorers)))
    sizes = replace(
        sizes,
        read_tasks=_given(config.max_read_tasks, readers),
        tasks_in_flight=_given(config.max_tasks_in_flight, waiting),
    ).because(
        max_read_tasks="one for each core that scorers leave, no more than units",
        max_tasks_in_flight="a scorer never waits for a unit that is read already",
        object_store_bytes="twice the units being read, waiting and being scored",
    )
    limit = _store_limit(machine, work, config)
    _check_unit(machine, work, limit)
    fitted = _fit(sizes, machine, work, config, limit)
    if fitted != sizes:
        why = f"as many units of {size(work.unit_bytes)} as memory holds"
        fitted = fitted.because(max_read_tasks=why, max_tasks_in_flight=why)
    if machine.store_bytes is not None:
        fitted = fitted.because(object_store_bytes="of the running cluster")
        return replace(fitted, store_bytes=machine.store_bytes)
    wanted = max(LEAST_STORE, min(_in_store(fitted, work), limit))
    return replace(fitted, store_bytes=_given(config.object_store_bytes, wanted))


def _store_limit(machine: Machine, work: Work, config: JobConfig) -> int:
    """Bytes that the store has, or may have."""
    if machine.store_bytes is not None:
        return machine.store_bytes
    if config.object_store_bytes != "auto":
        return config.object_store_bytes
    free = int(machine.memory_bytes * STORE_FRACTION)
    shared = int(machine.shared_bytes * 0.95)
    least = STORE_FACTOR * 2 * work.unit_bytes
    if shared >= min(free, least):
        return min(free, shared)
    return min(free, SLOW_STORE_BYTES)  # Ray keeps it in files then


def _check_unit(machine: Machine, work: Work, limit: int) -> None:
    if work.unit_bytes * machine.nodes > limit:
        raise ConfigError(
            f"a unit of {work.largest_rows:,} rows takes {size(work.unit_bytes)}, but the object "
            f"store {'has' if machine.store_bytes is not None else 'can have'} only "
            f"{size(limit // machine.nodes)}; set unit_rows lower (a unit is a row group at least:"
            " write smaller ones where that is not enough), or give the store more memory"
        )


def _fit(sizes: Sizes, machine: Machine, work: Work, config: JobConfig, limit: int) -> Sizes:
    """Fewer units in flight, then fewer readers, until store and memory hold them all."""
    tables = 4 * work.model.table_values
    all_memory = int(machine.memory_bytes * MEMORY_FRACTION)
    memory = max(all_memory // 4, all_memory - sizes.scorers * (SCORER_BYTES + 2 * tables))

    def fits(some: Sizes) -> bool:
        readers = some.read_tasks * UNITS_A_READER * work.unit_bytes
        stored = _in_store(some, work)
        own_store = 0 if machine.store_bytes is not None else stored
        return stored <= limit and readers + own_store <= memory

    def lower(some: Sizes, least_in_flight: int) -> Sizes | None:
        if some.tasks_in_flight > least_in_flight and config.max_tasks_in_flight == "auto":
            return replace(some, tasks_in_flight=some.tasks_in_flight - 1)
        if some.read_tasks > 1 and config.max_read_tasks == "auto":
            return replace(some, read_tasks=some.read_tasks - 1)
        return None

    for least_in_flight in (LEAST_IN_FLIGHT, 1):
        while not fits(sizes) and (fewer := lower(sizes, least_in_flight)):
            sizes = fewer
    return sizes


def _in_store(sizes: Sizes, work: Work) -> int:
    units = sizes.read_tasks + sizes.scorers * sizes.tasks_in_flight
    return STORE_FACTOR * min(units, max(2, work.units)) * work.unit_bytes


def _given(value: int | Literal["auto"], otherwise: int) -> int:
    return otherwise if value == "auto" else value
