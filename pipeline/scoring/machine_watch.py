"""MachineWatch: a thread of a scorer that samples its host and its GPU, cheaply.

A GPU is asked through NVML, which allocates nothing there. What cannot be measured is left out;
nothing here raises.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import threading
import time
from collections import deque
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline.sizing.machine import visible_gpus

INTERVAL_SECONDS = 2.0
MOST_SAMPLES = 512  # that wait for a call to take them


class MachineSample(BaseModel):
    """Figures of one host, or of one GPU of it, at one moment.

    `machine` names the host or the GPU; `time`: epoch seconds. Shares are from 0 to 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: str
    time: float
    busy: float | None = None  # share of the CPUs' time, or of the time in which a kernel ran
    memory_bytes: int | None = None  # in use
    memory_share: float | None = None
    watts: float | None = None


class MachineWatch:
    """Samples from its construction until it is closed or the process ends."""

    def __init__(self, on_gpu: bool, interval_s: float = INTERVAL_SECONDS) -> None:
        self._waiting: deque[MachineSample] = deque(maxlen=MOST_SAMPLES)
        self._on_gpu, self._interval_s = on_gpu, interval_s
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="machine watch", daemon=True).start()

    def take(self) -> list[MachineSample]:
        """What was sampled since the last call."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def close(self) -> None:
        """Sample no more."""
        self._closed.set()

    def _run(self) -> None:
        with contextlib.suppress(Exception):
            host = socket.gethostname()
            gpus = open_gpus() if self._on_gpu else None
            host_sample(host)  # the share of CPU time is that since the call before
            while not self._closed.wait(self._interval_s):
                self._waiting.append(host_sample(host))
                if gpus is not None:
                    self._waiting.extend(gpus.samples(host))


def host_sample(host: str) -> MachineSample:
    """The host now; its CPU time is that since the last call of this process."""
    import psutil

    memory = psutil.virtual_memory()
    return MachineSample(
        machine=host,
        time=time.time(),
        busy=psutil.cpu_percent() / 100,
        memory_bytes=memory.total - memory.available,
        memory_share=1 - memory.available / memory.total,
    )


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Utilisation(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in ("gpu", "memory")]


def open_gpus() -> Gpus | None:
    """The GPUs that this process may use; None without NVML."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return Gpus(nvml) if nvml.nvmlInit_v2() == 0 else None


class Gpus:
    """GPUs behind NVML's C interface."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        self._handles: dict[int, ctypes.c_void_p] = {}
        for index in visible_gpus(count.value):
            handle = ctypes.c_void_p()
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                self._handles[index] = handle

    def samples(self, host: str) -> list[MachineSample]:
        """One of each GPU, called `host/gpu0`."""
        return [self._sample(f"{host}/gpu{index}", self._handles[index]) for index in self._handles]

    def _sample(self, machine: str, handle: ctypes.c_void_p) -> MachineSample:
        nvml, found = self._nvml, dict[str, Any]()
        used, memory, power = _Utilisation(), _Memory(), ctypes.c_uint()
        if nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(used)) == 0:
            found["busy"] = used.gpu / 100
        if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0 and memory.total:
            found["memory_bytes"] = int(memory.used)
            found["memory_share"] = memory.used / memory.total
        if nvml.nvmlDeviceGetPowerUsage(handle, ctypes.byref(power)) == 0:
            found["watts"] = power.value / 1000
        return MachineSample(machine=machine, time=time.time(), **found)
