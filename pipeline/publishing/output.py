"""The output folder of a job: claim it for an attempt, finish it with a manifest, clean it up."""

from __future__ import annotations

import contextlib
import errno
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.job import resolved_yaml
from pipeline.errors import ConfigError, ContractError, DpiframeError, ResumableError
from pipeline.planning.inputs import Quarantined
from pipeline.planning.job_plan import JobPlan
from pipeline.publishing.atomic import (
    make_folders,
    remove_temporaries,
    sync_folder,
    temporaries,
    write_atomic,
)
from pipeline.publishing.lock import OutputLock
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
    part_name,
    read_json,
    write_json,
)

log = logging.getLogger("dpiframe.job")

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

    Returns the attempt's id and the records of the units that are published already. Raises what
    `check_claim` raises.

    From the new identity on, workers of earlier attempts publish nothing: one that looks at it
    stops, and one that looked before loses the temporary file that it is about to rename. What they
    left is removed after that.
    """
    if not check_claim(layout, plan):
        retract(layout)
    for folder in (layout.root, layout.units, layout.rejected):
        make_folders(folder)
    attempt = uuid.uuid4().hex
    owner = IdentityFile(
        identity=plan.identity,
        attempt=attempt,
        bundle_digest=plan.bundle_digest,
        config=plan.config.public(),
        units=len(plan.units),
        rows=plan.total_rows,
    )
    write_json(layout.identity, owner)
    write_atomic(layout.config, resolved_yaml(plan.config).encode())
    for folder in (layout.root, layout.units, layout.rejected):
        remove_temporaries(folder)
    reopen(layout, plan.identity)
    finished = finished_units(layout, (unit.name for unit in plan.units))
    remove_others(layout, finished)
    return attempt, finished


def check_claim(layout: OutputLayout, plan: JobPlan) -> bool:
    """Whether the output is this job's, or nobody's, to go on in; False: its scores are replaced.

    What another job left before it published anything is replaced without being asked. Raises
    ConfigError when the output belongs to another job and `overwrite` is off, or holds part files
    that no job wrote. Touches nothing.
    """
    foreign = layout.foreign_parts()
    if foreign:
        raise ConfigError(
            f"{foreign[0]} ({len(foreign)} such files) was not written by a job, but readers "
            "would take it for scores; move it away or choose another output"
        )
    problem = _other_owner(layout, plan)
    if problem is None:
        return True
    if layout.holds_scores() and not plan.config.overwrite:
        raise ConfigError(
            f"output {layout.root} {problem}; choose another output, or set overwrite=true to "
            "replace the scores in it"
        )
    return False


def reopen(layout: OutputLayout, identity: str) -> None:
    """Make a finished output an unfinished one: units whose files are whole stay published.

    The manifest goes last: a crash in here loses no record, as the next start reads it again. Both
    are gone for good before a part is replaced, as a reader would take the old ones for its own.
    """
    manifest = manifest_of(layout, identity)
    for record in manifest.units if manifest else ():
        path = layout.record(record.unit)
        if has_files(layout, record) and not path.exists():
            write_json(path, record)
    retract(layout)


def retract(layout: OutputLayout) -> None:
    """Remove `_SUCCESS` and the manifest, for good also after a power cut."""
    found = [path for path in (layout.success, layout.manifest) if path.exists()]
    for path in found:
        path.unlink(missing_ok=True)
    if found:
        sync_folder(layout.root)


def remove_others(layout: OutputLayout, finished: Collection[str]) -> None:
    """Remove what jobs wrote of other units than these, and nothing else.

    Records go first, and for good: else a crash between a new part and its record would leave the
    new part with the old record, and a power cut might bring a record back without its part.
    """
    records = [path for path in layout.units.glob("u*.json") if path.stem not in finished]
    _remove(records, layout.units)
    named = {part_name(unit) for unit in finished}
    for folder in (layout.rejected, layout.root):
        parts = [path for path in folder.glob("part-*.parquet") if is_part_name(path.name)]
        _remove([path for path in parts if path.name not in named], folder)


def _remove(paths: Iterable[Path], folder: Path) -> None:
    """Remove files of one folder, for good also after a power cut."""
    for path in paths:
        path.unlink(missing_ok=True)
    sync_folder(folder)


def published_names(layout: OutputLayout, plan: JobPlan) -> set[str]:
    """Units that are published as far as names tell: a record, or a place in the job's manifest."""
    manifest = manifest_of(layout, plan.identity)
    records = [record for record in manifest.units if has_files(layout, record)] if manifest else []
    return {path.stem for path in layout.units.glob("u*.json")} | {r.unit for r in records}


def tidy(layout: OutputLayout) -> None:
    """After success: remove temporary files, and records, which the manifest holds.

    Never raises, as the job has finished: what stays is removed by a later start or `verify`.
    """
    try:
        for folder in (layout.root, layout.units, layout.rejected):
            remove_temporaries(folder)
        for path in layout.units.glob("u*.json"):
            if is_part_name(part_name(path.stem)):
                path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s is finished, but not tidy: %s; verify removes the rest", layout.root, error)
    for folder in (layout.units, layout.rejected):
        with contextlib.suppress(OSError):  # not empty: it holds rejected rows, or foreign files
            folder.rmdir()


def tidy_finished(layout: OutputLayout, wait: bool) -> None:
    """Remove what a crash after `_SUCCESS` left: temporary files, records, a dead job's lock.

    Does nothing while a job holds the output; `wait`: for a lock of another host to prove dead. The
    caller has seen that the output is finished and whole. Never raises.
    """
    folders = (layout.root, layout.units, layout.rejected)
    lock = OutputLock(layout.root, wait=wait)
    left = layout.units.exists() or lock.path.exists() or any(map(temporaries, folders))
    if not left:
        return
    try:
        with lock:
            success = read_json(layout.success, Success)
            manifest = read_json(layout.manifest, Manifest)
            if success and manifest and success.identity == manifest.identity:
                tidy(layout)
    except (DpiframeError, OSError) as error:
        log.info("%s is not tidied: %s", layout.root, error)


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
    mine: dict[str, Any] = plan.config.public()
    keys = ["form", "key_columns", "carry_columns", "field_columns", "unit_rows", "on_bad_row"]
    keys += ["on_bad_id", "on_corrupt_file", "precision", "input"]
    changed = [k for k in keys if owner.config.get(k) != mine.get(k)]
    if changed:
        key = changed[0]
        return f"its {key} is {owner.config.get(key)!r}, this one's {mine.get(key)!r}"
    return f"its input files were others or have changed: {owner.rows} rows, now {plan.total_rows}"


def finish_output(
    layout: OutputLayout,
    plan: JobPlan,
    quarantined: Sequence[Quarantined],
    check: Callable[[], None] = lambda: None,
) -> Manifest:
    """Check that every row has its outcome, then publish the manifest and `_SUCCESS`.

    `quarantined`: units left out while scoring; the plan holds the files left out before. `check`
    raises when the output belongs to another job by now. Raises ResumableError when a unit is
    missing, ContractError above the limit of rejected rows.
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
        config=plan.config.public(),
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
                etag=file.etag,
                rows=file.rows,
                row_groups=file.row_groups,
            )
            for file in plan.files
        ],
    )
    write_json(layout.manifest, manifest, check)
    write_json(layout.success, Success(identity=plan.identity, rows=manifest.rows), check)
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
