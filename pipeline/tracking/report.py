"""The artifacts of a run: unit table, score histogram, figures."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np

from pipeline.tracking.comparison.drift import HISTOGRAM_FILE, Counts, histogram_document
from pipeline.tracking.spool import Event
from pipeline.tracking.unit_table import ARTIFACT_NAME

log = logging.getLogger("dpiframe.tracking")


def write_report(folder: Path, event: Event, run_dir: Path, baseline: Counts | None) -> str | None:
    """Write all artifacts of a finish event into `folder`; returns what could not be drawn.

    Raises OSError when the disk does not take them; a figure that fails is left out.
    """
    from pipeline.tracking import figures  # matplotlib is slow to import

    units = run_dir / event["units_file"] if event["units_file"] else None
    if units is not None and units.exists():
        shutil.copyfile(units, folder / ARTIFACT_NAME)
    counts = None
    if event["histogram"] is not None:
        counts = np.asarray(event["histogram"], np.int64)
        document = histogram_document(counts, event["bundle_digest"])
        (folder / HISTOGRAM_FILE).write_text(json.dumps(document))
    try:
        table = None
        if units is not None and units.exists():
            table = figures.UnitColumns.read(units)
        figures.draw_all(folder / "figures", table, counts, baseline)
    except OSError:
        raise
    except Exception as error:
        log.exception("figures")
        return f"figures are left out: {error}"
    return None
