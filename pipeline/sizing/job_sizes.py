"""The sizes of a job, from its machine, work and configuration: a pure function.

What a key gives is taken as it is; the rest follows from it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from pipeline.config.job import JobConfig
from pipeline.errors import ConfigError
from pipeline.sizing.machine import Machine
from pipeline.sizing.memory_fit import fit_memory
from pipeline.sizing.sizes import MAX_BATCH, MIN_BATCH, Sizes, Work, given
from pipeline.words import size

CORES_A_SCORER = 8  # without GPUs
MAX_PACKERS = 12  # threads that pack batches for one GPU; more were not faster
CPU_SHARE = 0.75  # of a scorer's cores it asks Ray for; others may use some of them
RING_SLOTS = 3  # batches in flight on a GPU
GPU_RESERVE = 1 << 30  # CUDA's context, libraries, graphs
LIGHT_OPERATIONS, LEAST_OPERATIONS = 2e10, 1e5  # in products, about a second; least of a row
KEYS = (
    "num_scorers",
    "read_in",
    "threads",
    "max_batch",
    "max_read_tasks",
    "max_tasks_in_flight",
    "object_store_bytes",
)
ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}


def choose_sizes(machine: Machine, work: Work, config: JobConfig) -> Sizes:
    """Settle all sizes. ConfigError when the job cannot run there, saying what to change."""
    if config.runner == "local":
        machine, config = _one_process(machine, config)
    wants_gpu = config.device == "cuda" or (
        config.device == "auto" and machine.gpus >= 1 and machine.has_cuda
    )
    sizes = _on_gpus(machine, work, config) if wants_gpu else _on_cpus(machine, work, config)
    sizes = fit_memory(sizes, machine, work, config)
    sizes = sizes.because(**{k: "as configured" for k in KEYS if getattr(config, k) != "auto"})
    if config.runner == "local":
        sizes = replace(sizes, light=sizes.device == "cpu" and _is_light(work))
        sizes = sizes.because(num_scorers="runner is local", read_in="runner is local")
    return sizes


def _is_light(work: Work) -> bool:
    """Whether numpy scores all rows in the time that the import of torch takes."""
    return work.rows * max(work.model.operations, LEAST_OPERATIONS) < LIGHT_OPERATIONS


def _one_process(machine: Machine, config: JobConfig) -> tuple[Machine, JobConfig]:
    """What one scorer in the driver's process has: all cores, one GPU, no object store."""
    machine = replace(machine, gpus=min(machine.gpus, 1))
    keys = {"num_scorers": 1, "read_in": "scorer", "object_store_bytes": "auto"}
    return machine, config.model_copy(update=keys)


def _on_gpus(machine: Machine, work: Work, config: JobConfig) -> Sizes:
    """One scorer a GPU, which reads on its share of the cores, or leaves them to read tasks."""
    if machine.gpus < 1 or not machine.has_cuda:
        raise ConfigError(
            f"device is {config.device}, but there are {machine.gpus} GPUs"
            f"{'' if machine.has_cuda else ' and this build of the engine has no CUDA part'}; "
            "set device to cpu or auto"
        )
    scorers = given(config.num_scorers, max(1, min(machine.gpus, work.units)))
    if scorers > machine.gpus:
        raise ConfigError(f"num_scorers is {scorers}, but there are {machine.gpus} GPUs")
    cores = min(machine.cores / scorers, machine.node_cores or machine.cores)
    alone = machine.gpuless_cores == 0
    read_in = ("scorer" if alone else "tasks") if config.read_in == "auto" else config.read_in
    # Ray would wait for ever for a machine with more cores beside its GPUs.
    least = cores if machine.cores_a_gpu is None else min(cores, machine.cores_a_gpu)
    writers = float(min(4, max(1, round(cores / 6)), int(least)))
    packers = min(MAX_PACKERS, max(1, int(cores * CPU_SHARE)))
    if read_in == "tasks":
        packers = max(1, int(writers))
    batch, reason = _gpu_batch(machine, work, config)
    return Sizes(
        device="cuda",
        scorers=scorers,
        scorer_cpus=_asked(least) if read_in == "scorer" else 0.0 if cores < 2 else writers,
        scorer_gpus=1,
        read_cpus=min(0.5 if work.remote else 1.0, machine.cores / 2),  # half wait for a store
        threads=given(config.threads, packers),
        read_in=read_in,
        max_batch=batch,
    ).because(
        num_scorers="one a GPU, no more than units",
        read_in="all cores are beside the GPUs" if alone else "most cores may be on other machines",
        threads=f"of {cores:g} cores a GPU, to pack batches",
        max_batch=reason,
    )


def _on_cpus(machine: Machine, work: Work, config: JobConfig) -> Sizes:
    """A scorer for 8 cores, on which it reads as well, or leaves half of them to read tasks.

    The shares of a scorer and of a read task always differ: Ray fuses alike stages into one, and
    reading would no longer run beside scoring.
    """
    wanted = max(1, min(int(machine.cores // CORES_A_SCORER), work.units))
    scorers = given(config.num_scorers, wanted)
    read_cpus = 0.5 if work.remote or machine.cores < 4 else 1.0
    if scorers * 0.1 + read_cpus > machine.cores:
        raise ConfigError(f"num_scorers is {scorers}, too many for {machine.cores:g} cores")
    # A scorer lies on one machine: Ray would wait for ever for a larger one.
    cores = min(machine.cores / scorers, machine.node_cores or machine.cores)
    read_in = "scorer" if config.read_in == "auto" else config.read_in
    scorer_cpus = _asked(cores)
    if read_in == "tasks":
        scorer_cpus = max(0.1, math.floor(cores / 2 * 10) / 10)
        if scorer_cpus == read_cpus:
            scorer_cpus -= 0.1
        scorer_cpus = float(int(scorer_cpus)) if scorer_cpus > 1 else round(scorer_cpus, 1)
        if scorer_cpus == read_cpus:
            scorer_cpus = 0.9
    return Sizes(
        device="cpu",
        scorers=scorers,
        scorer_cpus=scorer_cpus,
        scorer_gpus=0,
        read_cpus=read_cpus,
        threads=given(config.threads, min(1024, max(1, int(cores)))),
        read_in=read_in,
        max_batch=given(config.max_batch, MAX_BATCH),
    ).because(
        num_scorers=f"no GPU: one for {CORES_A_SCORER} cores, no more than units",
        read_in="no rows need to travel",
        threads="the cores shared among the scorers",
        max_batch="of no weight on a CPU, which computes tile by tile",
    )


def _asked(cores: float) -> float:
    """CPUs to ask Ray for, which takes whole ones above 1, for a scorer with so many cores."""
    share = cores * CPU_SHARE
    if share <= 0:
        return 0.0
    return float(int(share)) if share >= 1 else max(0.1, math.floor(share * 10) / 10)


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
