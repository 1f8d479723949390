"""The scorer actor: one engine; a unit's table comes in, its files go out, one outcome returns.

Whatever goes wrong with a unit comes back as a `UnitError`; the driver decides what it means.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from dpiframe_core import load_engine, open_bundle
from dpiframe_core.errors import BundleError
from dpiframe_core.features.encoder import Encoder
from pipeline.config import SCORE_COLUMN, JobConfig
from pipeline.planning.columns import Columns
from pipeline.planning.units import Unit
from pipeline.publishing.publish import Publisher, SupersededError
from pipeline.publishing.records import ErrorKind, Outcome, UnitError, UnitRecord
from pipeline.scoring.bad_rows import Finding, first_bad_row, rejected_table
from pipeline.scoring.model_inputs import EncodedReader, InputReader, RawReader, only_chunk
from pipeline.scoring.read import ERROR_KEY, GROUPS_KEY, SECONDS_KEY, UNIT_KEY
from pipeline.scoring.score_stats import score_stats

T = TypeVar("T")

OUTCOME_SCHEMA = pa.schema([("record", pa.string()), ("error", pa.string())])


class ScorerSettings(BaseModel):
    """What a scorer needs to know of the job; travels to the actors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: JobConfig
    columns: Columns
    bundle_digest: str
    attempt: str
    device: Literal["cpu", "cuda"]
    threads: int
    max_batch: int


