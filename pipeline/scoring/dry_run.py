"""What `--dry-run` prints: the plan, the sizes with their reasons, the expected time."""

from __future__ import annotations

from typing import Literal

from pipeline.cluster.machine import Machine, local_machine
from pipeline.cluster.ray_cluster import running_cluster
from pipeline.errors import ConfigError
from pipeline.planning.describe import describe_plan, output_state
from pipeline.planning.job_plan import JobPlan
from pipeline.sizing.estimate import Estimate, estimate
from pipeline.sizing.job_sizes import choose_sizes
from pipeline.sizing.sizes import Sizes, Work, work_of
from pipeline.words import counted, size


def dry_run(plan: JobPlan, unit_rows: int | Literal["auto"]) -> str:
    """Describe a plan, which `unit_rows` was asked of, and how it would run on this machine.

    Starts nothing. ConfigError when the job cannot run here.
    """
    lines = [describe_plan(plan), *_unit_lines(plan, unit_rows)]
    try:
        state = output_state(plan)
        done = state.done_units
    except (ConfigError, OSError):  # the plan's description tells
        done = 0
    pending = plan.units[done:]  # the others are as large
    if not pending:
        return "\n".join(lines)
    try:
        cluster = running_cluster(plan.config.ray_address)
    except ConnectionError as error:
        cluster, lines = plan.config.ray_address, [*lines, f"cluster    {error}"]
    if cluster is not None:
        lines.append(
            f"sizes      settled by the Ray cluster at {cluster} when the job starts there"
        )
        return "\n".join(lines)
    machine, work = local_machine(), work_of(plan, pending)
    sizes = choose_sizes(machine, work, plan.config)
    expected = estimate(sizes, machine, work, plan.config.precision)
    lines += [_machine_line(machine), *_size_lines(sizes), *_unpacking_lines(sizes, work)]
    return "\n".join([*lines, *_time_lines(expected)])


def _unit_lines(plan: JobPlan, unit_rows: int | Literal["auto"]) -> list[str]:
    if not plan.units:
        return []
    why = "as configured" if unit_rows != "auto" else "auto: by the input's rows and row groups"
    largest = max(unit.rows for unit in plan.units)
    memory = f"the largest takes {size(largest * plan.row_bytes)} in memory"
    return [f"unit_rows  {plan.config.unit_rows:,}, {why}; {memory}"]


def _machine_line(machine: Machine) -> str:
    gpus = counted(machine.gpus, "GPU") + ("" if machine.has_cuda else " (a build without CUDA)")
    if machine.gpu_bytes is not None:
        gpus += f", {size(machine.gpu_bytes)} free"
    cores = counted(int(machine.cores), "core")
    return f"machine    {cores}, {size(machine.memory_bytes)} of memory free, {gpus}"


def _size_lines(sizes: Sizes) -> list[str]:
    """One line a size: its key, its value, why."""
    values = {
        "num_scorers": f"{sizes.scorers} on {sizes.device}",
        "read_in": sizes.read_in,
        "threads": f"{sizes.threads} a scorer",
        "max_batch": f"{sizes.max_batch:,} rows",
        "max_read_tasks": f"{sizes.read_tasks} at a time",
        "max_tasks_in_flight": f"{sizes.tasks_in_flight} a scorer",
        "object_store_bytes": size(sizes.store_bytes),
    }
    lines = [f"{key:<19} {value:<12} {sizes.reasons[key]}" for key, value in values.items()]
    return [f"{'sizes' if i == 0 else '':<10} {line}" for i, line in enumerate(lines)]


def _unpacking_lines(sizes: Sizes, work: Work) -> list[str]:
    """Who decodes the input, where it may be a GPU; the CPU is slower at it."""
    if sizes.device != "cuda":
        return []
    if sizes.read_in == "tasks":
        return ["unpacking  by the CPU: units are read by tasks"]
    if work.stored == 1:
        return ["unpacking  by the GPU"]
    others = f"of {work.stored:.1%} of the rows by the GPU, of the others by the CPU"
    return [f"unpacking  {others if work.stored else 'by the CPU'}: {work.not_stored}"]


def _time_lines(expected: Estimate) -> list[str]:
    rates = ", ".join(f"{stage} {rate:,.0f}" for stage, rate in expected.rates.items())
    return [
        f"expected   about {expected.seconds:,.0f} s (estimate), limited by {expected.limit}",
        f"           rows/s: {rates}",
    ]
