"""Finished outputs of any rows, written without a job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from unit_records import record

from pipeline.publishing.records import Manifest, OutputLayout, Success, part_name, write_json


def write_output(folder: Path, tables: Iterable[pa.Table], keys: Sequence[str] = ("key",)) -> Path:
    """An output whose units are these tables, in this order."""
    layout = OutputLayout(folder)
    folder.mkdir(parents=True, exist_ok=True)
    units = []
    for index, table in enumerate(tables):
        unit = f"u{index:06d}-{index:08x}"
        path = folder / part_name(unit)
        pq.write_table(table, path)
        rows, size = table.num_rows, path.stat().st_size
        digest = sha256(path.read_bytes()).hexdigest()
        found = record(
            unit, size, index=index, rows=rows, scored=rows, part=path.name, sha256=digest
        )
        units.append(found)
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
