"""A Ray cluster as people start it, `ray start`, with token authentication and the Jobs API, whose
head and nodes are processes that a test may kill.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

SECONDS = 150
RAY = str(Path(sys.executable).with_name("ray"))
DRIVER = "score /dev/stdin"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RayHeads:
    """Context manager: a head, which can be killed and started again, and nodes that join it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rh"))  # sockets want a short path
        self.port, self.dashboard, self.metrics = free_port(), free_port(), free_port()
        self.address = f"http://127.0.0.1:{self.dashboard}"
        self.environment = os.environ | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_ADDRESS": "",
            "RAY_metrics_report_interval_ms": "1000",
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> RayHeads:
        self.start_head()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            self.kill(process)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_head(self) -> subprocess.Popen[bytes]:
        """Start the head and wait for its Jobs API."""
        ports = [f"--port={self.port}", f"--dashboard-port={self.dashboard}"]
        ports.append(f"--metrics-export-port={self.metrics}")
        session = f"--temp-dir={self.folder}/{len(self.processes)}"
        head = self._start("--head", *ports, session, "--num-cpus=2")
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.dashboard), 1),
            ):
                time.sleep(2)  # its agent comes after it
                return head
            time.sleep(0.5)
        raise AssertionError((self.folder / "ray.log").read_text())

    def add(self) -> subprocess.Popen[bytes]:
        """Start a node, which joins when it is ready."""
        return self._start(f"--address=127.0.0.1:{self.port}", "--num-cpus=2")

    def _start(self, *options: str) -> subprocess.Popen[bytes]:
        command = [RAY, "start", *options, "--node-ip-address=127.0.0.1", "--block"]
        command += ["--disable-usage-stats", f"--object-store-memory={100 << 20}"]
        with (self.folder / "ray.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )
        self.processes.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL a head or a node with all that it started."""
        with contextlib.suppress(psutil.Error):
            whole = [psutil.Process(process.pid)]
            whole += whole[0].children(recursive=True)
            for each in whole:
                with contextlib.suppress(psutil.Error):
                    each.kill()
        process.wait(30)


def drivers() -> list[psutil.Process]:
    """Processes that are drivers of jobs that `deploy ray-job` submitted."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if DRIVER in " ".join(process.cmdline()):
                found.append(process)
    return found
