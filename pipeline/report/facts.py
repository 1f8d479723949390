"""What a report shows of one output: of its manifest, its tracking records, its bundle."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from dpiframe_core.bundle.files import IMPORT, MODEL
from pipeline.errors import ConfigError
from pipeline.publishing.output import Output, open_output
from pipeline.publishing.records import EVALUATION, Manifest, UnitRecord
from pipeline.storage.address import is_remote
from pipeline.tracking.artifacts import unit_table
from pipeline.tracking.compare import RunView, run_of_output
from pipeline.tracking.drift import Counts
from pipeline.tracking.metrics import sum_histograms
from pipeline.tracking.plot_data import UnitColumns
from pipeline.tracking.spool import read_run, run_dirs

REJECTED_ROWS_READ = 1_000_000


class Rejection(NamedTuple):
    """Rows that were rejected for one reason in one column, and a value of one of them."""

    column: str
    reason: str
    rows: int
    example: str


@dataclass
class Facts:
    """One finished output. `evaluation`: the content of `_evaluation.json`; `model`, `imported`: of
    the bundle's files, empty where it is not at hand; `rejected_read`: rows that `rejected` counts.
    """

    address: str
    manifest: Manifest
    run: RunView
    units: UnitColumns
    histogram: Counts
    evaluation: dict[str, Any] | None
    rejected: list[Rejection] = field(default_factory=list)
    rejected_read: int = 0
    model: dict[str, Any] = field(default_factory=dict)
    imported: dict[str, Any] = field(default_factory=dict)

    @property
    def bundle(self) -> str:
        """The bundle's name."""
        return Path(str(self.manifest.config.get("bundle") or "bundle")).name

    @property
    def date(self) -> str | None:
        """The job's date, if it has one."""
        date = self.manifest.config.get("date")
        return None if date is None else str(date)


def gather(address: str | Path) -> Facts:
    """The facts of a finished output. ConfigError: there is none."""
    output = open_output(address)
    manifest = output.manifest()
    if manifest is None:
        raise ConfigError(
            f"{address} holds no _manifest.json: name the output of a job that has finished"
        )
    rejected, read = _rejections(output, manifest)
    facts = Facts(
        address=output.address,
        manifest=manifest,
        run=run_of_output(Path(address)),
        units=_units(output, manifest.units),
        histogram=sum_histograms(manifest.units),
        evaluation=_evaluation(output),
        rejected=rejected,
        rejected_read=read,
    )
    facts.model, facts.imported = _bundle(manifest)
    return facts


def _units(output: Output, records: list[UnitRecord]) -> UnitColumns:
    """The units of the last attempt as it saw them, else all of them by their own times."""
    for run in reversed(run_dirs(output.tracking)):
        files = [event["units_file"] for event in read_run(run) if event["kind"] == "finish"]
        path = run / files[-1] if files and files[-1] else None
        if path is not None and path.exists():
            found = UnitColumns.read(path)
            if len(found.rows):
                return found
    timed = [record for record in records if record.started]
    began = min((r.started - r.read_s - r.encode_s for r in timed), default=0.0)
    done = {record.unit: _end(record) - began for record in timed}
    return UnitColumns.of_table(unit_table(records, done, began))


def _end(record: UnitRecord) -> float:
    after = record.copy_in_s + record.unpack_s + record.score_s + record.copy_out_s + record.write_s
    return record.started + after


def _evaluation(output: Output) -> dict[str, Any] | None:
    try:
        with output.open(EVALUATION) as file:
            found: dict[str, Any] = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return found if {"quality", "reliability", "slices"} <= found.keys() else None


def _rejections(output: Output, manifest: Manifest) -> tuple[list[Rejection], int]:
    """Why rows were rejected, of the first million of them."""
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    read = 0
    for record in manifest.units:
        if record.rejected_part is None or read >= REJECTED_ROWS_READ:
            continue
        with output.open(record.rejected_part) as file:
            table = pq.read_table(file, columns=["column", "reason", "value"])
        read += table.num_rows
        columns = (table.column(name).to_pylist() for name in ("column", "reason", "value"))
        for column, reason, value in zip(*columns, strict=True):
            counts[column, reason] += 1
            examples.setdefault((column, reason), str(value))
    found = counts.most_common()
    return [Rejection(*pair, rows, examples[pair]) for pair, rows in found], read


def _bundle(manifest: Manifest) -> tuple[dict[str, Any], dict[str, Any]]:
    """The spec and the import report of the bundle, if it lies where the job found it."""
    path = str(manifest.config.get("bundle") or "")
    if not path or is_remote(path):
        return {}, {}
    return _json(Path(path) / MODEL), _json(Path(path) / IMPORT)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def shares_by_stage(units: UnitColumns) -> dict[str, float]:
    """Seconds of each stage that took any, summed over units."""
    return {name: float(np.sum(times)) for name, times in units.stages.items() if np.sum(times) > 0}
