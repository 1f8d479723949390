"""Private names of Ray, all of them, each with a plain way that needs the public API alone.

The plain way is taken where a name is missing from this Ray, or fails: then a local Ray starts in
ten seconds instead of one, a Ray that `ray start` left on this machine has to be named, a stop
during the start waits for its end, and Ray may end or crash the process when it is shut down.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

# Settings of Ray's C++ part.
SYSTEM_CONFIG: dict[str, Any] = {
    # How often one process looks whether another takes connections: instead of 10 times, each 1 s.
    "raylet_client_connect_timeout_milliseconds": 20,
    "raylet_client_num_connect_attempts": 500,
    # Workers start with the raylet, instead of with its first driver, and import this meanwhile.
    "enable_worker_prestart": True,
    "preload_python_modules": ["pipeline.scoring.worker_start"],
    # An agent's standard input ends with the raylet.
    "enable_pipe_based_agent_to_parent_health_check": True,
}
# The raylet ends when one of its agents does: in place of each, a process that does nothing.
IDLE = [sys.executable, "-I", "-S", "-c", "open(0).read()"]
AGENT_PORTS = (
    "METRICS_AGENT_PORT_NAME",
    "METRICS_EXPORT_PORT_NAME",
    "DASHBOARD_AGENT_LISTEN_PORT_NAME",
    "RUNTIME_ENV_AGENT_PORT_NAME",
)
# Threads of Ray Data that outlive its iterators by a moment, and use Ray until they end.
DATA_THREADS = ("StreamingExecutor", "iter_threaded")
DATA_THREADS_SECONDS = 2.0
# Functions of Ray's C++ part. The threads that answer other processes finish what they have and
# end; new ones take their place.
DRAIN_ANSWERS = "_ZN3ray3rpc23DrainServerCallExecutorEv"
RESET_ANSWERS = "_ZN3ray3rpc23ResetServerCallExecutorEv"
# What is raised when a private name is missing, or does not take what is passed here.
MISFITS = (AttributeError, ImportError, TypeError)

# Why plain ways were taken; logged once Ray is connected, as stderr is redirected until then.
problems: list[str] = []


def private(name: str) -> Any:
    """The value of a private name, `module:attribute`. AttributeError or ImportError."""
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def start_local(workers: int, logs: bool, loopback: bool, **options: Any) -> None:
    """`ray.init` of a local Ray with so many workers at first; `logs`: those of workers come to
    the driver; `loopback`: no other machine reaches it.

    Only what a job needs is started and waited for. Ray alone would also start a dashboard, an
    agent of it, one for runtime environments, a monitor of logs and one that asks clouds for
    machines, and wait for both agents and then for a worker a core.
    """
    import ray

    try:
        with _only_what_a_job_needs(workers, logs), _on_loopback(loopback):
            ray.init(address="local", _system_config=SYSTEM_CONFIG, **options)
    except MISFITS as error:
        problems.append(f"Ray starts slowly in this version: {error}")
        shut_down()
        ray.init(address="local", **options)


def shut_down() -> None:
    """`ray.shutdown` that leaves this process alive, whatever its other threads do meanwhile.

    Ray's C++ part ends the process, with exit code 1 and without a message, when Python calls it
    after its end. Each object reference that is dropped calls it, also by a thread that Ray Data
    left behind and by the garbage collection, until Ray's Python part knows of that end. Here
    Python forgets the C++ part first.
    """
    import ray

    until = time.monotonic() + DATA_THREADS_SECONDS
    for thread in threading.enumerate():
        if thread.name.startswith(DATA_THREADS):
            thread.join(max(until - time.monotonic(), 0.0))
    with contextlib.suppress(*MISFITS):  # also where Ray is not connected
        worker = private("ray._private.worker:global_worker")
        disconnect = private("ray._private.worker:disconnect")
        core_worker = worker.core_worker
        end = core_worker.shutdown_driver
        disconnect()  # needs the C++ part
        del worker.core_worker
        with without_answers():
            end()
    ray.shutdown()


@contextlib.contextmanager
def without_answers() -> Iterator[None]:
    """Inside the block Ray's C++ part answers no other process; what it would is dropped.

    Its end answers those who wait for news of the driver's objects, and deletes the event loops.
    The thread that answers looks at one of these: where it is late, as on a busy machine, it reads
    freed memory, which crashes the process or keeps it from exiting, a moment after its end.
    """
    try:
        library = ctypes.CDLL(private("ray._raylet:__file__"))
        drain, reset = library[DRAIN_ANSWERS], library[RESET_ANSWERS]
    except (*MISFITS, OSError):
        yield
        return
    drain()
    try:
        yield
    finally:
        reset()


@contextlib.contextmanager
def _only_what_a_job_needs(workers: int, logs: bool) -> Iterator[None]:
    node = private("ray._private.node:Node")
    start_raylet = private("ray._private.node:Node.start_raylet")
    start_process = private("ray._private.services:start_ray_process")

    def raylet(self: Any, *args: Any, **keys: Any) -> None:
        _declare_agents(self)
        start_raylet(self, *args, **keys)

    def process(command: list[str], *args: Any, **keys: Any) -> Any:
        return start_process(_with_idle_agents(command, workers), *args, **keys)

    def no_environment(*_: Any, **__: Any) -> dict[str, Any]:
        """Workers have the driver's environment: that of `uv run` or a Ray job needs an agent."""
        return {}

    unwanted = ["start_api_server", "start_monitor", *([] if logs else ["start_log_monitor"])]
    services, worker = import_module("ray._private.services"), import_module("ray._private.worker")
    with contextlib.ExitStack() as stack:
        for name in unwanted:
            stack.enter_context(_replaced(node, name, _nothing))
        stack.enter_context(_replaced(node, "start_raylet", raylet))
        stack.enter_context(_replaced(services, "start_ray_process", process))
        stack.enter_context(_replaced(worker, "_maybe_modify_runtime_env", no_environment))
        yield


