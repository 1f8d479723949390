"""Read raw rows by our own reader: values go from the pages of the file to ids at once, those of a
dictionary once for all rows.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from dpiframe_core import _core
from pipeline.planning.job_plan import WorkerPlan
from pipeline.reading.arrow_file import published_columns
from pipeline.reading.bad_rows import dense_findings, null_findings
from pipeline.reading.native_file import DENSE_TYPE, plain_published
from pipeline.reading.open_encoder import open_encoder
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_data import ReadFacts, UnitColumns
from pipeline.reading.unit_file import UnitFile


class Feature(NamedTuple):
    """What findings call a feature, its column, and what encodes the column's values."""

    name: str
    column: str
    encoder: _core.ValueEncoder


class Features(NamedTuple):
    """Those of `ids` [F] and of `dense` [N]."""

    fields: list[Feature]
    dense: list[Feature]


def read_raw(opened: UnitFile, plan: WorkerPlan, buffer: UnitBuffer) -> UnitColumns | None:
    """A unit in `buffer`; None if our reader does not take its columns, for lists, for columns
    that folder names give, and for dense values that are not finite.
    """
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
    plain = plain_published(opened, columns)
    ids, dense, *vectors = buffer.matrices(
        (len(features.fields), unit.rows, "<i4"),
        (len(features.dense), unit.rows, DENSE_TYPE),
        *((1, unit.rows, kind) for kind in plain.values()),
    )
    wanted = [*features.fields, *features.dense]
    names, encoders = [each.column for each in wanted], [each.encoder for each in wanted]
    file.read_encoded(names, *groups, encoders, [*ids, *dense])
    copied = {name: row[0] for name, row in zip(plain, vectors, strict=True)}
    file.read(list(copied), *groups, list(copied.values()))
    published = published_columns(opened, columns, copied)
    if any(dense_findings([feature.name for feature in features.dense], list(dense))):
        return None
    findings = list(null_findings(published, columns.key_columns, "key"))
    facts = ReadFacts(group_rows, time.perf_counter() - opened.began, 0.0, "cpu")
    names = [feature.name for feature in features.fields]
    return UnitColumns(facts, names, list(ids), list(dense), published, findings)


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
