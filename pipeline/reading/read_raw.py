"""Read raw rows by our own reader: values go from the pages of the file to ids at once, those of a
dictionary once for all rows; or a GPU makes ids of pages, of which only dictionaries are encoded
here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dpiframe_core import _core
from pipeline.planning.job_plan import WorkerPlan
from pipeline.reading.arrow_file import published_columns
from pipeline.reading.bad_rows import dense_findings, published_findings
from pipeline.reading.native_file import DENSE_TYPE, plain_published
from pipeline.reading.open_encoder import open_encoder
from pipeline.reading.unit_buffers import UnitBuffer, aligned
from pipeline.reading.unit_data import ReadFacts, UnitColumns, UnitPages
from pipeline.reading.unit_file import UnitFile
from pipeline.reading.unpacking import AS_STORED

PADDING = 64  # bytes behind the pages of a unit


class Feature(NamedTuple):
    """What findings call a feature, its column, and what encodes the column's values."""

    name: str
    column: str
    encoder: _core.ValueEncoder


class Features(NamedTuple):
    """Those of `ids` [F] and of `dense` [N]."""

    fields: list[Feature]
    dense: list[Feature]


class RawFile(NamedTuple):
    """An open file, the unit's row groups and the rows of each, the features of the bundles that
    encode, and numpy's type of each published column which is a plain number.
    """

    file: _core.ParquetFile
    groups: tuple[int, int]
    group_rows: list[int]
    features: Features
    plain: dict[str, str]


def read_raw_pages(opened: UnitFile, plan: WorkerPlan, buffer: UnitBuffer) -> UnitPages | None:
    """A unit in `buffer` whose ids a GPU makes of its pages; None where `read_raw` gives None, and
    for a null key.
    """
    found = raw_file(opened, plan)
    if found is None or not found.features.fields:
        return None
    features = found.features
    names = [feature.column for feature in features.fields]
    encoders = [feature.encoder for feature in features.fields]
    size = found.file.encoded_pages_bytes(names, *found.groups, encoders)
    unpacking = buffer.unpacking or AS_STORED
    most = unpacking.memory(size, found.file.unpacked_bytes(names, *found.groups))
    (memory,), dense, *vectors = buffer.matrices(
        (1, most, "<u1"),
        (len(features.dense), opened.unit.rows, DENSE_TYPE),
        *((1, opened.unit.rows, kind) for kind in found.plain.values()),
    )
    ids = found.file.read_encoded_pages(names, *found.groups, encoders, memory, unpacking.above)
    published = read_rest(opened, plan, found, list(dense), vectors)
    if published is None or any(published_findings(opened.unit, plan.columns, published)):
        return None
    facts = ReadFacts(found.group_rows, time.perf_counter() - opened.began, 0.0, "gpu")
    return UnitPages(
        facts, ids, memory[: aligned(ids.compressed_bytes + PADDING)], dense, published
    )


def read_raw(opened: UnitFile, plan: WorkerPlan, buffer: UnitBuffer) -> UnitColumns | None:
    """A unit in `buffer`; None if our reader does not take its columns, for lists, for columns
    that folder names give, and for dense values that are not finite.
    """
    found = raw_file(opened, plan)
    if found is None:
        return None
    features, rows = found.features, opened.unit.rows
    ids, dense, *vectors = buffer.matrices(
        (len(features.fields), rows, "<i4"),
        (len(features.dense), rows, DENSE_TYPE),
        *((1, rows, kind) for kind in found.plain.values()),
    )
    published = read_rest(opened, plan, found, list(dense), vectors, list(ids))
    if published is None:
        return None
    findings = list(published_findings(opened.unit, plan.columns, published))
    facts = ReadFacts(found.group_rows, time.perf_counter() - opened.began, 0.0, "cpu")
    names = [feature.name for feature in features.fields]
    return UnitColumns(facts, names, list(ids), list(dense), published, findings)


def raw_file(opened: UnitFile, plan: WorkerPlan) -> RawFile | None:
    """The file of a unit; None if our reader does not take its columns. UnitFailedError."""
    unit, columns = opened.unit, plan.columns
    if columns.form != "raw" or not columns.partitions.keys().isdisjoint(columns.source_columns):
        return None
    features = value_encoders(plan)
    if features is None:
        return None
    opened.check()  # before the file is opened, as it is kept open for its other units
    file, groups = opened.native(), (unit.first_row_group, unit.stop_row_group)
    group_rows = file.group_rows[slice(*groups)]
    if sum(group_rows) != unit.rows:
        return None
    if not all(file.is_encodable(name, *groups) for name in columns.source_columns):
        return None
    return RawFile(file, groups, group_rows, features, plain_published(opened, columns))


def read_rest(
    opened: UnitFile,
    plan: WorkerPlan,
    found: RawFile,
    dense: list[np.ndarray],
    vectors: list[np.ndarray],
    ids: Sequence[np.ndarray] = (),
) -> pa.Table | None:
    """Fill `dense` [N], the plain columns that are published (`vectors`) and the `ids` [F], if
    there are any; the published columns. None for dense values that are not finite.
    """
    features = found.features
    wanted = [*(features.fields if ids else ()), *features.dense]
    names, encoders = [each.column for each in wanted], [each.encoder for each in wanted]
    found.file.read_encoded(names, *found.groups, encoders, [*ids, *dense])
    copied = {name: row[0] for name, row in zip(found.plain, vectors, strict=True)}
    found.file.read(list(copied), *found.groups, list(copied.values()))
    published = published_columns(opened, plan.columns, copied)
    if any(dense_findings([feature.name for feature in features.dense], dense)):
        return None
    return published


def value_encoders(plan: WorkerPlan) -> Features | None:
    """The features of the bundles that encode, one bundle after another; None where some read
    lists. UnitFailedError.
    """
    found = Features([], [])
    for location, digest in plan.encoding_bundles:
        encoder = open_encoder(location, digest)
        schema, (fields, dense) = encoder.schema, encoder.value_encoders
        if any(feature.elements for feature in schema.features):
            return None
        for field, values in zip(schema.fields, fields, strict=True):
            found.fields.append(Feature(field.name, field.column, values))
        for feature, values in zip(schema.dense, dense, strict=True):
            found.dense.append(Feature(feature.column, feature.column, values))
    return found
