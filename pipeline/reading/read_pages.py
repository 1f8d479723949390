"""Read encoded rows for a GPU to decode: ids stay data pages."""

from __future__ import annotations

import time

from pipeline.planning.job_plan import WorkerPlan
from pipeline.reading.arrow_file import published_columns
from pipeline.reading.bad_rows import dense_findings, published_findings
from pipeline.reading.native_file import DENSE_TYPE, native_file
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_data import ReadFacts, UnitPages
from pipeline.reading.unit_file import UnitFile
from pipeline.reading.unpacking import LONG_PAGES


def read_pages(opened: UnitFile, plan: WorkerPlan, buffer: UnitBuffer) -> UnitPages | None:
    """A unit in `buffer`; None for other files, for lists, and for a null key or a dense value that
    is null or not finite.
    """
    unit, columns = opened.unit, plan.columns
    found = None if columns.lists else native_file(opened, columns)
    if found is None or not columns.id_columns:
        return None
    groups = unit.first_row_group, unit.stop_row_group
    id_columns = list(columns.id_columns)
    size = found.file.pages_bytes(id_columns, *groups)
    stored = opened.stored_pages(id_columns, size)
    unpacking = buffer.unpacking or LONG_PAGES
    most = unpacking.memory(size, found.file.unpacked_bytes(id_columns, *groups))
    (memory,), dense, *vectors = buffer.matrices(
        (1, most if stored is None else 0, "<u1"),
        (len(columns.dense_columns), unit.rows, DENSE_TYPE),
        *((1, unit.rows, kind) for kind in found.published.values()),
    )
    copied = {name: row[0] for name, row in zip(found.published, vectors, strict=True)}
    found.file.read(list(copied), *groups, list(copied.values()))
    nulls = found.file.read_features(list(columns.dense_columns), *groups, list(dense))
    memory = memory if stored is None else stored
    ids = found.file.read_pages(id_columns, *groups, memory, unpacking.above)
    published = published_columns(opened, columns, copied)
    if any(map(len, nulls)) or any(published_findings(unit, columns, published)):
        return None
    if any(dense_findings(columns.dense_columns, list(dense))):
        return None
    facts = ReadFacts(found.group_rows, time.perf_counter() - opened.began, 0.0, "gpu")
    return UnitPages(facts, ids, memory, dense, published)
