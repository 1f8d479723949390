"""Units and identities: of a whole job, or of each of its partitions (`partition_by`)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.errors import ConfigError, ContractError
from pipeline.planning.identity import job_identity
from pipeline.planning.inputs import InputFile
from pipeline.planning.job_plan import JobPlan
from pipeline.planning.partitions import partition_folder
from pipeline.planning.units import auto_unit_rows, cut_units, empty_unit, joins_files
from pipeline.storage.address import is_remote, join


def cut_plan(plan: JobPlan, folder: str = "") -> JobPlan:
    """The plan with its identity, its unit size and its units, which follow from its files."""
    unit_rows = plan.config.unit_rows
    # A file that turns out to be corrupt is left out alone.
    join = plan.config.on_corrupt_file == "fail"
    if unit_rows == "auto":
        unit_rows = auto_unit_rows(plan.files, plan.row_bytes, join)
    join = join and joins_files(plan.files, unit_rows)
    config = plan.config.model_copy(update={"unit_rows": unit_rows})
    # Which other partitions are scored beside one does not count in its identity.
    counted = config.model_copy(update={"where": None}) if folder else config
    identity = job_identity(
        plan.files, plan.bundle_digest, counted, plan.columns.partitions, plan.bundles, join
    )
    if config.table is not None:
        # A folder of its own: what the table has of an earlier job stays until the table is told.
        own = identity[:16]
        config = config.model_copy(update={"output": _below(config.output, own)})
        folder = folder and f"{folder}/{own}"
    units = cut_units(plan.files, unit_rows, identity, folder, join)
    units = units or empty_unit(plan.files, identity, folder)
    return plan.model_copy(update={"identity": identity, "config": config, "units": units})


def partitioned_plan(plan: JobPlan, types: Mapping[str, str]) -> JobPlan:
    """The plan cut into a part for each value of `partition_by`, in the order of the folders.

    ConfigError: a column is none of the input's partition columns; ContractError: a partition has
    fewer rows than `min_rows`.
    """
    config = plan.config
    unknown = [name for name in config.partition_by if name not in types]
    if unknown:
        known = ", ".join(types) or "none"
        raise ConfigError(
            f"partition_by names {unknown[0]}, which is no partition column of the input (it has: "
            f"{known}); only folder names such as date=2026-11-19 below the input give them"
        )
    parts = []
    for folder, files in sorted(_by_folder(plan.files, config.partition_by).items()):
        rows = sum(file.rows for file in files)
        if rows < config.min_rows:
            raise ContractError(
                f"the partition {folder} has {rows:,} rows, fewer than min_rows {config.min_rows:,}"
            )
        part = plan.model_copy(
            update={
                "config": config.model_copy(update={"output": _below(config.output, folder)}),
                "files": files,
                "quarantined": [],
                "total_rows": rows,
                "total_bytes": sum(file.size for file in files),
            }
        )
        parts.append(cut_plan(part, folder))
    if not parts:
        raise ContractError("no file of the input can be read, so there is no partition")
    largest = max(part.config.unit_rows for part in parts if part.config.unit_rows != "auto")
    return plan.model_copy(
        update={
            "config": config.model_copy(update={"unit_rows": largest}),
            "identity": hashlib.sha256("".join(p.identity for p in parts).encode()).hexdigest(),
            "units": [unit for part in parts for unit in part.units],
            "parts": _with_quarantined(plan, parts),
        }
    )


def _by_folder(files: Sequence[InputFile], columns: Sequence[str]) -> dict[str, list[InputFile]]:
    found: dict[str, list[InputFile]] = {}
    for file in files:
        folder = partition_folder({name: file.partitions.get(name) for name in columns})
        found.setdefault(folder, []).append(file)
    return found


def _with_quarantined(plan: JobPlan, parts: list[JobPlan]) -> list[JobPlan]:
    """Files that were left out belong to no identity; the first partition's manifest lists them."""
    if not parts or not plan.quarantined:
        return parts
    return [parts[0].model_copy(update={"quarantined": plan.quarantined}), *parts[1:]]


def _below(output: str, folder: str) -> str:
    return join(output, folder) if is_remote(output) else str(Path(output) / folder)
