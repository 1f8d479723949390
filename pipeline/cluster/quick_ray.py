"""A local Ray that is ready in about a second: it starts, and waits for, only what a job needs.

Ray would also start a dashboard, an agent of it, one for runtime environments, a monitor of logs
and one that asks clouds for machines, wait for both agents and then for a worker a core.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

# Settings of Ray's C++ part, in place of its own where the comment tells those.
SYSTEM_CONFIG: dict[str, Any] = {
    # How often one process looks whether another takes connections: 10 times, each second.
    "raylet_client_connect_timeout_milliseconds": 20,
    "raylet_client_num_connect_attempts": 500,
    # Workers start with the raylet, not with its first driver.
    "enable_worker_prestart": True,
    # What workers import meanwhile: none.
    "preload_python_modules": ["pipeline.scoring.flow"],
    # An agent's standard input ends with the raylet.
    "enable_pipe_based_agent_to_parent_health_check": True,
}
# The raylet ends when one of its agents does: in place of each, a process that does nothing.
IDLE = [sys.executable, "-I", "-S", "-c", "open(0).read()"]


@contextlib.contextmanager
def quick_start(workers: int, logs: bool) -> Iterator[None]:
    """For a Ray that starts inside the block, with SYSTEM_CONFIG and so many workers at first.

    `logs`: those of workers come to the driver.
    """
    from ray._private import node, services, worker

    start_raylet, start_process = node.Node.start_raylet, services.start_ray_process

    def raylet(self: Any, *args: Any, **keys: Any) -> None:
        no_agents(self)
        start_raylet(self, *args, **keys)

    def process(command: list[str], *args: Any, **keys: Any) -> Any:
        return start_process(changed(command, workers), *args, **keys)

    unwanted = ["start_api_server", "start_monitor", *([] if logs else ["start_log_monitor"])]
    with contextlib.ExitStack() as stack:
        for name in unwanted:
            stack.enter_context(replaced(node.Node, name, nothing))
        stack.enter_context(replaced(node.Node, "start_raylet", raylet))
        stack.enter_context(replaced(services, "start_ray_process", process))
        stack.enter_context(replaced(worker, "_maybe_modify_runtime_env", no_environment))
        yield


def no_agents(node: Any) -> None:
    """Tell the raylet to come that its agents are there, but serve nothing (port -1)."""
    import ray

    raylet: Any = ray._raylet
    for name in (
        raylet.METRICS_AGENT_PORT_NAME,
        raylet.METRICS_EXPORT_PORT_NAME,
        raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME,
        raylet.RUNTIME_ENV_AGENT_PORT_NAME,
    ):
        raylet.persist_port(node.get_session_dir_path(), node.node_id, name, -1)


def changed(command: list[str], workers: int) -> list[str]:
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


def no_environment(*_: Any, **__: Any) -> dict[str, Any]:
    """Workers have the driver's environment; `uv run` or a Ray job would ask for an agent's."""
    return {}


def nothing(*_: Any, **__: Any) -> None:
    """The place of what is not to start."""


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside the block `owner.name` is `value`."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
