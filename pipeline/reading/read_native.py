"""Read encoded rows by our own reader: numbers are decoded to where the engine reads them."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa

from pipeline.planning.columns import Columns
from pipeline.planning.job_plan import WorkerPlan
from pipeline.reading.arrow_file import published_columns
from pipeline.reading.bad_rows import Finding, dense_findings, null_findings, zeroed
from pipeline.reading.native_file import DENSE_TYPE, NativeFile, native_file
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_data import ReadFacts, UnitColumns
from pipeline.reading.unit_file import UnitFile


def read_native(opened: UnitFile, plan: WorkerPlan, buffer: UnitBuffer) -> UnitColumns | None:
    """A unit in `buffer`; None if our reader does not take the file."""
    unit, columns = opened.unit, plan.columns
    found = native_file(opened, columns)
    if found is None:
        return None
    matrix, dense_matrix, wide, *vectors = buffer.matrices(
        (len(columns.id_columns), unit.rows, found.id_type),
        (len(columns.dense_columns), unit.rows, DENSE_TYPE),
        (len(found.wide_places), unit.rows, "<i8"),
        *((1, unit.rows, kind) for kind in found.published.values()),
    )
    ids, dense = list(matrix), list(dense_matrix)
    for place, row in zip(found.wide_places, wide, strict=True):
        ids[place] = row
    copied = {name: row[0] for name, row in zip(found.published, vectors, strict=True)}
    scalars = columns.scalar_places
    wanted = [(columns.id_columns[f], ids[f]) for f in scalars.ids]
    wanted += [(columns.dense_columns[n], dense[n]) for n in scalars.dense]
    wanted += copied.items()
    groups = unit.first_row_group, unit.stop_row_group
    found.file.read([name for name, _ in wanted], *groups, [out for _, out in wanted])
    nulls = read_lists(found, columns, groups, ids, dense)
    published = published_columns(opened, columns, copied)
    decoded = time.perf_counter()
    id_names, dense_names = columns.element_names()
    findings = [
        *null_findings(published, columns.key_columns, "key"),
        *nulls,
        *dense_findings(dense_names, dense),
    ]
    return UnitColumns(
        ReadFacts(found.group_rows, decoded - opened.began, time.perf_counter() - decoded, "cpu"),
        id_names,
        ids,
        zeroed(dense, dense_names, findings),
        published,
        findings,
    )


def read_lists(
    found: NativeFile,
    columns: Columns,
    groups: tuple[int, int],
    ids: list[np.ndarray],
    dense: list[np.ndarray],
) -> list[Finding]:
    """Write the elements of lists to their rows of `ids` [F] and `dense` [N]; what is null."""
    findings = []
    for each in columns.lists:
        rows = dense if each.dense else ids
        outs = [rows[place] for place in each.places]
        bad = found.file.read_list(
            each.column,
            *groups,
            outs,
            pad=each.pad,
            pads_before=each.side == "before",
            keeps_last=each.keep == "last",
        )
        if len(bad):
            nulls = pa.nulls(len(bad), pa.string())
            findings.append(Finding(each.column, bad, "null in a list", nulls))
    return findings
