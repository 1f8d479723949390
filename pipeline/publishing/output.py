"""The output folder of a job: whose it is, what is finished in it, and what may be removed."""

from __future__ import annotations

import contextlib
import errno
import uuid
from collections.abc import Container, Iterator
from typing import Any

from pipeline.config.job import resolved_yaml
from pipeline.errors import ConfigError, ResumableError
from pipeline.planning.job_plan import JobPlan
from pipeline.publishing.atomic import remove_temporaries, sync_folder, write_atomic
from pipeline.publishing.records import (
    IdentityFile,
    OutputLayout,
    UnitRecord,
    finished_units,
    has_files,
    is_part_name,
    manifest_of,
    read_json,
    write_json,
)

# What no rerun cures: names or links that the file system cannot follow.
NEVER = {errno.ENAMETOOLONG, errno.ELOOP}


@contextlib.contextmanager
def storage_errors(layout: OutputLayout) -> Iterator[None]:
    """Turn operating system errors about the output into errors of the job."""
    try:
        yield
    except (NotADirectoryError, FileExistsError) as error:
        raise ConfigError(f"output {layout.root} is not a folder: {error}") from error
    except OSError as error:
        if error.errno in NEVER:
            reason = f"{error.strerror}; choose another output"
            raise ConfigError(f"cannot write to the output {layout.root}: {reason}") from error
        raise ResumableError(
            f"cannot write to {layout.root}: {error}; make room or restore access, then run the "
            "same command: published units are kept"
        ) from error


def claim(layout: OutputLayout, plan: JobPlan) -> tuple[str, dict[str, UnitRecord]]:
    """Make the output this job's, and start an attempt; the caller holds the lock.

    Returns the attempt's id and the records of the units that are published already. Raises
    ConfigError when the output belongs to another job and `overwrite` is off, or holds part files
    that no job wrote.
    """
    foreign = layout.foreign_parts()
    if foreign:
        raise ConfigError(
            f"{foreign[0]} ({len(foreign)} such files) was not written by a job, but readers "
            "would take it for scores; move it away or choose another output"
        )
    if not _is_ours(layout, plan):
        clear(layout)
    for folder in (layout.root, layout.units, layout.rejected):
        folder.mkdir(parents=True, exist_ok=True)
        remove_temporaries(folder)
    attempt = uuid.uuid4().hex
    owner = IdentityFile(
        identity=plan.identity,
        attempt=attempt,
        bundle_digest=plan.bundle_digest,
        config=plan.config.model_dump(mode="json"),
        units=len(plan.units),
        rows=plan.total_rows,
    )
    write_json(layout.identity, owner)
    write_atomic(layout.config, resolved_yaml(plan.config).encode())
    reopen(layout, plan.identity)
    finished = finished_units(layout, (unit.name for unit in plan.units))
    forget_others(layout, finished)
    return attempt, finished


def reopen(layout: OutputLayout, identity: str) -> None:
    """Make a finished output an unfinished one: units whose files are whole stay published.

    The manifest goes last: a crash in here loses no record, as the next start reads it again.
    """
    manifest = manifest_of(layout, identity)
    for record in manifest.units if manifest else ():
        path = layout.record(record.unit)
        if has_files(layout, record) and not path.exists():
            write_json(path, record)
    layout.success.unlink(missing_ok=True)
    layout.manifest.unlink(missing_ok=True)


def forget_others(layout: OutputLayout, finished: Container[str]) -> None:
    """Remove records whose files are lost, before the units are scored again.

    Else a crash between a new part and its record would leave the new part with the old record.
    """
    for path in layout.units.glob("u*.json"):
        if path.stem not in finished:
            path.unlink()
    sync_folder(layout.units)


def clear(layout: OutputLayout) -> None:
    """Remove what jobs wrote, and nothing else. The identity goes last but one, parts last.

    The order keeps a crash in here safe: at no moment does a manifest or a record name a part
    that is gone.
    """
    names = (layout.success, layout.manifest)
    for path in names:
        path.unlink(missing_ok=True)
    for path in layout.units.glob("u*.json"):
        if is_part_name(f"part-{path.stem}.parquet"):
            path.unlink(missing_ok=True)
    for path in layout.rejected.glob("part-*.parquet"):
        if is_part_name(path.name):
            path.unlink(missing_ok=True)
    for path in layout.parts():
        path.unlink(missing_ok=True)
    for path in (layout.config, layout.identity):
        path.unlink(missing_ok=True)


def tidy(layout: OutputLayout) -> None:
    """After success: remove temporary files, and records, which the manifest holds."""
    for folder in (layout.root, layout.units, layout.rejected):
        remove_temporaries(folder)
    for path in layout.units.glob("u*.json"):
        path.unlink(missing_ok=True)
    for folder in (layout.units, layout.rejected):
        with contextlib.suppress(OSError):  # not empty: it holds rejected rows, or foreign files
            folder.rmdir()


def _is_ours(layout: OutputLayout, plan: JobPlan) -> bool:
    """Whether to go on in the output (or start in an empty one); False: clear it first.

    What another job left before it published anything is cleared without being asked.
    """
    problem = _other_owner(layout, plan)
    if problem is None:
        return True
    if layout.holds_scores() and not plan.config.overwrite:
        raise ConfigError(
            f"output {layout.root} {problem}; choose another output, or set overwrite=true to "
            "replace the scores in it"
        )
    return False


def _other_owner(layout: OutputLayout, plan: JobPlan) -> str | None:
    """Why the output is not this job's to go on with; None if it is, or is empty."""
    try:
        owner = read_json(layout.identity, IdentityFile)
    except ConfigError as error:
        return f"has a broken owner: {error}"
    if owner is None:
        some = [*layout.parts(), *(p for p in (layout.manifest, layout.success) if p.exists())]
        return f"holds {some[0].name} but no {layout.identity.name}" if some else None
    if owner.identity == plan.identity:
        return None
    return f"belongs to another job ({_difference(owner, plan)})"


def _difference(owner: IdentityFile, plan: JobPlan) -> str:
    """What differs between two jobs, in words."""
    if owner.bundle_digest != plan.bundle_digest:
        return f"its bundle is {owner.bundle_digest[:12]}, this one {plan.bundle_digest[:12]}"
    mine: dict[str, Any] = plan.config.model_dump(mode="json")
    keys = ["form", "key_columns", "carry_columns", "field_columns", "unit_rows", "on_bad_row"]
    keys += ["on_bad_id", "on_corrupt_file", "precision", "input"]
    changed = [k for k in keys if owner.config.get(k) != mine.get(k)]
    if changed:
        key = changed[0]
        return f"its {key} is {owner.config.get(key)!r}, this one's {mine.get(key)!r}"
    return f"its input files were others or have changed: {owner.rows} rows, now {plan.total_rows}"
