"""The output folder of a job: claim it for an attempt, finish it with a manifest, clean it up."""

from __future__ import annotations

import contextlib
import errno
import uuid
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from pipeline.config.job import resolved_yaml
from pipeline.errors import ConfigError, ContractError, ResumableError
from pipeline.planning.inputs import Quarantined
from pipeline.planning.job_plan import JobPlan
from pipeline.publishing.atomic import remove_temporaries, sync_folder, write_atomic
from pipeline.publishing.records import (
    IdentityFile,
    Manifest,
    ManifestFile,
    OutputLayout,
    Success,
    UnitRecord,
    finished_units,
    has_files,
    is_part_name,
    manifest_of,
    read_json,
    write_json,
)

# Errors that no rerun cures: names or links that the file system cannot follow.
NOT_RESUMABLE = {errno.ENAMETOOLONG, errno.ELOOP}


@contextlib.contextmanager
def storage_errors(layout: OutputLayout) -> Iterator[None]:
    """Turn operating system errors about the output into errors of the job."""
    try:
        yield
    except (NotADirectoryError, FileExistsError) as error:
        raise ConfigError(f"output {layout.root} is not a folder: {error}") from error
    except OSError as error:
        if error.errno in NOT_RESUMABLE:
            reason = f"{error.strerror}; choose another output"
            raise ConfigError(f"cannot write to the output {layout.root}: {reason}") from error
        raise ResumableError(
            f"cannot write to {layout.root}: {error}; make room or restore access, then run the "
            "same command: published units are kept"
        ) from error


def claim(layout: OutputLayout, plan: JobPlan) -> tuple[str, dict[str, UnitRecord]]:
    """Make the output this job's and start an attempt; the caller holds the lock.

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
    drop_unfinished_records(layout, finished)
    return attempt, finished


def reopen(layout: OutputLayout, identity: str) -> None:
    """Turn a finished output back into an unfinished one; units with intact files stay published.

    The manifest is removed last, so that after a crash in here the next start reads it again.
    """
    manifest = manifest_of(layout, identity)
    for record in manifest.units if manifest else ():
        path = layout.record(record.unit)
        if has_files(layout, record) and not path.exists():
            write_json(path, record)
    layout.success.unlink(missing_ok=True)
    layout.manifest.unlink(missing_ok=True)


def drop_unfinished_records(layout: OutputLayout, finished: Container[str]) -> None:
    """Remove records of units that will be scored again because their files are lost.

    Otherwise a crash between a new part and its record would pair the new part with the old record.
    """
    for path in layout.units.glob("u*.json"):
        if path.stem not in finished:
            path.unlink()
    sync_folder(layout.units)


def clear(layout: OutputLayout) -> None:
    """Remove the files that jobs wrote, and nothing else.

    Manifest and records go before the parts, so that after a crash in here none of them names a
    part that is gone.
    """
    for path in (layout.success, layout.manifest):
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
    """After success: remove temporary files, and the records, which the manifest contains."""
    for folder in (layout.root, layout.units, layout.rejected):
        remove_temporaries(folder)
    for path in layout.units.glob("u*.json"):
        path.unlink(missing_ok=True)
    for folder in (layout.units, layout.rejected):
        with contextlib.suppress(OSError):  # not empty: it holds rejected rows, or foreign files
            folder.rmdir()


def _is_ours(layout: OutputLayout, plan: JobPlan) -> bool:
    """True: continue in the output, or start in an empty one. False: clear it first.

    Files of another job that published nothing are cleared without `overwrite`.
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
    """Why this job cannot continue in the output; None if it can, or if the output is empty."""
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


def finish_output(
    layout: OutputLayout, plan: JobPlan, quarantined: Sequence[Quarantined]
) -> Manifest:
    """Check that every row has its outcome, then publish the manifest and `_SUCCESS`.

    `quarantined`: units left out while scoring; the plan holds the files left out before. Raises
    ResumableError when a unit is missing, ContractError above the limit of rejected rows.
    """
    left_out = {entry.unit for entry in quarantined}
    names = [unit.name for unit in plan.units if unit.name not in left_out]
    records = finished_units(layout, names)
    check_complete(plan, records, quarantined)
    rejected = sum(record.rejected for record in records.values())
    check_rejected(plan, rejected)
    manifest = Manifest(
        identity=plan.identity,
        bundle_digest=plan.bundle_digest,
        config=plan.config.model_dump(mode="json"),
        key_columns=list(plan.columns.key_columns),
        carry_columns=list(plan.columns.carry_columns),
        rows=sum(record.rows for record in records.values()),
        scored=sum(record.scored for record in records.values()),
        rejected=rejected,
        units=[records[name] for name in names],
        quarantined=[*plan.quarantined, *quarantined],
        files=[
            ManifestFile(
                path=file.path,
                size=file.size,
                mtime_ns=file.mtime_ns,
                rows=file.rows,
                row_groups=file.row_groups,
            )
            for file in plan.files
        ],
    )
    write_json(layout.manifest, manifest)
    write_json(layout.success, Success(identity=plan.identity, rows=manifest.rows))
    return manifest


def check_complete(
    plan: JobPlan, records: Mapping[str, UnitRecord], quarantined: Sequence[Quarantined]
) -> None:
    """Every unit is published or quarantined, and rows in = scored + rejected, unit by unit."""
    left_out = {entry.unit for entry in quarantined}
    for unit in plan.units:
        if unit.name in left_out:
            continue
        record = records.get(unit.name)
        if record is None:
            raise ResumableError(
                f"unit {unit.name} ({unit.path}) has no record or its part is gone: something "
                "removed it while the job ran; run the command again to score it"
            )
        if not unit.rows == record.rows == record.scored + record.rejected:
            raise ResumableError(
                f"unit {unit.name}: {unit.rows} rows in, but its record counts {record.scored} "
                f"scored and {record.rejected} rejected; remove its record to score it again"
            )


def check_rejected(plan: JobPlan, rejected: int) -> None:
    """Raise ContractError when more rows are rejected than the job allows."""
    # The quotient, as 0.29 * 100 is a little less than 29.
    if plan.total_rows and rejected / plan.total_rows > plan.config.max_rejected_fraction:
        raise ContractError(
            f"{rejected} of {plan.total_rows} rows are rejected, more than max_rejected_fraction "
            f"{plan.config.max_rejected_fraction:g} allows; the reasons are in the output's "
            "_rejected folder; fix the input, or allow more and run again"
        )
