"""Finished outputs of any rows, written without a job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from unit_records import record

from pipeline.publishing.records import (
    Manifest,
    OutputLayout,
    Success,
    UnitRecord,
    part_name,
    write_json,
)


def write_output(folder: Path, tables: Iterable[pa.Table], keys: Sequence[str] = ("key",)) -> Path:
    """An output whose units are these tables, in this order."""
    return finish_output(folder, [write_part(folder, *one) for one in enumerate(tables)], keys)


def write_part(folder: Path, index: int, table: pa.Table) -> UnitRecord:
    """A unit whose rows are a table."""
    folder.mkdir(parents=True, exist_ok=True)
    unit = f"u{index:06d}-{index:08x}"
    path = folder / part_name(unit)
    pq.write_table(table, path)
    rows, size = table.num_rows, path.stat().st_size
    digest = sha256(path.read_bytes()).hexdigest()
    return record(unit, size, index=index, rows=rows, scored=rows, part=path.name, sha256=digest)


def finish_output(folder: Path, units: list[UnitRecord], keys: Sequence[str] = ("key",)) -> Path:
    """An output of units that have been written."""
    layout = OutputLayout(folder)
    rows = sum(unit.rows for unit in units)
    manifest = Manifest(
        identity="1" * 64,
        bundle_digest="2" * 64,
        config={},
        key_columns=list(keys),
        carry_columns=[],
        rows=rows,
        scored=rows,
        rejected=0,
        units=units,
        quarantined=[],
        files=[],
    )
    write_json(layout.manifest, manifest)
    write_json(layout.success, Success(identity=manifest.identity, rows=rows))
    return folder
