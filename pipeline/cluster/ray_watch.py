"""Watches Ray's own processes: when they are gone, waiting for Ray would never end.

Ray itself ends a driver whose raylet or GCS died, but with exit code 1, without a message, and up
to a minute later.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

LOOK_SECONDS = 0.5
# A raylet does not come back, a GCS may be started again; Ray gives up after 60 seconds.
RAYLET_SECONDS, GCS_SECONDS = 1.0, 20.0
ANSWER_SECONDS = 5.0


class RayWatch:
    """Context manager over a connected Ray; its thread calls `lost` with a reason, once."""

    def __init__(self, lost: Callable[[str], None]) -> None:
        import ray

        context = ray.get_runtime_context()
        (node,) = [node for node in ray.nodes() if node["NodeID"] == context.get_node_id()]
        host, _, port = str(context.gcs_address).rpartition(":")
        self._lost = lost
        self._gcs = (host.strip("[]"), int(port))
        self._raylet = str(node["RayletSocketName"])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ray-watch", daemon=True)

    def __enter__(self) -> RayWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(1.0)

    def _watch(self) -> None:
        raylet_seen = gcs_seen = time.monotonic()
        while not self._stop.wait(LOOK_SECONDS):
            if raylet_answers(self._raylet):
                raylet_seen = time.monotonic()
            if gcs_answers(self._gcs):
                gcs_seen = time.monotonic()
            now = time.monotonic()
            if now - raylet_seen > RAYLET_SECONDS:
                self._lost("the loss of Ray: the raylet of this host is gone")
            elif now - gcs_seen > GCS_SECONDS:
                self._lost(f"the loss of Ray: its GCS has not answered for {GCS_SECONDS:g} s")
            else:
                continue
            return


def raylet_answers(path: str) -> bool:
    """Whether a process listens at a raylet's socket; a busy one does."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.settimeout(ANSWER_SECONDS)
        try:
            probe.connect(path)
        except (TimeoutError, BlockingIOError):  # its queue is full: it lives
            return True
        except OSError:
            return False
    return True


def gcs_answers(address: tuple[str, int]) -> bool:
    """Whether a GCS takes connections at host and port."""
    try:
        with socket.create_connection(address, ANSWER_SECONDS):
            return True
    except OSError:
        return False
