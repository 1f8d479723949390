"""The artifacts of a run: unit table (one row per unit), score histogram, figures.

The driver writes the unit table beside the events; the sender writes the rest and logs them all.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.publishing.atomic import write_atomic
from pipeline.tracking.drift import HISTOGRAM_FILE, Counts, histogram_document
from pipeline.tracking.metrics import STAGES
from pipeline.tracking.plot_data import UnitColumns
from pipeline.tracking.spool import Event

if TYPE_CHECKING:
    from pipeline.publishing.records import UnitRecord


log = logging.getLogger("dpiframe.tracking")
UNIT_TABLE = "units.parquet"
BEGAN = "began"


def write_artifacts(
    folder: Path, event: Event, run_dir: Path, baseline: Counts | None
) -> str | None:
    """Write all artifacts of a finish event into `folder`; returns why figures failed, or None.

    Raises OSError when they cannot be written; figures that cannot be drawn are left out.
    """
    from pipeline.tracking import plots  # matplotlib is slow to import

    units = run_dir / event["units_file"] if event["units_file"] else None
    if units is not None and units.exists():
        shutil.copyfile(units, folder / UNIT_TABLE)
    counts = None
    if event["histogram"] is not None:
        counts = np.asarray(event["histogram"], np.int64)
        document = histogram_document(counts, event["bundle_digest"])
        (folder / HISTOGRAM_FILE).write_text(json.dumps(document))
    try:
        table = None
        if units is not None and units.exists():
            table = UnitColumns.read(units)
        evaluation = event.get("evaluation")
        plots.draw_all(folder / "figures", table, counts, baseline, evaluation)
        if evaluation is not None:
            (folder / "evaluation.json").write_text(json.dumps(evaluation, indent=1))
    except OSError:
        raise
    except Exception as error:
        log.exception("figures")
        return f"figures are left out: {error}"
    return None


UNIT_TABLE_SCHEMA = pa.schema(
    [
        ("unit", pa.string()),
        ("path", pa.string()),
        ("first_row_group", pa.int64()),
        ("stop_row_group", pa.int64()),
        ("rows", pa.int64()),
        ("scored", pa.int64()),
        ("rejected", pa.int64()),
        ("part", pa.string()),
        ("bytes", pa.int64()),
        ("scorer", pa.string()),
        ("device", pa.string()),
        ("started", pa.float64()),  # epoch seconds
        *((f"{stage}_s", pa.float64()) for stage in STAGES),
        ("batch_s", pa.list_(pa.float64())),
        ("score_min", pa.float64()),
        ("score_max", pa.float64()),
        ("score_sum", pa.float64()),
    ]
)


def unit_table(
    records: Sequence[UnitRecord], done: dict[str, float], began: float = 0.0
) -> pa.Table:
    """The unit table; `done_s`: seconds since the attempt's begin, null for earlier attempts.

    `began`: that begin in epoch seconds, kept as metadata of the schema.
    """
    columns = {
        field.name: pa.array([getattr(record, field.name) for record in records], field.type)
        for field in UNIT_TABLE_SCHEMA
    }
    columns["done_s"] = pa.array([done.get(record.unit) for record in records], pa.float64())
    return pa.table(columns).replace_schema_metadata({BEGAN: str(began)})


def write_unit_table(table: pa.Table, path: Path) -> None:
    """Write the table in one step. Raises OSError."""
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd")
    write_atomic(path, memoryview(buffer.getvalue()))
