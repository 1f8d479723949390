"""What must hold before an output is claimed and before it is finished, whatever holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import ContractError, ResumableError
from pipeline.planning.inputs import Quarantined
from pipeline.planning.job_plan import JobPlan
from pipeline.publishing.records import IdentityFile, Manifest, ManifestFile, UnitRecord


def difference(owner: IdentityFile, plan: JobPlan) -> str:
    """What differs between two jobs, in words."""
    if owner.bundle_digest != plan.bundle_digest:
        return f"its bundle is {owner.bundle_digest[:12]}, this one {plan.bundle_digest[:12]}"
    mine: dict[str, Any] = plan.config.public()
    keys = ["form", "key_columns", "carry_columns", "field_columns", "unit_rows", "on_bad_row"]
    keys += ["on_bad_id", "on_corrupt_file", "precision", "where", "input"]
    changed = [k for k in keys if owner.config.get(k) != mine.get(k)]
    if changed:
        key = changed[0]
        return f"its {key} is {owner.config.get(key)!r}, this one's {mine.get(key)!r}"
    return f"its input files were others or have changed: {owner.rows} rows, now {plan.total_rows}"


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
