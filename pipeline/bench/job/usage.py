"""What a run used: memory and cores by kind of process, the object store, the GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pydantic import BaseModel

from pipeline.bench.job.gpu_samples import GpuSample
from pipeline.bench.job.watch import Kind, Sample, Watched

KINDS: dict[Kind, str] = {
    "driver": "driver",
    "readers": "read tasks",
    "scorers": "scorers",
    "ray": "Ray itself",
    "helpers": "helpers (tracking)",
}


class ProcessUsage(BaseModel):
    """All processes of a kind: how many at most, their private memory, the cores they keep busy."""

    processes: int
    peak_bytes: int
    steady_cores: float | None  # None: no two samples in the steady window
    cpu_s: float


class GpuUsage(BaseModel):
    """One GPU; busy is the share of the steady window in which a kernel ran, as nvidia-smi says."""

    index: int
    peak_memory_mib: float
    busy: float | None


class Usage(BaseModel):
    """Peaks over a run, by samples half a second apart. The GPUs are None without nvidia-smi."""

    processes: dict[Kind, ProcessUsage]
    peak_store_bytes: int
    stolen_cores: float | None = None  # of this machine, which its host gave to others, steady
    gpus: list[GpuUsage] | None
    samples: list[Sample]

    def peak_bytes(self) -> int:
        """Private memory of all processes at the worst moment."""
        return max((sum(sample.private_bytes.values()) for sample in self.samples), default=0)

    def steady_cores(self) -> float | None:
        """Cores that all processes together kept busy in the steady window."""
        known = [p.steady_cores for p in self.processes.values() if p.steady_cores is not None]
        return sum(known) if known else None


def usage(watched: Watched, window: tuple[float, float]) -> Usage:
    """The usage of a watched run; `window` is its steady time, epoch seconds."""
    samples = watched.samples
    return Usage(
        processes={
            kind: _processes(kind, samples, window)
            for kind in KINDS
            if any(kind in sample.processes for sample in samples)
        },
        stolen_cores=_stolen(samples, window),
        peak_store_bytes=max((sample.store_bytes for sample in samples), default=0),
        gpus=_gpus(watched.gpus, window) or None,
        samples=samples,
    )


def _processes(kind: Kind, samples: Sequence[Sample], window: tuple[float, float]) -> ProcessUsage:
    inside = [sample for sample in samples if window[0] <= sample.time <= window[1]]
    cores = None
    if len(inside) >= 2:
        used = inside[-1].cpu_s.get(kind, 0.0) - inside[0].cpu_s.get(kind, 0.0)
        cores = max(0.0, used) / (inside[-1].time - inside[0].time)
    return ProcessUsage(
        processes=max(sample.processes.get(kind, 0) for sample in samples),
        peak_bytes=max(sample.private_bytes.get(kind, 0) for sample in samples),
        steady_cores=cores,
        cpu_s=samples[-1].cpu_s.get(kind, 0.0),
    )


def _stolen(samples: Sequence[Sample], window: tuple[float, float]) -> float | None:
    inside = [sample for sample in samples if window[0] <= sample.time <= window[1]]
    if len(inside) < 2:
        return None
    return (inside[-1].stolen_s - inside[0].stolen_s) / (inside[-1].time - inside[0].time)


def _gpus(samples: Sequence[GpuSample], window: tuple[float, float]) -> list[GpuUsage]:
    by_index: dict[int, list[GpuSample]] = defaultdict(list)
    for sample in samples:
        by_index[sample.index].append(sample)
    found = []
    for index, own in sorted(by_index.items()):
        busy = [s.busy / 100 for s in own if window[0] <= s.time <= window[1]]
        mean = sum(busy) / len(busy) if busy else None
        peak = max(sample.memory for sample in own)
        found.append(GpuUsage(index=index, peak_memory_mib=peak, busy=mean))
    return found
