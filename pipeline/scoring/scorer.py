"""The scorer actor: one engine; units come in, their files go out, one outcome each returns.

Several calls run at one time, so that one unit is on the GPU while others are read, checked and
written. Whatever goes wrong with a unit comes back as a `UnitError`; the driver decides what it
means.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from pipeline.config.job import SCORE_COLUMN
from pipeline.planning.units import Unit
from pipeline.publishing.publish import Publisher, SupersededError
from pipeline.publishing.records import ErrorKind, Outcome, UnitError, UnitRecord
from pipeline.reading.bad_rows import Finding, first_bad_row, rejected_table
from pipeline.reading.read_stored import read_stored
from pipeline.reading.unit_block import ReadFacts, open_block, unit_in
from pipeline.reading.unit_memory import Piece, UnitMemory
from pipeline.reading.unit_reader import read_unit
from pipeline.scoring.engine_loading import MemoryShortError
from pipeline.scoring.job_engine import JobEngine, Refused, Scored, UnitFailedError
from pipeline.scoring.score_stats import score_stats
from pipeline.scoring.scorer_settings import ScorerSettings
from pipeline.scoring.unit_groups import units_of

T = TypeVar("T")

OUTCOME_SCHEMA = pa.schema([("record", pa.string()), ("error", pa.string())])


class Scorer:
    """Loads the engine once; called with a few units at a time by the actor pool of Ray Data.

    Calls may overlap in several threads.
    """

    def __init__(self, settings_json: str) -> None:
        self.settings = ScorerSettings.model_validate_json(settings_json)
        self.config = self.settings.config
        self.read_settings = self.settings.read_settings.model_dump_json()
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.publisher = Publisher(self.config.output, self.settings.attempt)
        # Not awaited here: units are read meanwhile. Also, Ray would restart an actor that fails
        # here again and again.
        self.engine = JobEngine(self.settings)
        self.memory = UnitMemory(lambda: self.engine.on_gpu)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Score and publish units, to be read or a block; returns a row of OUTCOME_SCHEMA each."""
        described = units_of(table)
        if described is None:
            return outcomes([self._outcome(unit_in(table), lambda: self._score_block(table))])
        return outcomes([self._read_and_score(text) for text in described])

    def _read_and_score(self, unit_json: str) -> Outcome:
        unit = Unit.model_validate_json(unit_json)
        refused = Refused()
        with self.memory.piece() as piece:

            def score() -> Outcome:
                nonlocal refused
                scored = self._score_stored(unit, piece)
                if not isinstance(scored, Refused):
                    return scored
                refused = scored
                block = read_unit(unit_json, self.read_settings, piece)[0]
                return self._score_block(block, refused.why)

            return told_of(self._outcome(unit, score), refused)

    def _outcome(self, unit: Unit, score: Callable[[], Outcome]) -> Outcome:
        try:
            return self.publisher.already(unit.name) or score()
        except UnitFailedError as error:
            return failed(unit, error.kind, str(error))
        except SupersededError as error:
            return failed(unit, "superseded", str(error))
        except MemoryShortError as error:
            return failed(unit, "memory", str(error))
        except MemoryError as error:
            return failed(
                unit,
                "memory",
                f"too little memory on {self.name}: {error}; set unit_rows or max_read_tasks lower",
            )
        except OSError as error:
            return failed(unit, "storage", f"cannot write to {self.config.output}: {error}")
        except Exception as error:
            return failed(unit, "internal", f"{type(error).__name__}: {error}")

    def _score_stored(self, unit: Unit, piece: Piece) -> UnitRecord | Refused:
        """Score a unit that the GPU unpacks; Refused where it must be read the ordinary way."""
        if not self.engine.unpacks:
            return Refused(self.engine.why_not_unpacked())
        stored = read_stored(unit, self.settings.read_settings.columns, piece)
        if stored is None:
            return Refused()
        started = time.time()
        scored = self.engine.score_stored(stored)
        if isinstance(scored, Refused):
            return scored
        return self._publish(unit, stored.facts, stored.copied, scored, started)

    def _score_block(self, table: pa.Table, unpack_error: str = "") -> Outcome:
        block = open_block(table)
        if isinstance(block, UnitError):
            return block
        started = time.time()
        scored = self.engine.score(block)
        return self._publish(block.unit, block.facts, block.copied, scored, started, unpack_error)

    def _publish(
        self,
        unit: Unit,
        facts: ReadFacts,
        copied: pa.Table,
        scored: Scored,
        started: float,
        unpack_error: str = "",
    ) -> UnitRecord:
        """Write the scores of a unit and then its record."""
        rejected = self._rejected(unit, facts, scored.findings)
        check_finite(scored.scores, unit)
        bad_rows = rejected.column("row").to_numpy()
        output = with_scores(copied, scored.scores, bad_rows)
        published, write_s = timed(lambda: self.publisher.write_parts(unit.name, output, rejected))
        good = np.delete(scored.scores, bad_rows) if len(bad_rows) else scored.scores
        record = UnitRecord(
            **source_facts(unit),
            **published._asdict(),
            **score_stats(good)._asdict(),
            **scored.record_fields(),
            scored=unit.rows - len(bad_rows),
            rejected=len(bad_rows),
            started=started,
            read_by=facts.read_by,
            read_s=facts.read_s,
            encode_s=facts.encode_s,
            write_s=write_s,
            scorer=self.name,
            unpack_error=unpack_error,
        )
        self.publisher.write_record(record)
        return record

    def _rejected(self, unit: Unit, facts: ReadFacts, findings: list[Finding]) -> pa.Table:
        """The bad rows; UnitFailedError about the first one if the job does not reject."""
        rejected = rejected_table(unit.name, unit.first_row, findings)
        if rejected.num_rows and self.config.on_bad_row == "fail":
            where = first_bad_row(rejected, unit.path, unit.first_row_group, facts.group_rows)
            raise UnitFailedError("bad_row", where)
        return rejected


