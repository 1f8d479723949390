"""Ray: attach to the running cluster or start a local one, and share its CPUs and GPUs out."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pipeline.config import JobConfig
from pipeline.errors import ConfigError, ResumableError
from pipeline.scoring.signals import StopRequestedError

MIB = 1 << 20
# The store must hold the units being read, waiting and being scored at one time.
UNITS_IN_STORE = 12
CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Shares:
    """What one scorer and one read task take of the cluster. `threads` is for the CPU engine."""

    scorers: int
    scorer_cpus: float
    scorer_gpus: int
    read_cpus: float
    threads: int
    device: Literal["cpu", "cuda"]


@contextlib.contextmanager
def ray_cluster(address: str | None, unit_bytes: int, verbose: bool) -> Iterator[None]:
    """Be connected to Ray inside the block; shut down afterwards only what was started here.

    `address`: of a running cluster, "local" to always start one, or None: RAY_ADDRESS, else the
    cluster that `ray start` left on this machine, else a local one. ResumableError if that fails.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    try:
        with contextlib.nullcontext() if verbose else quiet_start():
            connect(address, unit_bytes, verbose)
    except SystemExit:  # Ray's own answer to SIGTERM while it starts
        raise StopRequestedError("SIGTERM") from None
    except (ConnectionError, RuntimeError, OSError, ray.exceptions.RayError) as error:
        where = address or os.environ.get("RAY_ADDRESS") or "a local cluster"
        raise ResumableError(f"Ray did not start or answer ({where}): {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def connect(address: str | None, unit_bytes: int, verbose: bool) -> None:
    """Attach to the cluster that `address` means, or start a local one."""
    import ray

    options = {
        "include_dashboard": False,
        "log_to_driver": verbose,
        "logging_level": logging.INFO if verbose else logging.ERROR,
    }
    found = running_cluster(address)
    if found is not None:
        ray.init(address=found, **options)
        return
    # A secret of this cluster's own: Ray would keep one in the home folder, shared by all.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray.init(address="local", object_store_memory=store_bytes(unit_bytes), **options)


def running_cluster(address: str | None) -> str | None:
    """Address of the cluster to attach to, None to start a local one."""
    from ray._private import services

    wanted = address or os.environ.get("RAY_ADDRESS")
    if wanted == "local":
        return None
    if wanted and wanted != "auto":
        if "://" not in wanted and not listens(wanted):
            raise ConnectionError(
                "nothing answers there; start that cluster, or set ray_address to local"
            )
        return wanted
    found: str | None = services.find_bootstrap_address(None)
    if found is not None and not listens(found):  # a cluster that died leaves its address
        found = None
    if found is None and wanted == "auto":
        raise ConnectionError("no running Ray cluster on this machine")
    return found


def listens(address: str) -> bool:
    """Whether host:port takes a connection; Ray itself would try for minutes, and print of it."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS):
            return True
    except (OSError, ValueError, OverflowError):
        return False


def store_bytes(unit_bytes: int) -> int:
    """Object store of a local cluster: a dozen units, 256 MiB to 30% of the free memory."""
    import psutil

    limit = int(psutil.virtual_memory().available * 0.3)
    return max(256 * MIB, min(UNITS_IN_STORE * unit_bytes, limit))


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Keep Ray's notices out of a job's log, also those that its C++ part writes while it starts.

    What was kept back appears after all when the start fails.
    """
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray.data  # noqa: F401  # its import sets the loggers up

    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    for handler in logging.getLogger("ray.data").handlers:
        if type(handler).__name__ == "PlainRayHandler":  # its own one to the terminal
            handler.setLevel(logging.CRITICAL)  # errors come as exceptions, too
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(before, kept.read())
            raise
        finally:
            os.dup2(before, 2)
            os.close(before)


def share_out(config: JobConfig, cpus: float, gpus: float, has_cuda: bool) -> Shares:
    """Decide scorers and shares for a cluster with that many CPUs and GPUs.

    With GPUs: one scorer a GPU. Without: one scorer for each 8 CPUs, scorers together on half of
    the CPUs, so that reading never starves. The shares of a scorer and of a read task always
    differ: Ray fuses alike stages into one, and reading would no longer run beside scoring.
    """
    wants_gpu = config.device == "cuda" or (config.device == "auto" and gpus >= 1 and has_cuda)
    if wants_gpu and (gpus < 1 or not has_cuda):
        raise ConfigError(
            f"device is {config.device}, but the cluster has {gpus:g} GPUs"
            f"{'' if has_cuda else ' and this build of the engine has no CUDA part'}; "
            "set device to cpu or auto"
        )
    if wants_gpu:
        scorers = config.num_scorers or int(gpus)
        if scorers > gpus:
            raise ConfigError(f"num_scorers is {scorers}, but the cluster has {gpus:g} GPUs")
        scorer_cpus = 1.0 if cpus >= 2 * scorers else 0.0
        return Shares(scorers, scorer_cpus, 1, min(1.0, cpus / 2), config.threads or 1, "cuda")
    scorers = config.num_scorers or max(1, int(cpus // 8))
    read_cpus = 1.0 if cpus >= 4 else 0.5
    if scorers * 0.1 + read_cpus > cpus:
        raise ConfigError(
            f"num_scorers is {scorers}, too many for the {cpus:g} CPUs of the cluster"
        )
    scorer_cpus = max(0.1, math.floor(cpus / 2 / scorers * 10) / 10)
    if scorer_cpus == read_cpus:
        scorer_cpus -= 0.1
    threads = config.threads or max(1, int(cpus // scorers))
    return Shares(scorers, round(scorer_cpus, 1), 0, read_cpus, threads, "cpu")
