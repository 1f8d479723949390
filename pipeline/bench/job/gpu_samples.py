"""Samples of the GPUs, by nvidia-smi."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import datetime

from pydantic import BaseModel

SAMPLE_MS = 250
FIELDS = "timestamp,index,utilization.gpu,memory.used"


class GpuSample(BaseModel):
    """One GPU at one moment: percent of the time that a kernel ran, MiB in use."""

    time: float  # epoch seconds
    index: int
    busy: float
    memory: float


@contextlib.contextmanager
def watch_gpus() -> Iterator[list[GpuSample]]:
    """Sample all GPUs inside the block; the list is filled at its end, empty without nvidia-smi."""
    samples: list[GpuSample] = []
    program = shutil.which("nvidia-smi")
    if program is None:
        yield samples
        return
    command = [program, f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([*command, f"-lms={SAMPLE_MS}"], stdout=said, stderr=said)
        try:
            yield samples
        finally:
            process.terminate()
            process.wait()
            said.seek(0)
            samples += parse_samples(said.read())


def parse_samples(text: str) -> list[GpuSample]:
    """The samples in nvidia-smi's lines; what else it says is left out."""
    samples = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            stamp, index, busy, memory = (part.strip() for part in line.split(","))
            moment = datetime.strptime(stamp, "%Y/%m/%d %H:%M:%S.%f").timestamp()
            samples.append(
                GpuSample(time=moment, index=int(index), busy=float(busy), memory=float(memory))
            )
    return samples
