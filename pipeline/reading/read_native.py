"""Read encoded rows by our own reader: numbers are decoded to where the engine reads them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from pipeline.planning.columns import Columns
from pipeline.planning.job_plan import WorkerPlan
from pipeline.reading.arrow_file import published_columns
from pipeline.reading.bad_rows import Finding, dense_findings, published_findings, zeroed
from pipeline.reading.native_file import DENSE_TYPE, ID_TYPES, NativeFile, native_file
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_data import ReadFacts, UnitColumns
from pipeline.reading.unit_file import UnitFile


def read_native(opened: UnitFile, plan: WorkerPlan, buffer: UnitBuffer) -> UnitColumns | None:
    """A unit in `buffer`; None if our reader does not take the file, and for dense features of
    another type that are not finite as float32.
    """
    unit, columns = opened.unit, plan.columns
    found = native_file(opened, columns)
    if found is None:
        return None
    groups = unit.first_row_group, unit.stop_row_group
    matrices = buffer.matrices(
        *((found.id_types.count(kind), unit.rows, kind) for kind in ID_TYPES),
        (len(columns.dense_columns), unit.rows, DENSE_TYPE),
        *((1, unit.rows, kind) for kind in found.published.values()),
    )
    of_type = dict(zip(ID_TYPES, map(iter, matrices), strict=False))
    ids = [next(of_type[kind]) for kind in found.id_types]
    dense_matrix, *vectors = matrices[len(ID_TYPES) :]
    dense = list(dense_matrix)
    copied = {name: row[0] for name, row in zip(found.published, vectors, strict=True)}
    found.file.read(list(copied), *groups, list(copied.values()))
    nulls = [
        *read_scalars(found, columns, groups, ids, dense),
        *read_lists(found, columns, groups, ids, dense),
    ]
    published = published_columns(opened, columns, copied)
    decoded = time.perf_counter()
    id_names, dense_names = columns.element_names()
    not_finite = list(dense_findings(dense_names, dense))
    scalar = {columns.dense_columns[n] for n in columns.scalar_places.dense}
    for name in scalar & {finding.column for finding in not_finite}:
        if found.file.feature_types([name], *groups) != [DENSE_TYPE]:
            return None  # its text is that of the file's own type
    findings = [*published_findings(unit, columns, published), *nulls, *not_finite]
    return UnitColumns(
        ReadFacts(found.group_rows, decoded - opened.began, time.perf_counter() - decoded, "cpu"),
        id_names,
        ids,
        zeroed(dense, dense_names, findings),
        published,
        findings,
    )


def read_scalars(
    found: NativeFile,
    columns: Columns,
    groups: tuple[int, int],
    ids: Sequence[np.ndarray],
    dense: Sequence[np.ndarray],
) -> Iterator[Finding]:
    """Write the columns of one value a row to their rows of `ids` [F] and `dense` [N]; what is
    null.
    """
    scalars = columns.scalar_places
    wanted = [(columns.id_columns[f], ids[f], "null id") for f in scalars.ids]
    wanted += [(columns.dense_columns[n], dense[n], "null dense value") for n in scalars.dense]
    names, outs = [name for name, _, _ in wanted], [out for _, out, _ in wanted]
    found_nulls = found.file.read_features(names, *groups, outs)
    # A column may be several features: it is told once.
    told = dict(zip(((name, reason) for name, _, reason in wanted), found_nulls, strict=True))
    for (name, reason), rows in told.items():
        if rows.size:
            yield Finding(name, rows, reason, pa.nulls(len(rows), pa.string()))


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
