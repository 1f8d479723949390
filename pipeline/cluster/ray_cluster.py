"""Ray: attach to the running cluster, or start a local one for the job alone."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.cluster.ray_private import (
    address_file,
    address_on_this_machine,
    problems,
    shut_down,
    start_local,
)
from pipeline.cluster.signals import kept_from_ray
from pipeline.errors import DpiframeError, ResumableError
from pipeline.redaction import redacted
from pipeline.sizing.machine import Machine, cluster_machine, local_machine
from pipeline.sizing.sizes import Sizes

CONNECT_SECONDS = 10.0
# A client's first bytes, with no settings; a server's first frame holds its settings (RFC 9113).
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
HTTP2_FRAME_HEAD, HTTP2_SETTINGS = 9, 4  # bytes, of which the fourth is the type
HELPERS = 3  # actors that Ray Data starts itself

log = logging.getLogger("dpiframe.job")


def import_meanwhile() -> None:
    """Begin to import Ray, which takes half a second, while the caller goes on.

    Ray Data, which takes a second more, is imported later, while workers start.
    """
    threading.Thread(target=import_module, args=("ray",), name="import-ray").start()


@contextlib.contextmanager
def ray_cluster(
    address: str | None,
    choose: Callable[[Machine], Sizes],
    verbose: bool,
    own_process: bool = False,
) -> Iterator[Sizes]:
    """Be connected to Ray inside the block; shut down afterwards only what was started here.

    With `own_process` that is done when the interpreter exits: all that the process has to tell
    and to tidy comes before, as Ray may hang then.

    `address`: of a running cluster, "local" to always start one, or None: RAY_ADDRESS, else the
    cluster that `ray start` left on this machine, else a local one. "auto" is that without the
    last, and what drivers of Ray jobs have: Ray names them theirs. `choose` settles the sizes for
    the running cluster, or for this machine before Ray starts. ResumableError if Ray does not.
    """
    import ray

    if ray.is_initialized():
        yield choose(cluster_machine())
        return
    sizes = None
    with contextlib.ExitStack() as stack:
        # Also of a start that a signal cut short.
        if own_process:
            atexit.register(shut_down)
        else:
            stack.callback(shut_down)
        try:
            with kept_from_ray(), contextlib.nullcontext() if verbose else quiet_start():
                found = running_cluster(address)
                if found is None:
                    machine = local_machine()
                    sizes = choose(machine)
                    start(machine.cores, sizes.store_bytes, first_workers(sizes), verbose)
                else:
                    ray.init(address=found, **_options(verbose))
        except DpiframeError:
            raise
        except Exception as error:  # Ray raises nothing less for a node that is slow to start
            where = address or os.environ.get("RAY_ADDRESS") or "a local cluster"
            hint = "" if verbose else " (--verbose shows what Ray logs)"
            reason = " ".join(str(error).split())
            text = redacted(f"Ray did not start or answer ({where}): {reason}{hint}")
            raise ResumableError(text) from error
        while problems:
            log.warning("%s", problems.pop())
        yield sizes or choose(cluster_machine())


def first_workers(sizes: Sizes) -> int:
    """Worker processes that a job needs at once."""
    readers = sizes.read_tasks if sizes.read_in == "tasks" else 0
    return sizes.scorers + readers + HELPERS


def start(
    cores: float, store_bytes: int, workers: int, verbose: bool, loopback: bool = True
) -> None:
    """Start a local cluster, with so many workers at first, and connect to it.

    `loopback`: it listens on this machine's own address alone, and nobody attaches to it.
    """
    # A secret of this cluster's own: Ray would keep one in the home folder, shared by all.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    # Workers keep the memory of freed columns for the next unit: returning pages to the system and
    # faulting them in again may take threads as long as reading.
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")
    start_local(
        workers,
        logs=verbose,
        loopback=loopback,
        _temp_dir=session_folder(),
        num_cpus=int(cores),
        object_store_memory=store_bytes,
        **_options(verbose),
    )


def session_folder() -> str | None:
    """Where a local Ray keeps sockets and logs: no other user can open it, as they can Ray's own.

    None where RAY_TMPDIR says where. Raises OSError when the folder cannot be made, or is not ours.
    """
    if os.environ.get("RAY_TMPDIR"):
        return None
    folder = Path(tempfile.gettempdir(), f"ray-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user; set RAY_TMPDIR to a folder")
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)
    return str(folder / "ray")  # a folder of its own, as Ray opens it to all


def _options(verbose: bool) -> dict[str, Any]:
    return {
        "include_dashboard": False,
        "log_to_driver": verbose,
        "logging_level": logging.INFO if verbose else logging.ERROR,
    }


def running_cluster(address: str | None) -> str | None:
    """Address of the cluster to attach to, None to start a local one."""
    wanted = address
    if address in (None, "auto"):
        wanted = os.environ.get("RAY_ADDRESS") or address
    if wanted == "local":
        return None
    if wanted and wanted != "auto":
        if "://" not in wanted and not listens(wanted):
            raise ConnectionError(
                "nothing answers there, or no Ray does; start that cluster, or set ray_address to "
                "local"
            )
        return wanted
    found = address_on_this_machine()
    if found is not None and not listens(found):  # a cluster that died leaves its address
        found = None
    if found is None and wanted == "auto":
        raise ConnectionError("no running Ray cluster on this machine")
    return found


def is_running() -> bool:
    """Whether there is a cluster that `ray_address: null` attaches to. Without the import of Ray,
    where there is none.
    """
    named = os.environ.get("RAY_ADDRESS") or address_file().exists()
    return bool(named) and running_cluster(None) is not None


def listens(address: str) -> bool:
    """Whether gRPC answers at host:port; Ray itself would try for minutes, and print that.

    Where Ray is told to use TLS, that host:port takes a connection.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return True
            connection.sendall(HTTP2_PREFACE)
            head = connection.recv(HTTP2_FRAME_HEAD, socket.MSG_WAITALL)
            return len(head) == HTTP2_FRAME_HEAD and head[3] == HTTP2_SETTINGS
    except (OSError, ValueError, OverflowError):
        return False


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Keep Ray's notices out of a job's log, also those of its C++ part, while it starts."""
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    sys.stderr.flush()
    before = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)


def quiet_data() -> None:
    """Keep the notices of Ray Data out of a job's log."""
    import ray.data  # noqa: F401  # its import sets the loggers up

    for handler in logging.getLogger("ray.data").handlers:
        if type(handler).__name__ == "PlainRayHandler":  # its own one to the terminal
            handler.setLevel(logging.CRITICAL)  # errors come as exceptions, too
