"""Read any rows by pyarrow: encoded columns of every type, and raw columns, which the bundle's
feature schema encodes.
"""

from __future__ import annotations

import socket
import time

import numpy as np
import pyarrow as pa

from dpiframe_core.bundle.encoder import bundled_encoder
from dpiframe_core.errors import BundleError
from dpiframe_core.features.encoder import Encoder
from dpiframe_core.features.errors import EncodeError
from pipeline.errors import UnitFailedError
from pipeline.planning.job_plan import WorkerPlan
from pipeline.planning.units import Unit
from pipeline.reading.arrow_file import load, one_chunk, published_array
from pipeline.reading.bad_rows import (
    Dense,
    Ids,
    dense_findings,
    null_findings,
    zeroed,
)
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_data import ReadFacts, UnitColumns


def read_arrow(unit: Unit, plan: WorkerPlan, buffer: UnitBuffer) -> UnitColumns:
    """A unit; UnitFailedError says why there is none. `buffer` stays unused."""
    started = time.perf_counter()
    columns = plan.columns
    # Dictionaries are kept for columns that are only encoded, as each value is hashed once then.
    strings = [name for name in columns.source_columns if name not in columns.published]
    table, group_rows = load(unit, columns.read_columns, strings)
    loaded = time.perf_counter()
    findings = list(null_findings(table, columns.key_columns, "key"))
    if columns.form == "encoded":
        id_names, dense_names = columns.id_columns, columns.dense_columns
        findings += null_findings(table, id_names, "id")
        findings += null_findings(table, dense_names, "dense value")
        ids = [as_ids(table.column(name)) for name in id_names]
        dense = [as_dense(table.column(name)) for name in dense_names]
    else:
        encoder = open_encoder(plan)
        id_names = tuple(field.name for field in encoder.schema.fields)
        dense_names = tuple(feature.column for feature in encoder.schema.dense)
        ids, dense = encode(unit, table, encoder)
    findings += dense_findings(dense_names, dense, table)
    dense = zeroed(dense, dense_names, findings)
    published = pa.table({name: published_array(table.column(name)) for name in columns.published})
    facts = ReadFacts(group_rows, loaded - started, time.perf_counter() - loaded, "arrow")
    return UnitColumns(facts, id_names, ids, dense, published, findings)


def open_encoder(plan: WorkerPlan) -> Encoder:
    """The encoder of the job's bundle; UnitFailedError."""
    try:
        return bundled_encoder(plan.config.bundle, plan.bundle_digest)
    except (BundleError, OSError) as error:
        raise UnitFailedError(
            "bundle",
            f"{error}, on host {socket.gethostname()}: it must not change while a job runs",
        ) from error


def encode(unit: Unit, table: pa.Table, encoder: Encoder) -> tuple[list[Ids], list[Dense]]:
    """Ids [F] of [B] and dense features [N] of [B] from raw columns; UnitFailedError."""
    try:
        encoded = encoder.encode(table)
    except EncodeError as error:
        raise UnitFailedError("bad_row", f"{unit.path}: {error}") from error
    except ValueError as error:
        raise UnitFailedError("corrupt", f"corrupt parquet: {unit.path}: {error}") from error
    return encoded.ids, encoded.dense


def as_ids(column: pa.ChunkedArray) -> Ids:
    """An integer column as int32, int64 or uint64 [B], without a copy if it has that type and no
    nulls; nulls become 0.
    """
    values = without_nulls(published_array(column))
    if values.dtype.itemsize < 4:
        return values.astype(np.int32)
    return values.astype(np.int64) if values.dtype == np.uint32 else values


def as_dense(column: pa.ChunkedArray) -> Dense:
    """A numeric column as float32 [B], without a copy if it is that; nulls become 0."""
    values = without_nulls(one_chunk(column))
    with np.errstate(over="ignore"):  # a value beyond float32 becomes infinite, which is a finding
        return values.astype(np.float32, copy=False)


def without_nulls(array: pa.Array) -> np.ndarray:
    """The numbers of an array, 0 for null."""
    filled = array.fill_null(0) if array.null_count else array
    numbers: np.ndarray = filled.to_numpy(zero_copy_only=True)
    return numbers