class UnitFailedError(Exception):
    """A unit that cannot be published; `kind` says in which way."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind


class Scorer:
    """Loads the engine once; called with one unit at a time by the actor pool of Ray Data."""

    def __init__(self, settings_json: str) -> None:
        self.settings = ScorerSettings.model_validate_json(settings_json)
        self.config = self.settings.config
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.publisher = Publisher(self.config.output, self.settings.attempt)
        # Ray would restart an actor that fails here again and again: keep it as an outcome.
        self.broken: UnitFailedError | None = None
        try:
            self._load()
        except UnitFailedError as error:
            self.broken = error
        except Exception as error:
            self.broken = UnitFailedError("internal", f"the engine did not start: {error!r}")

    def __call__(self, table: pa.Table) -> pa.Table:
        """Score and publish one unit; returns one row of OUTCOME_SCHEMA."""
        metadata = table.schema.metadata
        if ERROR_KEY in metadata:
            return outcome(UnitError.model_validate_json(metadata[ERROR_KEY]))
        unit = Unit.model_validate_json(metadata[UNIT_KEY])
        try:
            if self.broken is not None:
                raise self.broken
            return outcome(self.publisher.already(unit.name) or self._score(unit, table))
        except UnitFailedError as error:
            return failed(unit, error.kind, str(error))
        except SupersededError as error:
            return failed(unit, "superseded", str(error))
        except OSError as error:
            return failed(unit, "storage", f"cannot write to {self.config.output}: {error}")
        except Exception as error:
            return failed(unit, "internal", f"{type(error).__name__}: {error}")

    def _load(self) -> None:
        try:
            bundle = open_bundle(self.config.bundle)
        except (BundleError, OSError) as error:
            raise UnitFailedError("bundle", str(error)) from error
        if bundle.digest != self.settings.bundle_digest:
            raise UnitFailedError(
                "bundle",
                f"bundle {self.config.bundle} has digest {bundle.digest} on {self.name}, "
                f"{self.settings.bundle_digest} was planned: it must not change while a job runs",
            )
        self.engine = load_engine(
            bundle,
            device=self.settings.device,
            precision=self.config.precision,
            max_batch=self.settings.max_batch,
            streams=self.config.streams,
            graphs=self.config.graphs,
            on_bad_id="oov" if self.config.on_bad_id == "oov" else "fail",
            threads=self.settings.threads,
        )
        self.field_names = [field.name for field in bundle.spec.fields]
        self.reader = input_reader(self.settings, bundle)

    def _score(self, unit: Unit, table: pa.Table) -> UnitRecord:
        started = time.time()
        inputs, encode_s = timed(lambda: self.reader(table))
        rejected = self._rejected(unit, table, inputs.findings)
        scores, score_s = timed(lambda: self.engine.score(inputs.ids, inputs.dense or None))
        check_finite(scores, unit)
        bad_rows = rejected.column("row").to_numpy()
        output = self._output(table, scores, bad_rows)
        published, write_s = timed(lambda: self.publisher.write_parts(unit.name, output, rejected))
        record = UnitRecord(
            **source_facts(unit),
            **published._asdict(),
            **score_stats(np.delete(scores, bad_rows) if len(bad_rows) else scores)._asdict(),
            scored=unit.rows - len(bad_rows),
            rejected=len(bad_rows),
            bad_ids=self._bad_ids(),
            started=started,
            read_s=float(table.schema.metadata[SECONDS_KEY]),
            encode_s=encode_s,
            score_s=score_s,
            write_s=write_s,
            batch_s=[float(seconds) for seconds in self.engine.batch_seconds],
            scorer=self.name,
            device=self.engine.device,
        )
        self.publisher.write_record(record)
        return record

    def _rejected(self, unit: Unit, table: pa.Table, findings: list[Finding]) -> pa.Table:
        """The bad rows; UnitFailedError about the first one if the job does not reject."""
        rejected = rejected_table(unit.name, unit.first_row, findings)
        if rejected.num_rows and self.config.on_bad_row == "fail":
            groups = [int(rows) for rows in table.schema.metadata[GROUPS_KEY].split(b",")]
            where = first_bad_row(rejected, unit.path, unit.first_row_group, groups)
            raise UnitFailedError("bad_row", where)
        return rejected

    def _output(self, table: pa.Table, scores: np.ndarray, bad_rows: np.ndarray) -> pa.Table:
        """Key columns, carried columns, score: float32 [B], null in the bad rows."""
        columns = self.settings.columns
        names = [*columns.key_columns, *columns.carry_columns]
        data = [plain(table.column(name)) for name in names]
        mask = None
        if len(bad_rows):
            mask = np.zeros(len(scores), bool)
            mask[bad_rows] = True
        data.append(pa.array(scores, pa.float32(), mask=mask))
        return pa.table(data, names=[*names, SCORE_COLUMN])

    def _bad_ids(self) -> dict[str, int]:
        counts = zip(self.field_names, self.engine.bad_ids, strict=True)
        return {name: int(count) for name, count in counts if count}


def input_reader(settings: ScorerSettings, bundle: Any) -> InputReader:
    """The reader for the job's form of input."""
    columns = settings.columns
    if columns.form == "raw":
        encoder = Encoder(bundle.schema, bundle.vocabularies)
        return RawReader(
            columns.key_columns, [dense.column for dense in bundle.schema.dense], encoder
        )
    return EncodedReader(
        columns.key_columns,
        columns.id_columns,
        columns.dense_columns,
        [field.rows for field in bundle.spec.fields],
        check_ranges=settings.config.on_bad_id == "bad_row",
    )


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


def plain(column: pa.ChunkedArray) -> pa.Array:
    """The column as it is published: without dictionary encoding."""
    array = only_chunk(column)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of some work, and the seconds it took."""
    started = time.perf_counter()
    return work(), time.perf_counter() - started


def failed(unit: Unit, kind: ErrorKind, message: str) -> pa.Table:
    """The outcome of a unit that could not be published."""
    return outcome(UnitError(unit=unit.name, kind=kind, message=message))


def outcome(result: Outcome) -> pa.Table:
    """One row that carries a record or an error to the driver."""
    text = result.model_dump_json()
    is_record = isinstance(result, UnitRecord)
    row = {"record": [text if is_record else None], "error": [None if is_record else text]}
    return pa.table(row, schema=OUTCOME_SCHEMA)


def decode(batch: pa.Table) -> Iterator[Outcome]:
    """Outcomes in a batch of OUTCOME_SCHEMA rows."""
    for row in batch.to_pylist():
        if row["record"] is not None:
            yield UnitRecord.model_validate_json(row["record"])
        else:
            yield UnitError.model_validate_json(row["error"])
