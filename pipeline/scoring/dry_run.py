"""What `--dry-run` prints: the plan, what would become of it at its output, the sizes with their
reasons, the expected time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

from pipeline.cluster.ray_cluster import running_cluster
from pipeline.errors import ConfigError
from pipeline.planning.identity import IDENTITY_KEYS
from pipeline.planning.job_plan import JobPlan
from pipeline.planning.units import Unit
from pipeline.publishing.output import Output, has_files, open_output, recorded_units
from pipeline.publishing.records import IdentityFile, foreign_parts, scores_among
from pipeline.scoring.runner import choose_runner, with_runner
from pipeline.sizing.estimate import Estimate, estimate
from pipeline.sizing.job_sizes import choose_sizes
from pipeline.sizing.machine import Machine, local_machine
from pipeline.sizing.sizes import Sizes, Work, work_of
from pipeline.words import counted, size

_LISTED = 10  # files or columns named one by one


def dry_run(plan: JobPlan, unit_rows: int | Literal["auto"]) -> str:
    """Describe a plan, which `unit_rows` was asked of, and how it would run on this machine.

    Starts nothing. ConfigError when the job cannot run here.
    """
    plan = with_runner(plan, choose_runner(plan.config))
    state = output_state(plan)
    lines = [describe_plan(plan, state), *_unit_lines(plan, unit_rows)]
    pending = [unit for unit in plan.units[state.done_units :] if unit.rows]  # or as large ones
    if not pending:
        return "\n".join(lines)
    local = plan.config.runner == "local"
    try:
        cluster = None if local else running_cluster(plan.config.ray_address)
    except ConnectionError as error:
        cluster, lines = plan.config.ray_address, [*lines, f"cluster    {error}"]
    if cluster is not None:
        lines.append(
            f"sizes      settled by the Ray cluster at {cluster} when the job starts there"
        )
        return "\n".join(lines)
    machine, work = local_machine(), work_of(plan, pending)
    sizes = choose_sizes(machine, work, plan.config)
    expected = estimate(sizes, machine, work, plan.config.precision, local)
    lines += [_machine_line(machine), *_size_lines(sizes), *_unpacking_lines(sizes, work)]
    return "\n".join([*lines, *_time_lines(expected)])


def dry_run_data(plan: JobPlan) -> dict[str, Any]:
    """What `dry_run` tells, as data. ConfigError when the job cannot run here."""
    plan = with_runner(plan, choose_runner(plan.config))
    state, config = output_state(plan), plan.config
    data: dict[str, Any] = {
        "exit_code": 0,
        "status": "planned",
        "identity": plan.identity,
        "bundle": config.bundle,
        "bundle_digest": plan.bundle_digest,
        "bundles": plan.bundles,
        "segments": None if config.segments is None else config.segments.model_dump(),
        "outputs": plan.outputs,
        "files": len(plan.files),
        "quarantined": len(plan.quarantined),
        "rows": plan.total_rows,
        "bytes": plan.total_bytes,
        "form": plan.columns.form,
        "key_columns": list(plan.columns.key_columns),
        "units": len(plan.units),
        "unit_rows": config.unit_rows,
        "output": config.output,
        "output_state": state.text,
        "done_units": state.done_units,
        "runner": config.runner,
        "sizes": None,
        "expected_s": None,
    }
    pending = [unit for unit in plan.units[state.done_units :] if unit.rows]
    local = config.runner == "local"
    if pending and (local or running_cluster(config.ray_address) is None):
        machine, work = local_machine(), work_of(plan, pending)
        sizes = choose_sizes(machine, work, config)
        expected = estimate(sizes, machine, work, config.precision, local)
        data["sizes"] = {k: v for k, v in asdict(sizes).items() if k != "reasons"}
        data["expected_s"] = round(expected.seconds, 1)
    return data


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
    if work.gpu_share == 1:
        return ["unpacking  by the GPU"]
    mixed = f"of {work.gpu_share:.1%} of the rows by the GPU, of the others by the CPU"
    return [f"unpacking  {mixed if work.gpu_share else 'by the CPU'}: {work.gpu_excludes}"]


def _time_lines(expected: Estimate) -> list[str]:
    rates = ", ".join(f"{stage} {rate:,.0f}" for stage, rate in expected.rates.items())
    return [
        f"expected   about {expected.seconds:,.0f} s (estimate), limited by {expected.limit}",
        f"           rows/s: {rates}",
    ]


class OutputState(NamedTuple):
    """What a run of a plan would find at its output."""

    done_units: int
    text: str


def output_state(plan: JobPlan) -> OutputState:
    """Look at the output folder without touching it.

    A finished unit is counted by its record's name; the job itself checks its files as well.
    """
    if plan.parts:
        return _parts_state(plan)
    try:
        return _output_state(plan, open_output(plan.config.output))
    except (ConfigError, OSError) as error:
        return OutputState(0, f"cannot be read: {error}")


def _parts_state(plan: JobPlan) -> OutputState:
    """What a run would find at the outputs of its partitions."""
    states = [(part, output_state(part)) for part in plan.parts]
    done = sum(state.done_units for _, state in states)
    whole = sum(state.done_units == len(part.units) for part, state in states)
    lines = [f"{counted(len(states), 'partition')}, {whole:,} of them published"]
    others = [(part, state) for part, state in states if state.done_units < len(part.units)]
    lines += [f"           {part.config.output}: {state.text}" for part, state in others[:_LISTED]]
    if len(others) > _LISTED:
        lines.append(f"           and {len(others) - _LISTED:,} more")
    return OutputState(done, "\n".join(lines))


def _output_state(plan: JobPlan, output: Output) -> OutputState:
    sizes = output.sizes()
    foreign = foreign_parts(sizes)
    if foreign:
        return OutputState(0, f"holds {foreign[0]}, which no job wrote: would be refused")
    found = output.owner()
    if found is None and not scores_among(sizes):
        what = "holds no scores" if sizes else "does not exist yet or is empty"
        return OutputState(0, f"{what}: all units would be scored")
    if found is None:
        return _replaced(plan, "holds scores, but not whose they are")
    if found.identity != plan.identity:
        if not scores_among(sizes):
            return OutputState(0, "holds no scores yet: all units would be scored")
        return _other_identity(plan, found)
    manifest = output.completed(plan.identity)
    if manifest is not None and output.is_whole(manifest, (unit.name for unit in plan.units)):
        return OutputState(len(plan.units), "is complete: nothing would be scored")
    recorded = recorded_units(sizes)
    done = sum(unit.name in recorded for unit in plan.units)
    if manifest is not None:
        done = sum(has_files(sizes, record) for record in manifest.units)
    text = f"{done} of {len(plan.units)} units are done: the others would be scored"
    return OutputState(done, text)


def describe_plan(plan: JobPlan, state: OutputState) -> str:
    """The plan for people: one fact a line."""
    columns, config = plan.columns, plan.config
    lines = [
        f"identity   {plan.identity}",
        f"bundle     {config.bundle} (digest {plan.bundle_digest})",
        *(
            f"           {name}: {config.bundles[name]} (digest {digest})"
            for name, digest in plan.bundles.items()
        ),
        *_segment_lines(plan),
        f"input      {counted(len(plan.files), 'file')}, {plan.total_rows:,} rows, "
        f"{size(plan.total_bytes)}",
        *_file_lines(plan),
        f"form       {columns.form}",
        f"keys       {_names(columns.key_columns)}",
        f"carried    {_names(columns.carry_columns)}",
        f"features   {_names(columns.feature_columns)}",
        f"units      {len(plan.units):,} of about {config.unit_rows:,} rows",
        *_first_and_last(plan.units),
        f"output     {config.output}",
        f"           {state.text}",
    ]
    return "\n".join(lines)


def _other_identity(plan: JobPlan, found: IdentityFile) -> OutputState:
    mine = plan.config.public()
    keys = (*IDENTITY_KEYS, "field_columns", "segments", "input")
    changed = [key for key in keys if found.config.get(key) != mine[key]]
    if found.bundle_digest != plan.bundle_digest:
        changed.append("contents of the bundle")
    if found.bundles != plan.bundles:
        changed.append("bundles")
    what = ", ".join(changed) or "contents of the input"
    return _replaced(plan, f"belongs to job {found.identity[:12]}, which differs in: {what}")


def _replaced(plan: JobPlan, what: str) -> OutputState:
    if plan.config.overwrite:
        return OutputState(0, f"{what}; its scores would be replaced")
    return OutputState(0, f"{what}; would be refused, unless overwrite is true")


def _segment_lines(plan: JobPlan) -> list[str]:
    segments = plan.config.segments
    if segments is None:
        return []
    named = _names([f"{value}: {name}" for value, name in segments.bundles.items()])
    return [f"segments   by {segments.column}: {named}; other rows by the bundle"]


def _file_lines(plan: JobPlan) -> list[str]:
    lines = [
        f"           {file.path} ({counted(file.rows, 'row')}, "
        f"{counted(file.row_groups, 'row group')})"
        for file in plan.files[:_LISTED]
    ]
    if len(plan.files) > _LISTED:
        lines.append(f"           and {len(plan.files) - _LISTED:,} more")
    empty = sum(file.rows == 0 for file in plan.files)
    if empty:
        lines.append(f"           {counted(empty, 'file')} without rows, left out")
    twice = len(plan.files) - len({file.path for file in plan.files})
    if twice:
        lines.append(f"           {counted(twice, 'file')} listed again, scored again")
    for bad in plan.quarantined[:_LISTED]:
        lines.append(f"           quarantined: {bad.path}: {bad.reason}")
    if len(plan.quarantined) > _LISTED:
        lines.append(f"           and {len(plan.quarantined) - _LISTED:,} more quarantined")
    return lines


def _first_and_last(units: list[Unit]) -> list[str]:
    ends = units if len(units) <= 2 else [units[0], units[-1]]
    return [
        f"           {unit.name}: {counted(unit.rows, 'row')}, row groups "
        f"{unit.first_row_group} to {unit.stop_row_group - 1} of {unit.where}"
        for unit in ends
    ]


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return (", ".join(names[:_LISTED]) + more) or "none"
