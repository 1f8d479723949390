"""What a job can use: this machine, or the cluster that it attaches to."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CGROUP = Path("/sys/fs/cgroup")
SHARED_MEMORY = "/dev/shm"  # where Ray keeps a store


@dataclass(frozen=True)
class Machine:
    """Bytes are free bytes. `nodes`: machines; `store_bytes`: of all running object stores, None
    if this job starts its own; `gpu_bytes`: of the fullest GPU, None if unknown; `has_cuda`: this
    build of the engine has a CUDA part; `gpuless_cores`: cores of machines without a GPU in a
    cluster; `node_cores`: cores of the largest machine, None if there is only one; `cores_a_gpu`:
    cores for each GPU on the machine with the fewest.
    """

    cores: float
    gpus: int
    memory_bytes: int
    shared_bytes: int
    has_cuda: bool
    gpu_bytes: int | None = None
    store_bytes: int | None = None
    nodes: int = 1
    gpuless_cores: float = 0.0
    node_cores: float | None = None
    cores_a_gpu: float | None = None


def look_for_gpus() -> None:
    """Begin to look for GPUs, which takes CUDA some time once, while the caller goes on."""
    from dpiframe_core import _core

    threading.Thread(target=_core.cuda_device_count, name="look-for-gpus", daemon=True).start()


def local_machine() -> Machine:
    """This machine, as far as this process may use it."""
    from dpiframe_core import _core

    return Machine(
        cores=usable_cores(),
        gpus=_core.cuda_device_count(),
        memory_bytes=free_memory(),
        shared_bytes=shutil.disk_usage(SHARED_MEMORY).free if Path(SHARED_MEMORY).exists() else 0,
        has_cuda=_core.build_info()["cuda"],
        gpu_bytes=gpu_free_bytes(),
    )


def cluster_machine() -> Machine:
    """The cluster that Ray is connected to; every object store counts as the smallest."""
    import ray

    from dpiframe_core import _core

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    total = ray.cluster_resources()
    least_store = min((node.get("object_store_memory", 0) for node in nodes), default=0)
    return Machine(
        cores=total.get("CPU", 0.0),
        gpus=int(total.get("GPU", 0.0)),
        memory_bytes=int(total.get("memory", 0)),
        shared_bytes=0,
        has_cuda=_core.build_info()["cuda"],
        store_bytes=int(least_store) * len(nodes),
        nodes=max(1, len(nodes)),
        gpuless_cores=sum(node.get("CPU", 0.0) for node in nodes if not node.get("GPU")),
        node_cores=max((node.get("CPU", 0.0) for node in nodes), default=0.0),
        cores_a_gpu=min(
            (node.get("CPU", 0.0) / node["GPU"] for node in nodes if node.get("GPU")), default=None
        ),
    )


def usable_cores() -> int:
    """Cores that this process may run on, by its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0))
    for text in (_text("cpu.max"), _text("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with contextlib.suppress(ValueError):  # no such file, or no quota
            quota, period = map(int, text.split())
            cores = min(cores, math.ceil(quota / period)) if quota > 0 else cores
    return max(1, cores)


def free_memory() -> int:
    """Bytes that this process may still allocate, here and in its container."""
    import psutil

    return int(min(psutil.virtual_memory().available, container_memory()))


def container_memory() -> int:
    """Bytes that the container may still allocate; without a limit, more than any machine has."""
    free = 1 << 62
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        stat = dict(
            line.split() for line in _text(f"{Path(limit).parent}/memory.stat").splitlines()
        )
        cache = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
        with contextlib.suppress(ValueError):
            free = min(free, int(_text(limit)) - int(_text(used)) + cache)
    return max(0, free)


def _text(*names: str) -> str:
    """The contents of control group files, separated by spaces; empty if one is missing."""
    with contextlib.suppress(OSError):
        return " ".join((CGROUP / name).read_text().strip() for name in names)
    return ""


def gpu_free_bytes() -> int | None:
    """Free memory of the GPU that has the least, by NVML, which allocates none there."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2():
        return None
    try:
        return min(_free_by_gpu(nvml), default=None)
    finally:
        nvml.nvmlShutdown()


def visible_gpus(count: int) -> list[int]:
    """Indices of the host's GPUs that this process may use; empty if they are named by UUID."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return list(range(count))
    entries = [entry.strip() for entry in named.split(",")]
    return [int(entry) for entry in entries] if all(map(str.isdecimal, entries)) else []


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def _free_by_gpu(nvml: Any) -> list[int]:
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    free = []
    for index in visible_gpus(count.value):
        handle, memory = ctypes.c_void_p(), _Memory()
        failed = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        if not failed and not nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            free.append(int(memory.free))
    return free
