"""A plan in words, and what would become of it at its output: what `--dry-run` prints."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pipeline.errors import ConfigError
from pipeline.planning.identity import IDENTITY_KEYS
from pipeline.planning.job_plan import JobPlan
from pipeline.planning.units import Unit
from pipeline.publishing.records import (
    IdentityFile,
    OutputLayout,
    completed,
    has_files,
    is_whole,
    read_json,
)
from pipeline.words import counted, size

_LISTED = 10  # files or columns named one by one


class OutputState(NamedTuple):
    """What a run of a plan would find at its output."""

    kind: Literal["fresh", "resume", "complete", "overwrite", "refused"]
    done_units: int
    text: str


def output_state(plan: JobPlan) -> OutputState:
    """Look at the output folder without touching it.

    A finished unit is counted by its record's name; the run itself looks at its files too.
    """
    layout = OutputLayout(plan.config.output)
    if not layout.root.is_dir() or not any(layout.root.iterdir()):
        return OutputState("fresh", 0, "does not exist yet or is empty: all units would be scored")
    if layout.foreign_parts():
        text = f"holds {layout.foreign_parts()[0].name}, which no job wrote: would be refused"
        return OutputState("refused", 0, text)
    found = read_json(layout.identity, IdentityFile)
    if found is None:
        if not layout.parts() and not layout.success.exists() and not layout.manifest.exists():
            return OutputState("fresh", 0, "holds no scores: all units would be scored")
        return _replaced(plan, "holds scores, but not whose they are")
    if found.identity != plan.identity:
        if not layout.holds_scores():
            return OutputState("fresh", 0, "holds no scores yet: all units would be scored")
        return _other_identity(plan, found)
    names = (unit.name for unit in plan.units)
    manifest = completed(layout, plan.identity)
    if manifest is not None and is_whole(layout, manifest, names):
        return OutputState("complete", len(plan.units), "is complete: nothing would be scored")
    done = _done_units(layout, plan.units)
    if manifest is not None:
        done = sum(has_files(layout, record) for record in manifest.units)
    text = f"{done} of {len(plan.units)} units are done: the others would be scored"
    return OutputState("resume", done, text)


def describe_plan(plan: JobPlan) -> str:
    """The plan for people: one fact a line."""
    columns, config = plan.columns, plan.config
    lines = [
        f"identity   {plan.identity}",
        f"bundle     {plan.bundle_path} (digest {plan.bundle_digest})",
        f"input      {counted(len(plan.files), 'file')}, {plan.total_rows:,} rows, "
        f"{size(plan.total_bytes)}",
        *_file_lines(plan),
        f"form       {columns.form}",
        f"keys       {_names(columns.key_columns)}",
        f"carried    {_names(columns.carry_columns)}",
        f"features   {_names(_feature_columns(plan))}",
        f"units      {len(plan.units):,} of about {config.unit_rows:,} rows",
        *_unit_lines(plan.units),
        f"output     {config.output}",
        f"           {_state_text(plan)}",
    ]
    return "\n".join(lines)


def _other_identity(plan: JobPlan, found: IdentityFile) -> OutputState:
    mine = plan.config.public()
    keys = (*IDENTITY_KEYS, "field_columns", "input")
    changed = [key for key in keys if found.config.get(key) != mine[key]]
    if found.bundle_digest != plan.bundle_digest:
        changed.append("contents of the bundle")
    what = ", ".join(changed) or "contents of the input"
    return _replaced(plan, f"belongs to job {found.identity[:12]}, which differs in: {what}")


def _replaced(plan: JobPlan, what: str) -> OutputState:
    if plan.config.overwrite:
        return OutputState("overwrite", 0, f"{what}; its scores would be replaced")
    return OutputState("refused", 0, f"{what}; would be refused, unless overwrite is true")


def _done_units(layout: OutputLayout, units: list[Unit]) -> int:
    try:
        recorded = {path.stem for path in layout.units.iterdir() if path.suffix == ".json"}
    except FileNotFoundError:
        return 0
    return sum(unit.name in recorded for unit in units)


def _state_text(plan: JobPlan) -> str:
    try:
        return output_state(plan).text
    except (ConfigError, OSError) as error:
        return f"cannot be read: {error}"


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


def _unit_lines(units: list[Unit]) -> list[str]:
    ends = units if len(units) <= 2 else [units[0], units[-1]]
    return [
        f"           {unit.name}: {counted(unit.rows, 'row')}, row groups "
        f"{unit.first_row_group} to {unit.stop_row_group - 1} of {unit.path}"
        for unit in ends
    ]


def _feature_columns(plan: JobPlan) -> tuple[str, ...]:
    columns = plan.columns
    return (*columns.id_columns, *columns.dense_columns, *columns.source_columns)


def _names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return (", ".join(names[:_LISTED]) + more) or "none"
