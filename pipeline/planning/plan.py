"""Planning: from a configuration to the units, without starting or writing anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from pipeline.config.job import JobConfig
from pipeline.errors import ConfigError, ContractError
from pipeline.lakehouse.addresses import is_table, parse_table
from pipeline.planning.entries import entries
from pipeline.planning.inputs import InputFile, scan_inputs
from pipeline.planning.job_plan import JobPlan
from pipeline.planning.models import (
    check_and_join,
    joined_cost,
    joined_limits,
    open_bundles,
    with_pinned_bundles,
)
from pipeline.planning.partition_plans import cut_plan, partitioned_plan
from pipeline.planning.row_cost import row_bytes
from pipeline.planning.segments import check_segments
from pipeline.planning.units import MAX_UNITS
from pipeline.storage.address import is_remote


def make_plan(config: JobConfig) -> JobPlan:
    """Open the bundle, read the footers, check the contract, cut units; writes nothing.

    Raises ConfigError (bundle, paths, keys) and ContractError (input).
    """
    config = with_pinned_tables(config.with_absolute_paths())
    opened = open_bundles(config)
    config = with_pinned_bundles(config, opened)
    with suppress(PermissionError):  # of an input folder: the scan names it
        _refuse_output_in_input(config)
    scan = scan_inputs(config, joined_limits(opened, config))
    _refuse_input_in_output(scan.files, config.output)
    check_min_rows(scan.files, config)
    check_segments(scan.files, config.segments)
    joined = check_and_join(scan.files, opened, config)
    columns = joined.columns.with_partitions(scan.partitions, scan.held)
    if config.table is not None and scan.files:
        schema = next((file for file in scan.files if file.rows), scan.files[0]).arrow_schema
        named = {name: schema.field(name).type for name in columns.published} | columns.types
        published = pa.schema(named)
        parse_table(config.table).check(published, config.output)
    bytes_a_row = row_bytes(scan.files, columns, joined.ids, joined.dense)
    settled = {"form": columns.form, "key_columns": list(columns.key_columns)}
    config = config.model_copy(update=settled)
    whole = JobPlan(
        identity="",
        config=config,
        bundle_digest=opened[0].bundle.digest,
        registered=opened[0].registered,
        others=joined.others,
        columns=columns,
        files=scan.files,
        units=[],
        quarantined=scan.quarantined,
        total_rows=sum(file.rows for file in scan.files),
        total_bytes=sum(file.size for file in scan.files),
        row_bytes=bytes_a_row,
        model=joined_cost(opened, config),
    )
    plan = partitioned_plan(whole, scan.partitions) if config.partition_by else cut_plan(whole)
    if len(plan.units) > MAX_UNITS:
        unit_rows = plan.config.unit_rows
        raise ConfigError(
            f"the input makes {len(plan.units):,} units of up to {unit_rows} rows, at most "
            f"{MAX_UNITS:,} can be scored; set unit_rows higher, or write larger files"
        )
    return plan


def with_pinned_tables(config: JobConfig) -> JobConfig:
    """The job with the version of each table among its input that the table has now."""
    given = entries(config.input)
    if not any(map(is_table, given)):
        return config
    if config.wait_for is not None:
        raise ConfigError("wait_for waits for files: an input that is a table has none to wait for")
    found = [str(parse_table(one).pinned()) if is_table(one) else one for one in given]
    return config.model_copy(update={"input": found})


def check_min_rows(files: Sequence[InputFile], config: JobConfig) -> None:
    """Raise ContractError when the input has fewer rows than `min_rows`."""
    rows = sum(file.rows for file in files)
    if rows < config.min_rows:
        where = ", ".join(entries(config.input))
        advice = "lower min_rows" if rows else "set min_rows to 0"
        raise ContractError(
            f"the input {where:.500} has {rows:,} rows in {len(files):,} files, fewer than "
            f"min_rows {config.min_rows:,}; if that is right, {advice}"
        )


def _refuse_input_in_output(files: Sequence[InputFile], output: str) -> None:
    """Scores would lie among the input, and `overwrite` might remove it as an old part."""
    folder = output if is_remote(output) else str(Path(output).resolve())
    folder = folder.rstrip("/") + "/"
    inside = next((file.path for file in files if file.path.startswith(folder)), None)
    if inside is not None:
        raise ConfigError(
            f"the input {inside} lies in the output {output}, where only scores may be; choose "
            "another output"
        )


def _refuse_output_in_input(config: JobConfig) -> None:
    """Scores below an input folder would be input of the next run."""
    if is_remote(config.output):
        output, given = config.output, [item for item in entries(config.input) if is_remote(item)]
        inside = [item for item in given if f"{output}/".startswith(f"{item}/")]
    else:
        output = str(Path(config.output).resolve())
        given = [item for item in entries(config.input) if os.path.isdir(item)]  # noqa: PTH112 - many
        inside = [item for item in given if Path(output).is_relative_to(Path(item).resolve())]
    if inside:
        raise ConfigError(
            f"the output {output} lies in the input folder {inside[0]}, where the next run would "
            "read the scores as input; choose an output outside it"
        )
