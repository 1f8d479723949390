"""The sizes of a job, over many machines and inputs."""

from __future__ import annotations

import dataclasses
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from job_cases import job_keys

from pipeline.config.job import JobConfig
from pipeline.errors import ConfigError
from pipeline.planning.row_cost import ModelCost
from pipeline.sizing.estimate import estimate
from pipeline.sizing.job_sizes import KEYS, choose_sizes
from pipeline.sizing.machine import Machine
from pipeline.sizing.memory_fit import STORE_FACTOR, UNITS_A_READER
from pipeline.sizing.sizes import LEAST_STORE, MAX_BATCH, Sizes, Work

GB = 10**9
# Criteo's shape: 33.8 M table rows of 16 numbers, DCNv2.
MODEL = ModelCost(fields=39, dense=0, table_values=540_000_000, operations=3_477_504, values=3_700)
TASKS = {"read_in": "tasks"}
SMALL = MODEL.model_copy(update={"table_values": 1000})


def machine(**facts: Any) -> Machine:
    usual = {"cores": 16, "gpus": 1, "memory_bytes": 120 * GB, "shared_bytes": 64 * GB}
    return Machine(**{**usual, "has_cuda": True, **facts})


def work(**facts: Any) -> Work:
    usual = {"rows": 10**9, "units": 320, "largest_rows": 3_125_000, "row_bytes": 164}
    return Work(**{**usual, "form": "encoded", "model": MODEL, **facts})


def config(**keys: Any) -> JobConfig:
    return JobConfig.model_validate(job_keys(Path("/nowhere"), threads="auto") | keys)


def sizes_of(**keys: Any) -> Sizes:
    return choose_sizes(machine(), work(), config(**keys))


def test_a_billion_rows_on_one_gpu_with_16_cores() -> None:
    sizes = sizes_of()
    assert (sizes.device, sizes.scorers, sizes.scorer_gpus) == ("cuda", 1, 1)
    assert (sizes.read_in, sizes.read_tasks, sizes.calls) == ("scorer", 20, 20)
    assert sizes.tasks_in_flight > sizes.calls
    assert (sizes.threads, sizes.max_batch) == (12, MAX_BATCH)
    assert sizes.store_bytes == LEAST_STORE
    assert sizes.reasons.keys() == set(KEYS)


def test_units_that_the_gpu_unpacks_take_few_threads() -> None:
    stored = choose_sizes(machine(), work(gpu_share=1.0), config())
    assert (stored.read_in, stored.read_tasks, stored.calls) == ("scorer", 18, 18)
    found = estimate(stored, machine(), work(gpu_share=1.0), "fp16")
    other = estimate(sizes_of(), machine(), work(), "fp16")
    assert found.limit == "the GPUs"
    assert other.limit == "reading and publishing"
    assert found.seconds < other.seconds


def test_units_that_the_gpu_does_not_unpack_take_their_threads() -> None:
    mixed = choose_sizes(machine(), work(gpu_share=0.5), config())
    assert mixed.read_tasks == sizes_of().read_tasks
    assert choose_sizes(machine(), work(gpu_share=0.96), config()).read_tasks == 18
    small = work(gpu_share=1.0, largest_rows=800_000)
    assert choose_sizes(machine(), small, config()).read_tasks == 20
    found = [estimate(mixed, machine(), work(gpu_share=s), "fp16").rates for s in (0.0, 0.5, 1.0)]
    for stage, order in (("reading and publishing", 1), ("the GPUs", -1)):
        rates = [order * rates[stage] for rates in found]
        assert rates == sorted(rates)
        assert len(set(rates)) == 3


def test_a_billion_rows_read_by_tasks() -> None:
    sizes = sizes_of(read_in="tasks")
    assert (sizes.scorer_cpus, sizes.threads, sizes.read_tasks) == (3, 3, 13)
    assert sizes.tasks_in_flight == 4
    assert sizes.store_bytes == STORE_FACTOR * 17 * 3_125_000 * 164


def test_machines_without_a_gpu_read_for_those_that_have_one() -> None:
    assert choose_sizes(machine(gpuless_cores=32), work(), config()).read_in == "tasks"


CORES = (1, 2, 3, 4, 7, 8, 16, 19, 64, 111, 256)
MEMORY = (1 * GB, 4 * GB, 16 * GB, 128 * GB, 2_000 * GB)
UNITS = ((1, 1, 8), (19, 3, 164), (10**6, 16, 164), (10**9, 320, 164), (10**9, 2000, 40_000))


