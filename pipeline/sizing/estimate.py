"""How long a job will take, about: a simple model of measured rates, for `--dry-run` alone.

    seconds = START_S + rows / (rate of the slowest stage) + one unit read and scored by itself

All stages run at one time; without a GPU they share the cores.
"""

from __future__ import annotations

from typing import NamedTuple

from pipeline.sizing.machine import Machine
from pipeline.sizing.sizes import Sizes, Work
from pipeline.sizing.unit_groups import GROUP_ROWS

# From the command to the first unit at a scorer: Python, Ray, actors, engine, CUDA graphs.
START_S = {"cpu": 6.0, "cuda": 7.0}
LOCAL_START_S = {"cpu": 2.0, "cuda": 3.0}  # without Ray
# A core decodes parquet (39 columns, zstd) at this many bytes a second of decoded columns: one of
# 16 that do so at a time on the machine of docs/gpu, about the same on one of 2 of an AMD EPYC.
READ_BYTES_S = {"encoded": 9.0e8, "raw": 2.7e8}  # raw: 26 of the columns are texts to be hashed
# A core reads pages of so many decoded bytes a second for the GPU, which decodes at this rate.
PAGE_BYTES_S = {"encoded": 5.0e9, "raw": 1.0e9}  # raw: dictionaries are encoded
GPU_UNPACK_BYTES_S = 6.0e10
# An H200 (docs/gpu/nvidia_h200.md): rows of tables fetched, operations in products.
GPU_LOOKUPS_S = 2.5e10
GPU_OPERATIONS_S = {"fp32": 1.5e14, "tf32": 2.8e14, "fp16": 4.6e14, "bf16": 4.6e14}
# One core of an AMD EPYC, oneDNN in float32.
CPU_LOOKUPS_S = 2.0e7
CPU_OPERATIONS_S = 2.5e10
# One core writes and hashes parts: a key of 8 bytes and a score, snappy.
PUBLISH_S_A_ROW = 2.5e-8
# What the driver and Ray take for a call of a scorer.
DRIVER_S_A_CALL = 0.02


class Estimate(NamedTuple):
    """Seconds from the command to `_SUCCESS`; `rates`: rows a second of each stage at its best."""

    seconds: float
    rates: dict[str, float]

    @property
    def limit(self) -> str:
        """The stage that the others wait for."""
        return min(self.rates, key=lambda stage: self.rates[stage])


def estimate(
    sizes: Sizes, machine: Machine, work: Work, precision: str, local: bool = False
) -> Estimate:
    """The time that the job takes on an idle machine; `local`: without Ray."""
    gpu_share = work.gpu_share if sizes.device == "cuda" and sizes.read_in == "scorer" else 0.0
    read_s = gpu_share * work.row_bytes / PAGE_BYTES_S[work.form]
    read_s += (1 - gpu_share) * work.row_bytes / READ_BYTES_S[work.form]
    rows_a_call = work.rows / work.units
    readers = min(machine.cores, sizes.read_tasks)
    if sizes.read_in == "scorer":  # its threads read and publish, a few units a call
        rows_a_call = max(rows_a_call, min(GROUP_ROWS[sizes.device], work.rows))
        rates = {"reading and publishing": readers / (read_s + PUBLISH_S_A_ROW)}
    else:
        rates = {"reading": readers / read_s, "publishing": sizes.scorers / PUBLISH_S_A_ROW}
    rates["the driver"] = rows_a_call / DRIVER_S_A_CALL
    if sizes.device == "cuda":
        score_s = work.model.fields / GPU_LOOKUPS_S
        score_s += work.model.operations / GPU_OPERATIONS_S[precision]
        score_s += gpu_share * work.row_bytes / GPU_UNPACK_BYTES_S
        rates["the GPUs"] = sizes.scorers / score_s
    else:
        score_s = work.model.fields / CPU_LOOKUPS_S + work.model.operations / CPU_OPERATIONS_S
        rates["scoring"] = min(machine.cores, sizes.scorers * sizes.threads) / score_s
        rates["all cores"] = machine.cores / (read_s + score_s + PUBLISH_S_A_ROW)
        score_s /= sizes.threads
    alone_s = work.largest_rows * (read_s + score_s + PUBLISH_S_A_ROW)
    start_s = (LOCAL_START_S if local else START_S)[sizes.device]
    seconds = start_s + work.rows / min(rates.values()) + alone_s
    return Estimate(seconds, rates)
