"""How many units are read and wait at one time, so that memory and the object store hold them."""

from __future__ import annotations

from dataclasses import replace

from pipeline.config.job import JobConfig
from pipeline.errors import ConfigError
from pipeline.sizing.machine import Machine
from pipeline.sizing.sizes import IN_FLIGHT, LEAST_STORE, Sizes, Work, given
from pipeline.storage.fetch import REQUEST_BYTES, REQUESTS
from pipeline.words import size

GIB = 1 << 30
# Ray Data may fill this share of an object store; it reserves as much again for outputs to come.
STORE_SHARE = 0.8
STORE_FACTOR = 2
# Units that a reader's own memory holds: the decoded columns, and what is made of them.
UNITS_A_READER, REMOTE_UNITS_A_READER = 2, 3  # the latter with the bytes that were fetched
MEMORY_FRACTION, STORE_FRACTION = 0.8, 0.4  # of the free memory, for the job and for its store
SLOW_STORE_BYTES = 9 * 10**9  # Ray refuses a larger store where /dev/shm is too small for it
SCORER_BYTES = 2 * GIB  # of a scorer without its tables: torch, CUDA, the arrays of one unit

SMALLER = (
    "set unit_rows lower (a unit is a row group at least: where that is not enough write smaller "
    "ones)"
)
LEAST_IN_FLIGHT = 2  # one waits while one is scored
QUEUED = 2  # calls sent to a scorer for each that runs, so that the scorer never waits for one
# Units in flight a core: some wait for the GPU while others are read.
GPU_READS = 1.25
# Units in flight beside one GPU: more do not keep it busier. Where it decodes nearly all rows
# itself, reading and writing encoded ones takes half of the cores: 10 units are in their stages at
# 160 M rows/s, some more wait (PAGE_READS), of small units those of PAGE_ROWS.
MOST_READS, PAGE_READS, PAGE_ROWS, NEARLY_ALL = 32, 18, 18_000_000, 0.95
CPU_READS = 3  # of a scorer without a GPU: one unit is read, one scored, one written
# Bytes on their way from an object store beside one scorer: 4 GB/s (0.5 without a GPU) for the
# 0.1 s until a store answers. Units of so many bytes are read ahead, up to MOST_AHEAD.
AHEAD_BYTES, CPU_AHEAD_BYTES, MOST_AHEAD = 400 * 10**6, 50 * 10**6, 16


def fit_memory(sizes: Sizes, machine: Machine, work: Work, config: JobConfig) -> Sizes:
    """Sizes with readers, units in flight and the object store chosen to fit."""
    if sizes.read_in == "scorer":
        return _reading_scorers(sizes, machine, work, config)
    left = machine.cores - sizes.scorers * sizes.scorer_cpus
    readers = max(1, min(int(left / sizes.read_cpus + 1e-6), work.units, 1024))
    waiting = max(1, min(IN_FLIGHT, -(-work.units // sizes.scorers)))
    sizes = replace(
        sizes,
        read_tasks=given(config.max_read_tasks, readers),
        tasks_in_flight=given(config.max_tasks_in_flight, waiting),
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
    return replace(fitted, store_bytes=given(config.object_store_bytes, wanted))


def _reading_scorers(sizes: Sizes, machine: Machine, work: Work, config: JobConfig) -> Sizes:
    """Units read in the scorers, as many as cores and memory allow; nothing is in the store."""
    _check_memory(machine, work)
    on_gpu = sizes.device == "cuda"
    most = MOST_READS
    if work.gpu_share >= NEARLY_ALL and work.form == "encoded":
        most = min(most, max(PAGE_READS, -(-PAGE_ROWS // work.largest_rows)))
    a_scorer = min(most, GPU_READS * machine.cores / sizes.scorers)
    wanted = int(a_scorer * sizes.scorers) if on_gpu else CPU_READS * sizes.scorers
    wanted += _ahead(work, on_gpu) * sizes.scorers
    readers = max(sizes.scorers, min(wanted, work.units, 1024))
    memory = _memory_beside(sizes, machine, work)
    while readers > sizes.scorers and readers * _units_a_reader(work) * work.unit_bytes > memory:
        readers -= 1
    why = "by the cores beside it" if on_gpu else "a scorer reads one, scores one, writes one"
    why += ", more while a store answers" if work.remote else ""
    short = readers < min(wanted, work.units)
    sizes = replace(sizes, read_tasks=given(config.max_read_tasks, readers))
    flight = given(config.max_tasks_in_flight, QUEUED * sizes.calls)
    store = LEAST_STORE if machine.store_bytes is None else machine.store_bytes
    return replace(
        sizes,
        tasks_in_flight=max(flight, sizes.calls),
        store_bytes=given(config.object_store_bytes, store),
    ).because(
        max_read_tasks=f"as many units of {size(work.unit_bytes)} as memory holds"
        if short
        else why,
        max_tasks_in_flight="calls of a scorer, some of which wait",
        object_store_bytes="no rows lie in it",
    )


def _ahead(work: Work, on_gpu: bool) -> int:
    """Units beside one scorer that are only waited for; none of the file system."""
    if not work.remote:
        return 0
    wanted = AHEAD_BYTES if on_gpu else CPU_AHEAD_BYTES
    return min(MOST_AHEAD, -(-wanted // max(1, work.unit_bytes)))


def _units_a_reader(work: Work) -> int:
    return REMOTE_UNITS_A_READER if work.remote else UNITS_A_READER


def _check_memory(machine: Machine, work: Work) -> None:
    if UNITS_A_READER * work.unit_bytes > machine.memory_bytes * MEMORY_FRACTION:
        raise ConfigError(
            f"a unit of {work.largest_rows:,} rows takes {size(work.unit_bytes)} twice while it is "
            f"read, but only {size(machine.memory_bytes)} of memory are free; {SMALLER}"
        )


def _memory_beside(sizes: Sizes, machine: Machine, work: Work) -> int:
    """Bytes of memory for units: all that scorers do not take themselves."""
    tables = 4 * work.model.table_values
    all_memory = int(machine.memory_bytes * MEMORY_FRACTION)
    scorer = SCORER_BYTES + 2 * tables + (REQUESTS * REQUEST_BYTES if work.remote else 0)
    return max(all_memory // 4, all_memory - sizes.scorers * scorer)


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
            f"{size(limit // machine.nodes)}; {SMALLER}, or give the store more memory"
        )


def _fit(sizes: Sizes, machine: Machine, work: Work, config: JobConfig, limit: int) -> Sizes:
    """Fewer units in flight, then fewer readers, until store and memory hold them all."""
    memory = _memory_beside(sizes, machine, work)

    def fits(some: Sizes) -> bool:
        readers = some.read_tasks * _units_a_reader(work) * work.unit_bytes
        store = _in_store(some, work)
        own_store = 0 if machine.store_bytes is not None else store
        return store <= limit and readers + own_store <= memory

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
