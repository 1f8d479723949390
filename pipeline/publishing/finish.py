"""The end of a job: count, write the manifest, then `_SUCCESS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pipeline.errors import ContractError, ResumableError
from pipeline.planning.plan import JobPlan
from pipeline.publishing.records import (
    Manifest,
    ManifestFile,
    OutputLayout,
    Quarantined,
    Success,
    UnitRecord,
    finished_units,
    write_json,
)


def finish_output(
    layout: OutputLayout,
    plan: JobPlan,
    quarantined: Sequence[Quarantined],
    check: Callable[[], None] = lambda: None,
) -> Manifest:
    """Check that every row has its outcome, then publish the manifest and `_SUCCESS`.

    `quarantined`: units left out while scoring; the plan holds the files left out before. `check`
    raises when the output is another job's by now. Raises ResumableError when a unit is missing,
    ContractError above the limit of rejected rows.
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
