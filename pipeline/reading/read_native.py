"""Read encoded rows by our own reader: numbers are decoded to where the engine reads them."""

from __future__ import annotations

import time

from pipeline.planning.job_plan import WorkerPlan
from pipeline.reading.arrow_file import published_columns
from pipeline.reading.bad_rows import dense_findings, null_findings, zeroed
from pipeline.reading.native_file import DENSE_TYPE, native_file
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_data import ReadFacts, UnitColumns
from pipeline.reading.unit_file import UnitFile


def read_native(opened: UnitFile, plan: WorkerPlan, buffer: UnitBuffer) -> UnitColumns | None:
    """A unit in `buffer`; None if our reader does not take the file."""
    unit, columns = opened.unit, plan.columns
    found = native_file(opened, columns)
    if found is None:
        return None
    ids, dense, *vectors = buffer.matrices(
        (len(columns.id_columns), unit.rows, found.id_type),
        (len(columns.dense_columns), unit.rows, DENSE_TYPE),
        *((1, unit.rows, kind) for kind in found.published.values()),
    )
    copied = {name: row[0] for name, row in zip(found.published, vectors, strict=True)}
    names = [*columns.id_columns, *columns.dense_columns, *copied]
    groups = unit.first_row_group, unit.stop_row_group
    found.file.read(names, *groups, [*ids, *dense, *copied.values()])
    published = published_columns(opened, columns, copied)
    decoded = time.perf_counter()
    findings = [
        *null_findings(published, columns.key_columns, "key"),
        *dense_findings(columns.dense_columns, list(dense)),
    ]
    return UnitColumns(
        ReadFacts(found.group_rows, decoded - opened.began, time.perf_counter() - decoded, "cpu"),
        columns.id_columns,
        list(ids),
        zeroed(list(dense), columns.dense_columns, findings),
        published,
        findings,
    )