@contextlib.contextmanager
def _on_loopback(wanted: bool) -> Iterator[None]:
    """Ray's processes listen on 127.0.0.1 alone, as they do where it supports no clusters."""
    if wanted:
        private("ray._private.ray_constants:ENABLE_RAY_CLUSTER")
        constants = import_module("ray._private.ray_constants")
        with _replaced(constants, "ENABLE_RAY_CLUSTER", False):
            yield
    else:
        yield


def _declare_agents(node: Any) -> None:
    """Tell the raylet that will start that its agents are there, but serve nothing (port -1)."""
    persist_port = private("ray._raylet:persist_port")
    for name in AGENT_PORTS:
        port = private(f"ray._raylet:{name}")
        persist_port(node.get_session_dir_path(), node.node_id, port, -1)


def _with_idle_agents(command: list[str], workers: int) -> list[str]:
    """The command line of a raylet with idle agents and so many workers; others as they are."""
    idle = subprocess.list2cmdline(IDLE)
    others = {
        "--dashboard_agent_command": idle,
        "--runtime_env_agent_command": idle,
        "--num_prestart_python_workers": str(workers),
    }
    keys = [part.partition("=")[0] for part in command]
    return [
        f"{key}={others[key]}" if key in others else part
        for key, part in zip(keys, command, strict=True)
    ]


def address_file() -> Path:
    """Where `ray start` leaves the address of its cluster. By Ray's rules, as its import takes half
    a second.
    """
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return Path(folder, "ray", "ray_current_cluster")


def address_on_this_machine() -> str | None:
    """Address of the cluster that `ray start` left on this machine; None also if Ray hides it."""
    try:
        found: str | None = private("ray._private.services:find_bootstrap_address")(None)
    except Exception as error:
        problems.append(f"a running Ray is found by ray_address alone in this version: {error}")
        return None
    return found


@contextlib.contextmanager
def connecting_driver(before: Callable[[], None], after: Callable[[], None]) -> Iterator[None]:
    """For a `ray.init` inside the block: Ray's Python part sets no handler of SIGTERM, and `before`
    and `after` are called around the moment when its C++ part sets its own.

    The plain way: Ray sets both, and `before` and `after` are called around the block.
    """
    try:
        core_worker = private("ray._raylet:CoreWorker")
        private("ray._private.utils:set_sigterm_handler")
    except MISFITS:
        before()
        try:
            yield
        finally:
            after()
        return

    def made(*args: Any, **keys: Any) -> Any:
        before()
        worker = core_worker(*args, **keys)
        after()
        return worker

    utils, raylet = import_module("ray._private.utils"), import_module("ray._raylet")
    with (
        _replaced(utils, "set_sigterm_handler", _nothing),
        _replaced(raylet, "CoreWorker", made),
    ):
        yield


def maps_whole_blocks() -> bool:
    """Whether `map_whole_blocks` takes blocks of any rows also for actors on GPUs."""
    try:
        private("ray.data:Dataset.map_batches_internal")
    except MISFITS:
        return False
    return True


def map_whole_blocks(dataset: Any, work: type, **options: Any) -> Any:
    """`Dataset.map_batches` with a block a batch, also on GPUs.

    The plain way, on GPUs: a row a batch, as the public method wants a number of rows there, to
    which it would cut and join blocks.
    """
    if maps_whole_blocks():
        return dataset.map_batches_internal(work, batch_size=None, **options)
    return dataset.map_batches(work, batch_size=1 if options.get("num_gpus") else None, **options)


def _nothing(*_: Any, **__: Any) -> None:
    """Stands for what must not happen."""


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside the block `owner.name` is `value`."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
