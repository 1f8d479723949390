"""Read the files of a joined unit for a GPU to decode, in one call: what `read_pages` does for one.

Each call of a reader waits for Python's lock, which a file of 10,000 rows is too small for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow as pa

from dpiframe_core import _core
from pipeline.planning.job_plan import WorkerPlan
from pipeline.planning.units import Unit
from pipeline.reading.bad_rows import dense_findings
from pipeline.reading.native_file import DENSE_TYPE
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_data import ReadFacts, UnitPages
from pipeline.reading.unit_file import open_native, plain_columns
from pipeline.reading.unpacking import AS_STORED

PADDING = 64  # bytes behind the pages of a file


def read_joined_pages(
    files: Sequence[Unit], plan: WorkerPlan, buffer: UnitBuffer
) -> UnitPages | None:
    """A unit in `buffer`; None for what `read_pages` does not take, for objects, for published
    columns that are no plain numbers, and for files that changed, which others name.
    """
    began, columns = time.perf_counter(), plan.columns
    if columns.form != "encoded" or columns.lists or not columns.id_columns:
        return None
    if columns.partitions or columns.held or columns.types or any(file.etag for file in files):
        return None
    first = open_native(files[0].path, files[0].size, files[0].mtime_ns)
    plain = plain_columns(first.empty())
    kinds = [plain.get(name, "") for name in columns.published]
    if not all(kinds):
        return None
    rows = sum(file.rows for file in files)
    unpacking = buffer.unpacking or AS_STORED
    most = sum(file.size + PADDING for file in files)  # more than all of their pages
    (memory,), dense, *vectors = buffer.matrices(
        (1, most + int(unpacking.room * most), "<u1"),
        (len(columns.dense_columns), rows, DENSE_TYPE),
        *((1, rows, kind) for kind in kinds),
    )
    published = [row[0] for row in vectors]
    ids, group_rows, nulls = _core.read_whole_files(
        [(file.path, file.size, file.mtime_ns, file.rows) for file in files],
        list(zip(columns.published, kinds, published, strict=True)),
        list(zip(columns.dense_columns, dense, strict=True)),
        list(columns.id_columns),
        memory,
        unpacking.above,
    )
    if nulls or any(dense_findings(columns.dense_columns, list(dense))):
        return None
    named = zip(columns.published, map(pa.array, published), strict=True)
    facts = ReadFacts(group_rows, time.perf_counter() - began, 0.0, "gpu")
    return UnitPages(facts, ids, memory, dense, pa.table(dict(named)))
