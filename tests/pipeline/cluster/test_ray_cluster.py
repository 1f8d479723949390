"""Finding the cluster that a job runs on, and what it has."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from pipeline.cluster import ray_cluster
from pipeline.cluster.ray_cluster import running_cluster, session_folder
from pipeline.cluster.ray_private import IDLE, SYSTEM_CONFIG
from pipeline.sizing.machine import Machine, cluster_machine, local_machine


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "localhost:99999"])
def test_a_cluster_that_does_not_answer_is_told_at_once(address: str) -> None:
    with pytest.raises(ConnectionError, match="nothing answers there"):
        running_cluster(address)


def test_a_port_of_something_else_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        with pytest.raises(ConnectionError, match="or no Ray does"):
            running_cluster(f"{host}:{port}")


@pytest.mark.usefixtures("ray_session")
def test_the_port_of_a_cluster_is_one() -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    assert running_cluster(address) == address


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("wanted", [None, "auto"])
def test_the_driver_of_a_ray_job_takes_the_cluster_of_that_job(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None
) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    monkeypatch.setattr(ray_cluster, "address_on_this_machine", lambda: "127.0.0.1:1")
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert running_cluster(wanted) == address


def test_the_logs_of_a_failed_start_are_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with ray_cluster.quiet_start():
            os.write(2, b"rpc_client.h:153: Failed to connect")
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fail()

    assert capfd.readouterr().err == ""


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


LISTENING = """
import psutil, ray
from pathlib import Path
from pipeline.cluster.ray_cluster import quiet_start, start
with quiet_start():
    start(2, store_bytes=256 << 20, workers=1, verbose=False)
assert ray.get(ray.remote(lambda: 1).remote(), timeout=60) == 1
for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
    for connection in process.net_connections(kind="inet"):
        if connection.status == psutil.CONN_LISTEN:
            print(connection.laddr.ip)
print(ray._private.worker._global_node.get_session_dir_path())
"""


@pytest.mark.slow
def test_a_local_cluster_is_for_this_machine_and_user_alone() -> None:
    done = subprocess.run([sys.executable, "-c", LISTENING], capture_output=True, text=True)
    *addresses, session = done.stdout.split()
    assert addresses and {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}
    folder = Path(session).parents[1]
    assert (folder.stat().st_mode & 0o077, folder.stat().st_uid) == (0, os.getuid())


def test_the_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = session_folder()
    assert made is not None and Path(made).parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "getuid", lambda: 19)
    (tmp_path / "ray-19").symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="another user"):
        session_folder()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert session_folder() is None
