"""The work of a job, and its sizes: how many scorers, readers, rows, bytes at one time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from pipeline.planning.job_plan import JobPlan
from pipeline.planning.row_cost import ModelCost
from pipeline.planning.units import Unit
from pipeline.sizing.gpu_share import GpuShare, gpu_share

LEAST_STORE = 256 << 20
MIN_BATCH, MAX_BATCH = 1024, 65536  # rows in a call of the engine
IN_FLIGHT = 4


class Work(NamedTuple):
    """What is to be scored. `largest_rows`: rows of the largest unit; `remote`: whether some units
    come from an object store; `gpu_share`: the share of the rows whose pages a GPU decodes;
    `gpu_excludes`: why it does not decode the others.
    """

    rows: int
    units: int
    largest_rows: int
    row_bytes: int
    form: Literal["raw", "encoded"]
    model: ModelCost
    remote: bool = False
    gpu_share: float = 0.0
    gpu_excludes: str = ""

    @property
    def unit_bytes(self) -> int:
        """The largest unit in memory."""
        return self.largest_rows * self.row_bytes


def work_of(plan: JobPlan, pending: Sequence[Unit]) -> Work:
    """What the pending units (at least one) of a plan are."""
    on_cpu = plan.config.device == "cpu"
    if on_cpu:
        share = GpuShare(0.0, "no GPU")
    elif plan.others:
        share = GpuShare(0.0, "rows for several models are decoded there")
    else:
        share = gpu_share(pending, plan.columns)
    return Work(
        rows=sum(unit.rows for unit in pending),
        units=len(pending),
        largest_rows=max(unit.rows for unit in pending),
        row_bytes=plan.row_bytes,
        form=plan.columns.form,
        model=plan.model,
        gpu_share=share.share,
        gpu_excludes=share.excludes,
        remote=any(unit.etag for unit in pending),
    )


@dataclass(frozen=True)
class Sizes:
    """What one scorer and one read task take of the cluster, and how many there are.

    `read_tasks`: units read at one time, by tasks or in all scorers together; `store_bytes`: of all
    object stores; `light`: numpy scores in place of torch, whose import would take longer than all
    rows; `reasons`: configuration key -> why it got its value.
    """

    device: Literal["cpu", "cuda"]
    scorers: int
    scorer_cpus: float
    scorer_gpus: int
    read_cpus: float
    threads: int
    read_in: Literal["scorer", "tasks"] = "scorer"
    read_tasks: int = 1
    tasks_in_flight: int = IN_FLIGHT
    max_batch: int = MAX_BATCH
    store_bytes: int = LEAST_STORE
    light: bool = False
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """Units that one scorer works on at a time."""
        if self.read_in == "tasks":
            return min(IN_FLIGHT, self.tasks_in_flight)
        return max(1, self.read_tasks // self.scorers)

    def because(self, **reasons: str) -> Sizes:
        """The same sizes, with these reasons for some."""
        return replace(self, reasons={**self.reasons, **reasons})


def given(value: int | Literal["auto"], otherwise: int) -> int:
    """What the configuration gives, else the value of `auto`."""
    return otherwise if value == "auto" else value
