"""Finding the cluster that a job runs on, and what it has."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from pipeline.cluster.ray_cluster import running_cluster
from pipeline.cluster.ray_private import IDLE, SYSTEM_CONFIG
from pipeline.sizing.machine import Machine, cluster_machine, local_machine


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "localhost:99999"])
def test_a_cluster_that_does_not_answer_is_told_at_once(address: str) -> None:
    with pytest.raises(ConnectionError, match="nothing answers there"):
        running_cluster(address)


def check(machine: Machine) -> None:
    assert machine.cores >= 1 and machine.gpus >= 0
    assert 1 << 28 < machine.memory_bytes < 1 << 50


def test_the_facts_of_this_machine() -> None:
    machine = local_machine()
    check(machine)
    assert machine.store_bytes is None


@pytest.mark.usefixtures("ray_session")
def test_the_facts_of_a_running_cluster() -> None:
    machine = cluster_machine()
    check(machine)
    assert machine.nodes == 1
    assert machine.store_bytes == 256 << 20
    assert machine.cores == local_machine().cores


@pytest.mark.usefixtures("ray_session")
def test_a_local_cluster_starts_only_what_a_job_needs() -> None:
    (raylet,) = [p for p in psutil.Process().children() if p.name() == "raylet"]
    servers = {process.name() for process in psutil.Process().children()}
    assert {"raylet", "gcs_server"} <= servers <= {"raylet", "gcs_server", "python"}
    agents = [process.cmdline() for process in raylet.children() if "-S" in process.cmdline()]
    assert [command[1:] for command in agents] == [IDLE[1:]] * 2


@pytest.mark.usefixtures("ray_session")
def test_first_workers_import_what_they_need_before_they_are_asked() -> None:
    import ray

    (wanted,) = SYSTEM_CONFIG["preload_python_modules"]
    assert ray.get(ray.remote(lambda: wanted in sys.modules).remote())


@pytest.mark.usefixtures("ray_session")
def test_workers_of_a_local_cluster_keep_the_memory_of_their_columns() -> None:
    import os

    import ray

    delay = ray.remote(lambda: os.environ.get("MIMALLOC_PURGE_DELAY"))
    assert ray.get(delay.remote()) == "-1"


IN_A_RAY_JOB = """
import os, ray
from pipeline.cluster.ray_cluster import quiet_start, start
os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"] = '{"runtime_env": {"env_vars": {"A": "1"}}}'
with quiet_start():
    start(2, store_bytes=256 << 20, workers=1, verbose=False)
print(ray.get(ray.remote(lambda: "worked").remote(), timeout=60))
"""


@pytest.mark.slow
def test_a_local_cluster_of_a_ray_job_needs_no_runtime_environment() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_RAY_JOB], capture_output=True, text=True)
    assert done.stdout == "worked\n", done.stderr
