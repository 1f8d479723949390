"""Jobs of milliseconds: the true `Job`, lock, claim, publishing, end; rows scored without Ray."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pipeline.publishing.folder as folder_module
import pipeline.scoring.job as job_module
from pipeline.cluster.signals import StopSignals
from pipeline.config.job import JobConfig
from pipeline.errors import DpiframeError
from pipeline.planning.columns import Columns
from pipeline.planning.identity import job_identity
from pipeline.planning.inputs import scan_inputs
from pipeline.planning.job_plan import JobPlan
from pipeline.planning.row_cost import ModelCost
from pipeline.planning.units import Unit, cut_units
from pipeline.publishing.lock import OutputLock
from pipeline.publishing.output import open_output
from pipeline.publishing.publish import Publisher, SupersededError
from pipeline.publishing.records import (
    REJECTED_SCHEMA,
    Outcome,
    OutputLayout,
    UnitError,
    UnitRecord,
)
from pipeline.publishing.scores import open_scores
from pipeline.publishing.store_head import Head
from pipeline.publishing.verify import verify_output
from pipeline.sizing.sizes import Sizes

ROWS, GROUP = 60, 10
SIZES = types.SimpleNamespace(  # all that a job itself looks at
    scorers=1, scorer_gpus=0.0, device="cpu", read_in="scorer"
)
BAD_ROW = 25  # has a null score


def write_input(folder: Path) -> None:
    """One file of 60 rows in row groups of 10."""
    folder.mkdir(parents=True)
    table = pa.table({"row_id": np.arange(ROWS), "C1": np.arange(ROWS, dtype=np.int32)})
    pq.write_table(table, folder / "shard.parquet", row_group_size=GROUP)


def plan_of(folder: Path, output: str | Path, unit_rows: int, **keys: Any) -> JobPlan:
    """The plan over `folder`/input that `make_plan` would make, without a bundle."""
    config = JobConfig(
        bundle=str(folder / "bundle"),
        input=str(folder / "input"),
        output=str(output),
        key_columns=["row_id"],
        unit_rows=unit_rows,
        form="encoded",
        on_bad_row="reject",
        max_rejected_fraction=0.1,
        tracking=False,
        **keys,
    )
    scan = scan_inputs(config)
    identity = job_identity(scan.files, "0" * 64, config)
    return JobPlan(
        identity=identity,
        config=config,
        bundle_digest="0" * 64,
        columns=Columns(
            form="encoded", key_columns=("row_id",), carry_columns=(), id_columns=("C1",)
        ),
        files=scan.files,
        units=cut_units(scan.files, unit_rows, identity),
        quarantined=[],
        total_rows=ROWS,
        total_bytes=scan.files[0].size,
        row_bytes=12,
        model=ModelCost(fields=1, dense=0, table_values=1, operations=1, values=1),
    )


def expected(row_ids: np.ndarray) -> np.ndarray:
    """The score of each row."""
    return (row_ids / (2 * ROWS)).astype(np.float32)


def publish(publisher: Publisher, unit: Unit) -> Outcome:
    """Score and publish a unit as a scorer does."""
    try:
        known = publisher.already(unit.name)
        if known is not None:
            return known
        keys = np.arange(unit.first_row, unit.first_row + unit.rows)
        bad = keys == BAD_ROW
        scores = pa.table({"row_id": keys, "score": pa.array(expected(keys), mask=bad)})
        rows = [
            {"unit": unit.name, "row": int(row), "source_row": BAD_ROW, "column": "C1"}
            | {"value": "null", "reason": "null id"}
            for row in np.flatnonzero(bad)
        ]
        rejected = pa.Table.from_pylist(rows, schema=REJECTED_SCHEMA)
        published = publisher.write_parts(unit.name, scores, rejected)
        record = UnitRecord(
            unit=unit.name,
            index=unit.index,
            path=unit.path,
            first_row_group=unit.first_row_group,
            stop_row_group=unit.stop_row_group,
            rows=unit.rows,
            scored=unit.rows - len(rows),
            rejected=len(rows),
            **published._asdict(),
        )
        return publisher.write_record(record)
    except OSError as error:
        return UnitError(unit=unit.name, kind="storage", message=str(error))
    except SupersededError as error:
        return UnitError(unit=unit.name, kind="superseded", message=str(error))


def stream_outcomes(
    plan: JobPlan, units: Sequence[Unit], sizes: Sizes, attempt: str
) -> Iterator[Outcome]:
    """One outcome a unit, in this thread."""
    publisher = open_output(plan.config.output).publisher(attempt)
    for unit in units:
        yield publish(publisher, unit)


class QuickLock(OutputLock):
    """A lock that waits a moment only for one whose owner is not known."""

    def _take_over(self) -> None:
        beat, ttl = self._beat, self._ttl
        self._beat, self._ttl = 0.01, 0.05
        try:
            super()._take_over()
        finally:
            self._beat, self._ttl = beat, ttl


def without_ray() -> None:
    """From here on jobs of this process need no Ray, and no waits."""
    folder_module.OutputLock = QuickLock  # type: ignore[misc]
    flow = types.ModuleType("pipeline.scoring.flow")
    flow.stream_outcomes = stream_outcomes  # type: ignore[attr-defined]
    sys.modules[flow.__name__] = flow  # the true one imports Ray
    job_module.ray_cluster = lambda *_: contextlib.nullcontext(SIZES)  # type: ignore
    job_module.RayWatch = lambda lost: contextlib.nullcontext()  # type: ignore
    job_module.quiet_data = lambda: None
    job_module.work_of = lambda *_: None  # type: ignore


def run(plan: JobPlan) -> int:
    """Do the job; its exit code."""
    try:
        job_module.Job(plan, StopSignals(), verbose=False).run()
    except DpiframeError as error:
        print(f"exit {error.exit_code}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def problems_of(output: Path) -> list[str]:
    """What is wrong with a finished output: by `verify`, by its rows, by what lies in it."""
    found = verify_output(output).problems
    if found:
        return found
    parts = [pq.read_table(part) for part in sorted(output.glob("part-*.parquet"))]
    table = pa.concat_tables(parts)
    keys, scores = table.column("row_id").to_numpy(), table.column("score")
    if keys.tolist() != list(range(ROWS)):
        found.append(f"rows {keys.tolist()}")
    good = np.arange(ROWS) != BAD_ROW
    if not np.array_equal(scores.to_numpy()[good], expected(keys)[good]):
        found.append("other scores")
    known = {"_SUCCESS", "_config.yaml", "_identity.json", "_manifest.json", "_rejected"}
    strange = [path.name for path in output.iterdir() if path.name not in known]
    found += [f"{name} is left" for name in strange if not name.startswith("part-")]
    left = OutputLayout(output).rejected.glob("*")
    found += [f"_rejected/{path.name} is left" for path in left if path.name.startswith(".")]
    return found


def problems_at(address: str) -> list[str]:
    """What is wrong with a finished output in a store: by `verify`, by its rows, by its keys."""
    found = verify_output(address).problems
    if found:
        return found
    table = open_scores(address).to_table()
    keys, scores = table.column("row_id").to_numpy(), table.column("score")
    if keys.tolist() != list(range(ROWS)):
        found.append(f"rows {keys.tolist()}")
    good = np.arange(ROWS) != BAD_ROW
    if not found and not np.array_equal(scores.to_numpy()[good], expected(keys)[good]):
        found.append("other scores")
    output = open_output(address)
    manifest, owner = output.manifest(), output.owner()
    assert isinstance(owner, Head) and manifest is not None and owner.manifest is not None
    known = {"_SUCCESS", "_config.yaml", "_identity.json", "_manifest.json", owner.manifest}
    known |= {name for record in manifest.units for name in (record.part, record.rejected_part)}
    return found + [f"{name} is left" for name in output.sizes() if name not in known]
