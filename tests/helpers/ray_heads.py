"""A Ray cluster as people start it, `ray start`, with token authentication, the Jobs API and
metrics, whose head and nodes are processes that a test may kill.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path

import psutil
from prometheus_client.parser import text_string_to_metric_families
from weed_server import free_ports

SECONDS = 150
RAY = str(Path(sys.executable).with_name("ray"))
TOKEN = "RAY_AUTH_TOKEN"
# A dead node is noticed after 5 s, as a slow one is not dead.
NOTICE = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "5"}


class RayHeads:
    """Context manager: a head without CPUs, which can be killed and started again on the same
    ports, and nodes of one CPU that join it.
    """

    def __init__(self, nodes: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rh"))  # sockets want a short path
        self.port, self.dashboard = free_ports(2)
        self.address = f"http://127.0.0.1:{self.dashboard}"
        self.token = secrets.token_hex(32)
        self.environment = (
            os.environ
            | NOTICE
            | {
                "RAY_AUTH_MODE": "token",
                TOKEN: self.token,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "RAY_ADDRESS": "",
                "RAY_metrics_report_interval_ms": "1000",
            }
        )
        self.metrics: dict[int, int] = {}  # pid of a `ray start` -> port
        self.sessions = 0
        self.count = nodes
        self.head: psutil.Process
        self.nodes: list[psutil.Process] = []

    def __enter__(self) -> RayHeads:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start the head and the nodes, and wait for the Jobs API and for all of them."""
        self.sessions += 1
        ports = [f"--port={self.port}", f"--dashboard-port={self.dashboard}"]
        session = f"--temp-dir={self.folder}/{self.sessions}"
        self.head = self._start("--head", *ports, session, "--num-cpus=0")
        self._wait_for_nodes(1)
        for number in range(self.count):  # one by one, as they choose ports
            self.add()
            self._wait_for_nodes(2 + number)

    def add(self) -> psutil.Process:
        """Start a node, which joins when it is ready."""
        node = self._start(f"--address=127.0.0.1:{self.port}", "--num-cpus=1")
        self.nodes.append(node)
        return node

    def kill(self, node: psutil.Process) -> None:
        """SIGKILL a node or the head: Ray's own processes, but no worker and no driver of them."""
        for process in [node, *node.children()]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if node in self.nodes:
            self.nodes.remove(node)

    def processes(self) -> list[psutil.Process]:
        """All that this cluster started, workers and drivers included."""
        found = []
        for process in psutil.process_iter():
            # Ray's own are in the session of a `ray start`, and some hide their environment.
            with contextlib.suppress(psutil.Error, OSError):
                ours = os.getsid(process.pid) in self.metrics
                if ours or process.environ().get(TOKEN) == self.token:
                    found.append(process)
        return found

    def drivers(self) -> list[psutil.Process]:
        """Drivers of submitted jobs, whose configuration is their standard input."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if "/dev/stdin" in process.cmdline():
                    found.append(process)
        return found

    def counted(self, node: psutil.Process | None = None, **labels: str) -> Counter[str]:
        """Sums of our metrics over all nodes and processes, or those of a node, by name, as
        Prometheus scrapes them; of those with these labels.
        """
        found: Counter[str] = Counter()
        for port in [self.metrics[node.pid]] if node else self.metrics.values():
            with contextlib.suppress(OSError):
                address = f"http://127.0.0.1:{port}/metrics"
                with urllib.request.urlopen(address, timeout=10) as answer:
                    text = answer.read().decode()
                for family in text_string_to_metric_families(text):
                    for sample in family.samples:
                        if "dpiframe" in sample.name and labels.items() <= sample.labels.items():
                            found[sample.name] += sample.value
        return found

    def _start(self, *options: str) -> psutil.Process:
        port, agent = free_ports(2)
        command = [RAY, "start", *options, "--node-ip-address=127.0.0.1", "--block"]
        command += ["--disable-usage-stats", f"--object-store-memory={100 << 20}"]
        command += [f"--metrics-export-port={port}", f"--dashboard-agent-listen-port={agent}"]
        with (self.folder / "ray.log").open("ab") as log:
            process = psutil.Popen(
                command, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )
        self.metrics[process.pid] = port
        return process

    def _wait_for_nodes(self, count: int) -> None:
        """Until so many nodes have agents, which take jobs and serve metrics."""
        until = time.monotonic() + SECONDS
        while len(self._agents()) < count:
            assert time.monotonic() < until, (self.folder / "ray.log").read_text()[-5000:]
            time.sleep(0.5)

    def _agents(self) -> list[int]:
        """Ports of metrics that answer, of nodes that were not killed."""
        found = []
        for node in [self.head, *self.nodes]:
            with contextlib.suppress(OSError):
                address = f"http://127.0.0.1:{self.metrics[node.pid]}/metrics"
                with urllib.request.urlopen(address, timeout=5):
                    found.append(self.metrics[node.pid])
        return found
