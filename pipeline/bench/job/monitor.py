"""Runs a command and samples its resources: memory and CPU by process, GPUs, the object store.

Processes are told apart by the titles that Ray gives them. Private memory is resident memory
minus shared memory, so the object store, which every worker maps, is counted once, separately.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

import psutil
from pydantic import BaseModel

from pipeline.bench.job.case import MEMORY_FOLDER
from pipeline.errors import DpiframeError

SAMPLE_SECONDS = 0.5
STOP_SECONDS = 15.0
GPU_SAMPLE_MS = 250
GPU_QUERY = "timestamp,index,utilization.gpu,memory.used"
LOG_LINES = 15

Kind = Literal["driver", "helpers", "ray", "readers", "scorers"]
KINDS: dict[Kind, str] = {
    "driver": "driver",
    "readers": "read tasks",
    "scorers": "scorers",
    "ray": "Ray itself",
    "helpers": "helpers (tracking)",
}


class Sample(BaseModel):
    """The processes at one moment, by kind. `cpu_s`: CPU time so far, of dead processes too.

    `stolen_s`: steal time so far, which this virtual machine's host gave to other guests.
    """

    time: float  # epoch seconds
    processes: dict[Kind, int]
    private_bytes: dict[Kind, int]
    cpu_s: dict[Kind, float]
    store_bytes: int  # of shared memory, files of the benchmark left out
    stolen_s: float = 0.0


class GpuSample(BaseModel):
    """One GPU at one moment: percent of the time that a kernel ran, MiB in use."""

    time: float  # epoch seconds
    index: int
    busy: float
    memory: float


class Watched(BaseModel):
    """A command that ended well; times are epoch seconds."""

    began: float
    ended: float
    samples: list[Sample]
    gpus: list[GpuSample]  # none without nvidia-smi


def run_watched(
    command: Sequence[str],
    env: Mapping[str, str],
    cores: set[int],
    log: Path,
    files: Path,
) -> Watched:
    """Run a command on some cores; its output goes into `log`; `files` is its output folder.

    Raises DpiframeError with the end of the log when it fails.
    """
    with log.open("wb") as said, watch_gpus() as gpus:
        store = SharedMemory(files)
        began = time.time()
        with _pinned(cores):
            process = subprocess.Popen(command, stdout=said, stderr=said, env=dict(env))
        try:
            samples = _watch(process, store)
        finally:
            _stop(process)
        ended = time.time()
    if process.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
        raise DpiframeError(f"{' '.join(command[:6])} ended with {process.returncode}:\n{tail}")
    return Watched(began=began, ended=ended, samples=samples, gpus=gpus)


def environment() -> dict[str, str]:
    """The environment of a child process, in which this project's packages can be imported."""
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class SharedMemory:
    """Size of Ray's object store: growth of /dev/shm since construction, without `files`."""

    def __init__(self, files: Path) -> None:
        self.files = files if MEMORY_FOLDER in files.absolute().parents else None
        self.before = self._used()

    def used(self) -> int:
        """Bytes now, at least 0."""
        return max(0, self._used() - self.before)

    def _used(self) -> int:
        stat = os.statvfs(MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else "/")
        used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
        return used - (folder_bytes(self.files) if self.files else 0)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a folder tree; files that vanish meanwhile are skipped."""
    total = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    total += folder_bytes(Path(entry.path))
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def _watch(process: subprocess.Popen[bytes], store: SharedMemory) -> list[Sample]:
    watch = ProcessWatch(process.pid)
    samples = []
    while process.poll() is None:
        samples.append(watch.sample(store.used()))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SAMPLE_SECONDS)
    return samples


class ProcessWatch:
    """A process and all that descend from it."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.kinds: dict[int, Kind] = {}
        self.cpu_s: dict[int, float] = {}

    def sample(self, store_bytes: int) -> Sample:
        """The state of now."""
        processes: dict[Kind, int] = defaultdict(int)
        private: dict[Kind, int] = defaultdict(int)
        for process in self._family():
            with contextlib.suppress(psutil.Error), process.oneshot():
                memory, cpu = process.memory_info(), process.cpu_times()
                kind = self._kind(process)
                self.cpu_s[process.pid] = cpu.user + cpu.system
                processes[kind] += 1
                private[kind] += max(0, memory.rss - memory.shared)
        used: dict[Kind, float] = defaultdict(float)
        for pid, seconds in self.cpu_s.items():
            used[self.kinds[pid]] += seconds
        return Sample(
            time=time.time(),
            processes=processes,
            private_bytes=private,
            cpu_s=used,
            store_bytes=store_bytes,
            stolen_s=getattr(psutil.cpu_times(), "steal", 0.0),
        )

    def _family(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self.root)
            return [root, *root.children(recursive=True)]
        except psutil.Error:
            return []

    def _kind(self, process: psutil.Process) -> Kind:
        if process.pid == self.root:
            kind: Kind = "driver"
        else:
            kind = kind_of(" ".join(process.cmdline()), self.kinds.get(process.pid))
        self.kinds[process.pid] = kind
        return kind


def kind_of(command: str, before: Kind | None) -> Kind:
    """The kind of a child of the driver, by its command line or by the title that Ray gave it."""
    if command.startswith("ray::"):
        if "Scorer" in command:
            return "scorers"
        if "IDLE" in command:  # a worker for tasks; actors keep their names
            return before or "readers"
        return "readers" if command.startswith(("ray::Read", "ray::Write")) else "ray"
    return "ray" if "/ray/" in command else "helpers"


@contextlib.contextmanager
def _pinned(cores: set[int]) -> Iterator[None]:
    """Processes that are started inside the block run on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that still runs because this one was interrupted."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def watch_gpus() -> Iterator[list[GpuSample]]:
    """Sample all GPUs inside the block; the list is filled at its end, empty without nvidia-smi."""
    samples: list[GpuSample] = []
    program = shutil.which("nvidia-smi")
    if program is None:
        yield samples
        return
    command = [program, f"--query-gpu={GPU_QUERY}", "--format=csv,noheader,nounits"]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([*command, f"-lms={GPU_SAMPLE_MS}"], stdout=said, stderr=said)
        try:
            yield samples
        finally:
            process.terminate()
            process.wait()
            said.seek(0)
            samples += parse_samples(said.read())


def parse_samples(text: str) -> list[GpuSample]:
    """The samples in nvidia-smi's output; other lines are skipped."""
    samples = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            stamp, index, busy, memory = (part.strip() for part in line.split(","))
            moment = datetime.strptime(stamp, "%Y/%m/%d %H:%M:%S.%f").timestamp()
            samples.append(
                GpuSample(time=moment, index=int(index), busy=float(busy), memory=float(memory))
            )
    return samples


class ProcessUsage(BaseModel):
    """All processes of a kind: their largest number, private memory, and busy cores."""

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
    stolen_cores: float | None = None  # mean steal in the steady window
    gpus: list[GpuUsage] | None
    samples: list[Sample]

    def peak_bytes(self) -> int:
        """Peak private memory of all processes together."""
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
