"""Read any rows by pyarrow: encoded columns of every type, and raw columns, which the bundle's
feature schema encodes.
"""

from __future__ import annotations

import time

import pyarrow as pa

from dpiframe_core.features.encoder import Encoder
from dpiframe_core.features.errors import EncodeError
from dpiframe_core.features.schema import FeatureSchema
from pipeline.errors import UnitFailedError
from pipeline.planning.job_plan import WorkerPlan
from pipeline.planning.units import Unit
from pipeline.reading.arrow_file import load, partition_columns, published_table
from pipeline.reading.bad_rows import (
    Dense,
    Ids,
    dense_findings,
    published_findings,
    zeroed,
)
from pipeline.reading.encoded_columns import encoded_columns
from pipeline.reading.open_encoder import open_encoder
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_data import ReadFacts, UnitColumns
from pipeline.reading.unit_file import UnitFile


def read_arrow(opened: UnitFile, plan: WorkerPlan, buffer: UnitBuffer) -> UnitColumns:
    """A unit; UnitFailedError says why there is none. `buffer` stays unused."""
    unit, columns = opened.unit, plan.columns
    # Dictionaries are kept for columns that are only encoded, as each value is hashed once then.
    strings = [name for name in columns.source_columns if name not in columns.published]
    table, group_rows = load(opened, columns.read_columns, strings)
    for name, values in partition_columns(unit, columns).items():
        table = table.append_column(name, values)
    loaded = time.perf_counter()
    published = published_table({name: table.column(name) for name in columns.published}, columns)
    findings = list(published_findings(unit, columns, published))
    if columns.form == "encoded":
        id_names, ids, dense_names, dense, nulls = encoded_columns(table, columns)
        findings += nulls
    else:
        id_names, ids, dense_names, dense = encoded_raw(unit, table, plan)
    findings += dense_findings(dense_names, dense, table)
    dense = zeroed(dense, dense_names, findings)
    facts = ReadFacts(group_rows, loaded - opened.began, time.perf_counter() - loaded, "arrow")
    return UnitColumns(facts, id_names, ids, dense, published, findings)


def encoded_raw(
    unit: Unit, table: pa.Table, plan: WorkerPlan
) -> tuple[list[str], list[Ids], list[str], list[Dense]]:
    """Ids and dense features with their names, of each of the job's schemas in turn."""
    id_names: list[str] = []
    ids: list[Ids] = []
    dense_names: list[str] = []
    dense: list[Dense] = []
    for location, digest in plan.encoding_bundles:
        encoder = open_encoder(location, digest)
        id_names += [name for name, _ in encoder.schema.field_features]
        dense_names += raw_dense_names(encoder.schema)
        some_ids, some_dense = encode(unit, table, encoder)
        ids, dense = ids + some_ids, dense + some_dense
    return id_names, ids, dense_names, dense


def raw_dense_names(schema: FeatureSchema) -> list[str]:
    """What findings call each dense feature: its column, or the element of its column's lists."""
    names = []
    for feature in schema.dense:
        elements, column = feature.elements, feature.column
        names += elements.shape.element_names(column) if elements else [column]
    return names


def encode(unit: Unit, table: pa.Table, encoder: Encoder) -> tuple[list[Ids], list[Dense]]:
    """Ids [F] of [B] and dense features [N] of [B] from raw columns; UnitFailedError."""
    try:
        encoded = encoder.encode(table)
    except EncodeError as error:
        raise UnitFailedError("bad_row", f"{unit.path}: {error}") from error
    except ValueError as error:
        raise UnitFailedError("corrupt", f"corrupt parquet: {unit.path}: {error}") from error
    return encoded.ids, encoded.dense
