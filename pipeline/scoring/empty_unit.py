"""Publishing a unit without rows: the driver does it, as there is nothing to score."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.config.job import SCORE_COLUMN
from pipeline.planning.job_plan import JobPlan
from pipeline.planning.units import Unit
from pipeline.publishing.publish import Publisher
from pipeline.publishing.records import REJECTED_SCHEMA, ScoreSummary, UnitRecord
from pipeline.scoring.score_stats import score_stats


def publish_empty(plan: JobPlan, unit: Unit, publisher: Publisher) -> UnitRecord:
    """Publish a part that has the columns of the output and no row; its record."""
    schema = next(file.arrow_schema for file in plan.files if file.path == unit.path)
    columns = plan.columns
    kinds = {name: plain(schema.field(name).type) for name in columns.published} | columns.types
    fields = [pa.field(name, kind) for name, kind in kinds.items()]
    made = [(SCORE_COLUMN, pa.float32()), *((m.column, m.type) for m in plan.beside)]
    scores = pa.schema([*fields, *made]).empty_table()
    parts = publisher.write_parts(unit.name, scores, REJECTED_SCHEMA.empty_table())
    nothing = score_stats(np.empty(0, np.float32))._asdict()
    record = UnitRecord(
        unit=unit.name,
        index=unit.index,
        path=unit.path,
        first_row_group=unit.first_row_group,
        stop_row_group=unit.stop_row_group,
        rows=0,
        scored=0,
        rejected=0,
        **parts._asdict(),
        **nothing,
        others={m.name: ScoreSummary(**nothing) for m in plan.beside if m.width == 1},
    )
    return publisher.write_record(record)


def plain(kind: pa.DataType) -> pa.DataType:
    """The type that a column of this type is published as."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind
