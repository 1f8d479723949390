"""What must hold before an output is claimed and before it is finished, whatever holds it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from pipeline.errors import ConfigError, ContractError, ResumableError
from pipeline.planning.inputs import Quarantined
from pipeline.planning.job_plan import JobPlan
from pipeline.publishing.records import (
    IdentityFile,
    Manifest,
    ManifestFile,
    UnitRecord,
    foreign_parts,
    recorded_unit,
    scores_among,
)


def check_owner(
    address: str,
    plan: JobPlan,
    names: Collection[str],
    owner: Callable[[], IdentityFile | None],
) -> bool:
    """Whether a job may go on in an output of these files; False: it replaces the scores there.

    What another job left before it published anything is replaced without being asked. Raises
    ConfigError when the output belongs to another job and `overwrite` is off, or holds parquet
    files that no job wrote.
    """
    foreign = foreign_parts(names)
    if foreign:
        raise ConfigError(
            f"{address}/{foreign[0]} ({len(foreign)} such files) was not written by a job, but "
            "readers would take it for scores; move it away or choose another output"
        )
    problem = _other_owner(plan, names, owner)
    if problem is None:
        return True
    if scores_among(names) and not plan.config.overwrite:
        raise ConfigError(
            f"output {address} {problem}; choose another output, or set overwrite=true to "
            "replace the scores in it"
        )
    return False


def _other_owner(
    plan: JobPlan, names: Iterable[str], read: Callable[[], IdentityFile | None]
) -> str | None:
    """Why this job cannot continue in the output; None if it can, or if the output is empty."""
    try:
        owner = read()
    except ConfigError as error:
        return f"has a broken owner: {error}"
    if owner is None:
        some = [name for name in names if scores_among([name]) and not recorded_unit(name)]
        return f"holds {min(some)} but no _identity.json" if some else None
    if owner.identity == plan.identity:
        return None
    return f"belongs to another job ({difference(owner, plan)})"


def difference(owner: IdentityFile, plan: JobPlan) -> str:
    """What differs between two jobs, in words."""
    if owner.bundle_digest != plan.bundle_digest:
        return f"its bundle is {owner.bundle_digest[:12]}, this one {plan.bundle_digest[:12]}"
    if owner.bundles != plan.bundles:
        theirs, ours = (_named(found) for found in (owner.bundles, plan.bundles))
        return f"its bundles beside that are {theirs}, this one's {ours}"
    mine: dict[str, Any] = plan.config.public()
    keys = ["form", "key_columns", "carry_columns", "field_columns", "unit_rows", "on_bad_row"]
    keys += ["outputs", "segments", "on_bad_id", "on_corrupt_file", "precision", "where", "input"]
    changed = [k for k in keys if owner.config.get(k) != mine.get(k)]
    if changed:
        key = changed[0]
        return f"its {key} is {owner.config.get(key)!r}, this one's {mine.get(key)!r}"
    return f"its input files were others or have changed: {owner.rows} rows, now {plan.total_rows}"


def _named(bundles: Mapping[str, str]) -> str:
    """Bundles by name, with the begin of their digests."""
    return ", ".join(f"{name} {digest[:12]}" for name, digest in bundles.items()) or "none"


def needed_units(plan: JobPlan, quarantined: Sequence[Quarantined]) -> list[str]:
    """The units that must be published, in order."""
    left_out = {entry.unit for entry in quarantined}
    return [unit.name for unit in plan.units if unit.name not in left_out]


def make_manifest(
    plan: JobPlan, records: Mapping[str, UnitRecord], quarantined: Sequence[Quarantined]
) -> Manifest:
    """The manifest of a job whose every row has its outcome.

    Raises ResumableError when a unit is missing, ContractError above the limit of rejected rows.
    """
    check_complete(plan, records, quarantined)
    rejected = sum(record.rejected for record in records.values())
    check_rejected(plan, rejected)
    return Manifest(
        identity=plan.identity,
        bundle_digest=plan.bundle_digest,
        bundles=plan.bundles,
        outputs=plan.outputs,
        config=plan.config.public(),
        key_columns=list(plan.columns.key_columns),
        carry_columns=list(plan.columns.carry_columns),
        rows=sum(record.rows for record in records.values()),
        scored=sum(record.scored for record in records.values()),
        rejected=rejected,
        units=[records[name] for name in needed_units(plan, quarantined)],
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
                f"unit {unit.name} ({unit.where}) has no record or its part is gone: something "
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