@pytest.mark.parametrize(
    ("read_in", "cores", "gpus"), product(("scorer", "tasks"), CORES, (0, 1, 2, 8))
)
def test_what_runs_at_a_time_fits_the_machine(read_in: str, cores: int, gpus: int) -> None:
    for memory, (rows, units, row_bytes) in product(MEMORY, UNITS):
        here = machine(cores=cores, gpus=gpus, memory_bytes=memory, shared_bytes=memory // 2)
        some = work(
            rows=rows, units=units, largest_rows=-(-rows // units), row_bytes=row_bytes, model=SMALL
        )
        try:
            sizes = choose_sizes(here, some, config(read_in=read_in))
        except ConfigError as error:
            assert "a unit of" in str(error) and some.unit_bytes > 0.35 * memory
            continue
        check(sizes, here, some)


def check(sizes: Sizes, here: Machine, some: Work) -> None:
    assert sizes.device == ("cuda" if here.gpus else "cpu")
    assert 1 <= sizes.scorers <= some.units
    assert sizes.scorers <= (here.gpus or here.cores)
    assert sizes.scorers * sizes.threads <= max(here.cores, here.gpus)
    assert 1 <= sizes.read_tasks <= some.units
    used = sizes.scorers * sizes.scorer_cpus
    if sizes.read_in == "tasks":
        used += sizes.read_tasks * sizes.read_cpus
        assert sizes.scorer_gpus or sizes.scorer_cpus != sizes.read_cpus  # Ray would fuse them
        assert 1 <= sizes.tasks_in_flight <= 4
        assert min(some.unit_bytes, LEAST_STORE) <= sizes.store_bytes
        assert sizes.store_bytes <= max(LEAST_STORE, 0.4 * here.memory_bytes)
    else:
        assert sizes.tasks_in_flight >= sizes.calls >= 1
        read = sizes.read_tasks * UNITS_A_READER * some.unit_bytes
        assert read <= 0.8 * here.memory_bytes or sizes.read_tasks == sizes.scorers
    assert used <= here.cores + 1e-6
    assert estimate(sizes, here, some, "fp16").seconds > 0


@pytest.mark.parametrize("read_in", ["scorer", "tasks"])
def test_every_size_can_be_set(read_in: str) -> None:
    keys = {
        "num_scorers": 1,
        "read_in": read_in,
        "threads": 7,
        "max_batch": 19,
        "max_read_tasks": 5,
        "max_tasks_in_flight": 11,
        "object_store_bytes": 20 * GB,
    }
    sizes = sizes_of(**keys)
    assert [sizes.scorers, sizes.threads, sizes.max_batch] == [1, 7, 19]
    assert [sizes.read_tasks, sizes.tasks_in_flight] == [5, 11]
    assert sizes.store_bytes == 20 * GB
    assert set(sizes.reasons.values()) == {"as configured"}


def test_a_build_without_cuda_scores_on_the_cpu() -> None:
    assert choose_sizes(machine(has_cuda=False), work(), config()).device == "cpu"


def test_a_job_of_few_units_takes_few_scorers() -> None:
    few = work(rows=3000, units=3, largest_rows=1000)
    assert choose_sizes(machine(gpus=8), few, config()).scorers == 3


def test_with_little_memory_less_is_in_flight() -> None:
    little, some = machine(memory_bytes=16 * GB), work(model=SMALL)
    sizes = choose_sizes(little, some, config(read_in="tasks"))
    assert sizes.read_tasks < 13 and sizes.tasks_in_flight == 2
    assert sizes.store_bytes <= 0.4 * 16 * GB
    assert "memory holds" in sizes.reasons["max_read_tasks"]
    sizes = choose_sizes(little, some, config())
    assert sizes.read_tasks < 16
    assert sizes.read_tasks * UNITS_A_READER * some.unit_bytes < 16 * GB
    assert "memory holds" in sizes.reasons["max_read_tasks"]


def test_a_running_cluster_keeps_its_store() -> None:
    here = machine(store_bytes=5 * GB, shared_bytes=0)
    sizes = choose_sizes(here, work(), config(read_in="tasks", object_store_bytes=20 * GB))
    assert sizes.store_bytes == 5 * GB
    in_store = sizes.read_tasks + sizes.tasks_in_flight
    assert STORE_FACTOR * in_store * work().unit_bytes <= 5 * GB


def test_a_shared_memory_of_a_container_s_default_size_does_not_stop_a_job() -> None:
    sizes = choose_sizes(machine(shared_bytes=64 << 20), work(), config(read_in="tasks"))
    assert 4 * work().unit_bytes < sizes.store_bytes < 10 * GB


@pytest.mark.parametrize(("free", "batch"), [(139 * GB, 65536), (2 * GB, 32768), (None, 65536)])
def test_the_batch_shrinks_where_tables_fill_the_gpu(free: int | None, batch: int) -> None:
    tight = None if free is None else free + 2 * 540_000_000
    sizes = choose_sizes(machine(gpu_bytes=tight), work(), config(precision="fp16"))
    assert sizes.max_batch >= batch if batch < MAX_BATCH else sizes.max_batch == batch


@pytest.mark.parametrize(
    ("facts", "keys", "text"),
    [
        ({"gpus": 0}, {"device": "cuda"}, "0 GPUs"),
        ({"has_cuda": False}, {"device": "cuda"}, "no CUDA part"),
        ({"gpus": 2}, {"num_scorers": 3}, "num_scorers is 3, but there are 2 GPUs"),
        ({"gpus": 0, "cores": 2}, {"num_scorers": 111}, "num_scorers is 111, too many"),
        ({"gpu_bytes": 3 * GB}, {"precision": "fp32"}, "the tables take 2.0 GiB in fp32"),
        (
            {"store_bytes": GB // 3},
            TASKS,
            "the object store has only 317.9 MiB; set unit_rows lower",
        ),
        ({"store_bytes": GB, "nodes": 4}, TASKS, "has only 238.4 MiB"),
        ({"memory_bytes": GB}, TASKS, "can have only"),
        ({}, {**TASKS, "object_store_bytes": GB // 3}, "can have only 317.9 MiB"),
        ({"memory_bytes": GB}, {}, "only 953.7 MiB of memory are free; set unit_rows lower"),
    ],
)
def test_what_cannot_run_there_is_a_config_error(
    facts: dict[str, Any], keys: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        choose_sizes(machine(**facts), work(), config(**keys))


def test_the_estimate_names_the_slowest_stage() -> None:
    sizes = sizes_of(precision="fp16")
    expected = estimate(sizes, machine(), work(), "fp16")
    assert expected.limit == min(expected.rates, key=lambda stage: expected.rates[stage])
    assert 20 < expected.seconds < 60
    fewer = dataclasses.replace(sizes, read_tasks=1)
    slow = estimate(fewer, machine(), work(), "fp16")
    assert slow.limit == "reading and publishing" and slow.seconds > 5 * expected.seconds


@pytest.mark.parametrize("read_in", ["scorer", "tasks"])
def test_a_scorer_fits_on_one_machine_of_a_cluster(read_in: str) -> None:
    cluster = machine(cores=13, gpus=0, nodes=7, node_cores=2, store_bytes=8 * GB)
    small = work(rows=1000, largest_rows=10, units=100, model=SMALL)
    assert choose_sizes(cluster, small, config(read_in=read_in)).scorer_cpus <= 2


@pytest.mark.parametrize("read_in", ["scorer", "tasks"])
@pytest.mark.parametrize("beside", [0.0, 1.0, 2.0, 8.0])
def test_a_scorer_asks_for_no_more_cores_than_a_gpu_has_beside_it(
    read_in: str, beside: float
) -> None:
    cluster = machine(
        cores=200 + beside,
        gpuless_cores=200.0,
        node_cores=200.0,
        cores_a_gpu=beside,
        nodes=2,
        store_bytes=64 * GB,
    )
    sizes = choose_sizes(cluster, work(), config(read_in=read_in))
    assert sizes.scorer_cpus <= beside
    assert sizes.threads >= 1


@pytest.mark.parametrize("gpus", [0, 1])
def test_units_of_a_store_are_read_ahead_within_the_memory(gpus: int) -> None:
    here = machine(gpus=gpus)
    local = choose_sizes(here, work(), config())
    some = work(remote=True)
    sizes = choose_sizes(here, some, config())
    ahead = -(-(400 if gpus else 50) * 10**6 // some.unit_bytes)
    assert sizes.read_tasks == local.read_tasks + sizes.scorers * min(16, ahead)
    assert "while a store answers" in sizes.reasons["max_read_tasks"]
    short = choose_sizes(machine(gpus=gpus, memory_bytes=9 * some.unit_bytes), some, config())
    assert short.read_tasks * 3 * some.unit_bytes <= 9 * some.unit_bytes


def test_read_tasks_of_a_store_share_cores() -> None:
    tasks = config(read_in="tasks")
    assert choose_sizes(machine(), work(remote=True), tasks).read_cpus == 0.5