def with_scores(copied: pa.Table, scores: np.ndarray, bad_rows: np.ndarray) -> pa.Table:
    """Key columns, carried columns, score: float32 [B], null in the bad rows."""
    mask = None
    if len(bad_rows):
        mask = np.zeros(len(scores), bool)
        mask[bad_rows] = True
    return copied.append_column(SCORE_COLUMN, pa.array(scores, pa.float32(), mask=mask))


def source_facts(unit: Unit) -> dict[str, Any]:
    """The fields of a record that say where its rows came from."""
    return {
        "unit": unit.name,
        "index": unit.index,
        "path": unit.path,
        "first_row_group": unit.first_row_group,
        "stop_row_group": unit.stop_row_group,
        "rows": unit.rows,
    }


def check_finite(scores: np.ndarray, unit: Unit) -> None:
    """Refuse scores that are not numbers: the model's weights overflow or are not numbers."""
    if not np.isfinite(scores.sum(dtype=np.float64)):
        row = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise UnitFailedError(
            "bundle",
            f"the model's score of row {unit.first_row + row} of {unit.path} is {scores[row]}; "
            "look at its weights, and at the dense features of that row",
        )


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of some work, and the seconds it took."""
    started = time.perf_counter()
    return work(), time.perf_counter() - started


def failed(unit: Unit, kind: ErrorKind, message: str) -> UnitError:
    """The outcome of a unit that could not be published."""
    return UnitError(unit=unit.name, kind=kind, message=message)


def told_of(outcome: Outcome, refused: Refused) -> Outcome:
    """The outcome; where the unit failed, what the GPU said of it before is told with it."""
    if isinstance(outcome, UnitRecord) or not refused.why:
        return outcome
    message = f"{outcome.message}; before that the GPU did not unpack it: {refused.why}"
    return outcome.model_copy(update={"message": message})


def outcomes(results: Sequence[Outcome]) -> pa.Table:
    """Records and errors on their way to the driver, a row each."""
    texts = [result.model_dump_json() for result in results]
    good = [isinstance(result, UnitRecord) for result in results]
    rows = {
        "record": [
            text if is_record else None for text, is_record in zip(texts, good, strict=True)
        ],
        "error": [None if is_record else text for text, is_record in zip(texts, good, strict=True)],
    }
    return pa.table(rows, schema=OUTCOME_SCHEMA)


def decode(batch: pa.Table) -> Iterator[Outcome]:
    """Outcomes in a batch of OUTCOME_SCHEMA rows."""
    for row in batch.to_pylist():
        if row["record"] is not None:
            yield UnitRecord.model_validate_json(row["record"])
        else:
            yield UnitError.model_validate_json(row["error"])
