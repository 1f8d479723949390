"""Several Ray nodes on this machine, each with a raylet, an object store and workers of its own."""

from __future__ import annotations

import os
import secrets
from typing import Any

import psutil

# Ray notices a dead node after 15 s by default; these are read by its C++ part from here.
NOTICE = {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "3"}
HEAD_CPUS, NODE_CPUS = 1, 2


class RayNodes:
    """Context manager: a head, to which drivers connect, and other nodes, which can be killed."""

    def __init__(self, nodes: int, **head: Any) -> None:
        """`head`: more arguments of the head node, such as its object_store_memory."""
        from ray.cluster_utils import Cluster

        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        before = {name: os.environ.get(name) for name in NOTICE}
        os.environ.update({name: os.environ.get(name, value) for name, value in NOTICE.items()})
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": HEAD_CPUS} | head)
        self.address = str(self.cluster.address)
        for _ in range(nodes):
            self.add()
        for name, value in before.items():
            if value is None:
                del os.environ[name]

    def __enter__(self) -> RayNodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.shutdown()

    def add(self) -> None:
        """Start one more node and wait until it has joined."""
        self.cluster.add_node(num_cpus=NODE_CPUS)

    def raylets(self) -> list[psutil.Process]:
        """The raylets of the nodes that can be killed; the workers of a node are its children."""
        nodes = self.cluster.worker_nodes
        return [psutil.Process(node.all_processes["raylet"][0].process.pid) for node in nodes]

    def kill(self, raylet: psutil.Process) -> None:
        """SIGKILL a node's raylet and whatever else it runs; its workers find out themselves."""
        (node,) = [
            node
            for node in self.cluster.worker_nodes
            if node.all_processes["raylet"][0].process.pid == raylet.pid
        ]
        self.cluster.remove_node(node, allow_graceful=False)
