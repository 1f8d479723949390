"""The scorer actor: an engine for each bundle; units come in, their files go out, an outcome each
returns.

Several calls run at one time, so that one unit is on the GPU while others are read, checked and
written. Whatever goes wrong with a unit comes back as a `UnitError`; the driver decides what it
means for the job. A scorer whose GPU is lost to its process says so with the units in hand, and
ends at the next call: Ray starts it again and repeats that call.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NoReturn

import numpy as np
import pyarrow as pa

from dpiframe_core.errors import DeviceLostError
from pipeline.config.job import SCORE_COLUMN
from pipeline.errors import ErrorKind, UnitFailedError
from pipeline.planning.job_plan import WorkerPlan
from pipeline.planning.units import Unit
from pipeline.publishing.partitioned import Publishers
from pipeline.publishing.publish import SupersededError
from pipeline.publishing.records import FileRows, Outcome, ScoreSummary, UnitError, UnitRecord
from pipeline.reading.reader import read_unit
from pipeline.reading.unit_buffers import UnitBufferPool
from pipeline.reading.unit_data import UnitColumns, UnitPages
from pipeline.scoring.engine_thread import EngineThread, PagesRefusedError
from pipeline.scoring.machine_watch import MachineSample, MachineWatch
from pipeline.scoring.ray_metrics import scorer_metrics
from pipeline.scoring.rejected_rows import file_of_row, first_bad_row, rejected_table
from pipeline.scoring.score_stats import score_stats
from pipeline.scoring.transport import (
    columns_from_table,
    outcomes_to_table,
    unit_of_table,
    units_from_table,
)
from pipeline.sizing.sizes import Sizes

# A scorer whose GPU is lost waits at most so long for the calls in hand, which then fail fast, and
# then until what they return has left it. Ray starts it again after any exit code but 0.
IN_HAND_SECONDS, LEAVING_SECONDS, GPU_LOST_EXIT = 60.0, 1.0, 70


class ScorerActor:
    """Called by the actor pool of Ray Data with units to read, or with one decoded unit.

    Calls may overlap in several threads; the engines are loaded once.
    """

    def __init__(self, plan: WorkerPlan, sizes: Sizes, attempt: str) -> None:
        self.plan, self.config = plan, plan.config
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.publishers = Publishers(self.config.output, attempt)
        # Not awaited here, as units are read meanwhile, and as Ray would restart an actor whose
        # constructor fails again and again.
        self.engine = EngineThread(plan, sizes)
        self.buffers = UnitBufferPool(
            on_gpu=lambda: self.engine.on_gpu, is_behind=lambda: self.engine.is_behind
        )
        self.watch = MachineWatch(sizes.device == "cuda") if self.config.tracking else None
        self.gpu_lost = False
        self.count = scorer_metrics(self.config)
        self._in_hand = 0  # calls
        self._returned = threading.Condition()

    def __call__(self, table: pa.Table) -> pa.Table:
        """Score and publish; returns an `outcomes_to_table`."""
        with self._returned:
            if self.gpu_lost:
                self._end()
            self._in_hand += 1
        try:
            outcomes = self._outcomes(table)
            return outcomes_to_table(outcomes, self.samples())
        finally:
            with self._returned:
                self._in_hand -= 1
                self._returned.notify_all()

    def outcome(self, unit: Unit) -> Outcome:
        """Read, score and publish one unit, for callers in this process."""
        return self._outcome(unit, partial(self._read_and_score, unit))

    def samples(self) -> list[MachineSample]:
        """What was measured of this machine since the last call; nothing without tracking."""
        return self.watch.take() if self.watch else []

    def close(self) -> None:
        """End the threads of a scorer whose process goes on."""
        if self.watch:
            self.watch.close()
        self.engine.close()

    def _end(self) -> NoReturn:
        """End the process, after the calls in hand have told the driver what the GPU said."""
        self._returned.wait_for(lambda: self._in_hand == 0, IN_HAND_SECONDS)
        time.sleep(LEAVING_SECONDS)
        os._exit(GPU_LOST_EXIT)

    def _outcomes(self, table: pa.Table) -> list[Outcome]:
        units = units_from_table(table)
        if units is None:
            unit = unit_of_table(table)
            return [self._outcome(unit, lambda: self._score(unit, columns_from_table(table)))]
        return [self.outcome(unit) for unit in units]

    def _outcome(self, unit: Unit, score: Callable[[], UnitRecord]) -> Outcome:
        try:
            return self.publishers.of(unit).already(unit.name) or score()
        except Exception as error:
            kind, message = self._describe(error)
            text = "; ".join([message, *getattr(error, "__notes__", ())])
            return UnitError(unit=unit.name, kind=kind, message=text, scorer=self.name)

    def _describe(self, error: Exception) -> tuple[ErrorKind, str]:
        if isinstance(error, UnitFailedError):
            return error.kind, str(error)
        if isinstance(error, DeviceLostError):
            self.gpu_lost = True
            return "gpu_lost", str(error)
        if isinstance(error, SupersededError):
            return "superseded", str(error)
        if isinstance(error, MemoryError):
            advice = "set unit_rows or max_read_tasks lower"
            return "memory", f"too little memory on {self.name}: {error}; {advice}"
        if isinstance(error, OSError):
            return "storage", f"cannot write to {self.config.output}: {error}"
        return "internal", f"{type(error).__name__}: {error}"

    def _read_and_score(self, unit: Unit) -> UnitRecord:
        """Read a unit, if possible as pages for the GPU, else decoded."""
        with self.buffers.borrow() as buffer:
            if self.engine.takes_pages:
                try:
                    return self._score(unit, read_unit(unit, self.plan, buffer, pages=True))
                except PagesRefusedError as error:
                    unpack_error = str(error)
            else:
                unpack_error = self.engine.why_no_pages
            try:
                return self._score(unit, read_unit(unit, self.plan, buffer), unpack_error)
            except Exception as error:
                if unpack_error:
                    error.add_note(f"before that the GPU did not unpack it: {unpack_error}")
                raise

    def _score(
        self, unit: Unit, data: UnitColumns | UnitPages, unpack_error: str = ""
    ) -> UnitRecord:
        """Score a unit, write its parts, then its record."""
        started = time.time()
        scored = self.engine.score(data)
        rejected = rejected_table(unit, scored.findings)
        if rejected.num_rows and self.config.on_bad_row == "fail":
            where = first_bad_row(rejected, unit, data.facts.group_rows)
            raise UnitFailedError("bad_row", where)
        for name, scores in scored.scores.items():
            check_finite(scores, unit, name)
        bad_rows = rejected.column("row").to_numpy()
        output = with_scores(data.published, scored.scores, bad_rows)
        write_began = time.perf_counter()
        publisher = self.publishers.of(unit)
        parts = publisher.write_parts(unit.name, output, rejected)
        write_s = time.perf_counter() - write_began
        own, *others = (
            score_stats(np.delete(scores, bad_rows) if len(bad_rows) else scores)._asdict()
            for scores in scored.scores.values()
            if scores.ndim == 1
        )
        tasks = [model.name for model in self.plan.beside if model.width == 1]
        record = UnitRecord(
            unit=unit.name,
            index=unit.index,
            path=unit.path,
            first_row_group=unit.first_row_group,
            stop_row_group=unit.stop_row_group,
            more=[FileRows(file.path, file.row_groups, file.rows) for file in unit.more],
            rows=unit.rows,
            scored=unit.rows - len(bad_rows),
            rejected=len(bad_rows),
            **parts._asdict(),
            **own,
            others={
                name: ScoreSummary(**summary) for name, summary in zip(tasks, others, strict=True)
            },
            **scored.record_fields,
            started=started,
            read_by=data.facts.read_by,
            read_s=data.facts.read_s,
            encode_s=data.facts.encode_s,
            write_s=write_s,
            scorer=self.name,
            unpack_error=unpack_error,
        )
        published = publisher.write_record(record)
        self.count(published)
        return published


def with_scores(
    published: pa.Table, made: Mapping[str, np.ndarray], bad_rows: np.ndarray
) -> pa.Table:
    """The published columns and what models made: scores [B] float32, embeddings [B, D] as lists;
    null in the bad rows.
    """
    mask = None
    if len(bad_rows):
        mask = np.zeros(published.num_rows, bool)
        mask[bad_rows] = True
    for name, values in made.items():
        if values.ndim == 1:
            column = pa.array(values, pa.float32(), mask=mask)
        else:
            column = as_lists(values, mask)
        published = published.append_column(name, column)
    return published


def as_lists(values: np.ndarray, mask: np.ndarray | None) -> pa.Array:
    """Lists of the rows of a matrix [B, D], null where the mask [B] says so."""
    rows, width = values.shape
    if mask is not None:
        values = values[~mask]
    lengths = np.full(rows, width) if mask is None else np.where(mask, 0, width)
    offsets = pa.array(np.r_[0, np.cumsum(lengths)], pa.int32())
    nulls = None if mask is None else pa.array(mask)
    return pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1)), mask=nulls)


def check_finite(values: np.ndarray, unit: Unit, name: str = SCORE_COLUMN) -> None:
    """Refuse what is not a number: the model's weights overflow or are not numbers."""
    if not np.isfinite(values.sum(dtype=np.float64)):
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        _, path, source_row = file_of_row(unit, row)
        raise UnitFailedError(
            "bundle",
            f"the model's {name} of row {source_row} of {path} is {values[row]}; "
            "look at its weights, and at the dense features of that row",
        )
