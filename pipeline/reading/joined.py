"""The rows of several small files as one unit: what was read of each, copied together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from pipeline.reading.bad_rows import Dense, Finding
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_data import ReadFacts, UnitColumns, UnitPages


def join_pages(files: Sequence[UnitPages], buffer: UnitBuffer) -> UnitPages:
    """One unit, in `buffer`, of files (at least one). ValueError: ids of several sizes, or more
    pages than a unit may have.
    """
    began = time.perf_counter()
    ends = np.cumsum([file.memory.size for file in files]).tolist()
    rows = sum(file.ids.rows for file in files)
    (memory,), dense = buffer.matrices(
        (1, ends[-1], "<u1"), (len(files[0].dense), rows, files[0].dense.dtype.str)
    )
    np.concatenate([file.memory for file in files], out=memory)
    join_dense(files, list(dense))
    ids = files[0].ids
    for file, begin in zip(files[1:], ends, strict=False):
        ids.append(file.ids, begin)
    return UnitPages(join_facts(files, began), ids, memory, dense, join_published(files))


def join_columns(files: Sequence[UnitColumns], buffer: UnitBuffer) -> UnitColumns:
    """One unit, in `buffer`, of decoded files (at least one)."""
    began = time.perf_counter()
    each_field = list(zip(*(file.ids for file in files), strict=True))
    types = [np.result_type(*(ids.dtype for ids in field)).str for field in each_field]
    rows = sum(file.published.num_rows for file in files)
    kinds = sorted(set(types))
    *matrices, dense = buffer.matrices(
        *((types.count(kind), rows, kind) for kind in kinds),
        (len(files[0].dense), rows, "<f4"),
    )
    of_type = dict(zip(kinds, map(iter, matrices), strict=True))
    ids = [
        np.concatenate(field, out=next(of_type[kind]))
        for field, kind in zip(each_field, types, strict=True)
    ]
    join_dense(files, list(dense))
    findings, first_row = [], 0
    for file in files:
        findings += [
            Finding(found.column, found.rows + first_row, found.reason, found.values)
            for found in file.findings
        ]
        first_row += file.published.num_rows
    return UnitColumns(
        join_facts(files, began),
        files[0].id_names,
        ids,
        list(dense),
        join_published(files),
        findings,
    )


def join_dense(files: Sequence[UnitPages | UnitColumns], outs: Sequence[Dense]) -> None:
    """Fill the dense features [N] of [rows of all files]."""
    for feature, out in enumerate(outs):
        np.concatenate([file.dense[feature] for file in files], out=out)


def join_published(files: Sequence[UnitPages | UnitColumns]) -> pa.Table:
    """The published columns, in one chunk."""
    return pa.concat_tables([file.published for file in files]).combine_chunks()


def join_facts(files: Sequence[UnitPages | UnitColumns], began: float) -> ReadFacts:
    """`began`: to join them. The slowest of the readers is told."""
    read_by: set[Literal["gpu", "cpu", "arrow"]] = {file.facts.read_by for file in files}
    slowest: Literal["gpu", "cpu", "arrow"] = "gpu"
    if "gpu" not in read_by:
        slowest = "arrow" if "arrow" in read_by else "cpu"
    joining = time.perf_counter() - began
    return ReadFacts(
        [rows for file in files for rows in file.facts.group_rows],
        sum(file.facts.read_s for file in files) + joining,
        sum(file.facts.encode_s for file in files),
        slowest,
    )
