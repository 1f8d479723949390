"""`Tracker`: the driver's tracking calls. They never raise and never delay the job.

Each event is on disk before it goes to the sender process; only `close` waits for MLflow, at most
for its timeout.
"""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from pipeline.redaction import redacted, redacted_data, without_credentials
from pipeline.storage.mlflow_access import resolve_uri
from pipeline.tracking.machine_metrics import Figures, MachineMetrics
from pipeline.tracking.metrics import Attempt, Progress, sum_histograms, summarise
from pipeline.tracking.mlflow_store.sender_process import SenderProcess
from pipeline.tracking.settings import (
    DatasetInfo,
    ModelInfo,
    ParamValue,
    TrackingSettings,
    param_text,
)
from pipeline.tracking.spool import SpoolWriter, open_attempt
from pipeline.tracking.tags import environment_tags

if TYPE_CHECKING:
    from pipeline.publishing.records import UnitRecord

log = logging.getLogger("dpiframe.tracking")

Status = Literal["FINISHED", "FAILED", "KILLED"]
Method = TypeVar("Method", bound=Callable[..., None])


def _never_raises(method: Method) -> Method:
    @functools.wraps(method)
    def guarded(self: Tracker, *args: Any, **kwargs: Any) -> None:
        try:
            if self.settings.enabled:
                method(self, *args, **kwargs)
        except Exception as error:
            self.warn(f"{method.__name__}: {type(error).__name__}: {error}")

    return cast(Method, guarded)


class Tracker:
    """One attempt of a job. Use from the driver, one thread at a time."""

    def __init__(self, settings: TrackingSettings, folder: Path) -> None:
        """Touch nothing yet; `start` does."""
        self.settings = settings
        self.folder = folder
        self.uri = resolve_uri(settings.uri)
        self._attempt: Attempt | None = None
        self._warned: set[str] = set()
        self._writer: SpoolWriter | None = None
        self._sender: SenderProcess | None = None
        self._finished = False
        self._epoch = time.time() - time.monotonic()

    def _now(self) -> float:
        """Epoch seconds by the monotonic clock, unaffected by changes of the system time."""
        return self._epoch + time.monotonic()

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run, None until the store has given one."""
        return None if self._sender is None else self._sender.run_id

    @property
    def run_url(self) -> str | None:
        """The run's page, None until it is known and for stores without a server."""
        return None if self._sender is None else self._sender.run_url

    @_never_raises
    def start(
        self,
        params: Mapping[str, ParamValue],
        tags: Mapping[str, str],
        dataset: DatasetInfo,
        model: ModelInfo,
    ) -> None:
        """Begin or resume a run; the tag `identity` identifies the job."""
        self._attempt = Attempt(
            self._now(),
            bytes_in=dataset.bytes,
            price_per_hour=self.settings.price_per_hour,
        )
        self._progress = Progress(time.monotonic())
        self._machines = MachineMetrics(time.monotonic())
        identity = tags.get("identity", dataset.digest)
        self._bundle_digest = model.digest
        writer = self._writer = open_attempt(self.folder, identity)
        model_params = {key: param_text(value) for key, value in model.params.items()}
        self._put(
            writer,
            "start",
            spool_id=writer.spool_id,
            identity=identity,
            uri=without_credentials(self.uri),
            experiment=self.settings.experiment,
            run_name=self.settings.run_name,
            params={key: _parameter(value) for key, value in params.items()},
            tags={"bundle_digest": model.digest, **environment_tags(), **tags},
            dataset=dataset.model_dump(),
            model={**model.model_dump(), "params": model_params},
        )

    @_never_raises
    def unit_done(self, record: UnitRecord) -> None:
        """Count a unit that this attempt has just published."""
        if self._attempt is None or self._writer is None:
            return
        now = time.monotonic()
        self._attempt.done[record.unit] = now - self._progress.begin
        point = self._progress.add(record.scored + record.rejected, now)
        if point is not None:
            self._put(self._writer, "progress", **point)

    @_never_raises
    def machine(self, sample: Figures) -> None:
        """Count what a scorer has measured of its machine."""
        if self._attempt is None or self._writer is None:
            return
        point = self._machines.add([sample], time.monotonic())
        if point:
            self._put(self._writer, "machines", metrics=point)

    @_never_raises
    def finish(
        self,
        status: Status,
        records: Sequence[UnitRecord],
        wall_s: float,
        num_gpus: int,
        problems: str | None = None,
        more: Mapping[str, float] | None = None,
        evaluation: Mapping[str, Any] | None = None,
    ) -> None:
        """Record how the job ended; `records` are those of all published units of the job.

        `more`: metrics that do not follow from the records; `evaluation`: the content of
        `_evaluation.json`, for figures.
        """
        if self._attempt is None or self._writer is None:
            return
        self._attempt.wall_s, self._attempt.num_gpus = wall_s, num_gpus
        self._attempt.started_epoch = self._now() - wall_s  # planning comes before `start`
        point = self._progress.last(time.monotonic())
        if point is not None:
            self._put(self._writer, "progress", **point)
        self._put(
            self._writer,
            "finish",
            status=status,
            metrics={
                **summarise(records, self._attempt),
                **self._machines.summary(),
                **(more or {}),
            },
            evaluation=evaluation,
            histogram=sum_histograms(records).tolist(),
            bundle_digest=self._bundle_digest,
            baseline_run=_absolute_baseline(self.settings.baseline_run),
            tags={} if problems is None else {"problems": redacted(problems)},
            units_file=self._write_units(self._writer, records),
        )
        self._finished = True

    def close(self, timeout_s: float = 20.0) -> None:
        """Send what can be sent within `timeout_s`; the rest stays in the spool.

        With 0 the sender goes on alone, and this process can end.
        """
        self._close(time.monotonic() + timeout_s, wait=timeout_s > 0)

    @_never_raises
    def _close(self, deadline: float, wait: bool) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if not self._finished:
            self._put(writer, "finish", **_unknown_end(self._bundle_digest))
        reason: str | None = None
        sent = 0
        if self._sender is not None and not wait and writer.flush():
            self._sender.leave()
            writer.close()
            return
        if self._sender is not None:
            self._sender.finish(max(deadline - time.monotonic(), 0))
            reason = self._sender.error
            sent = self._sender.count_sent(writer.run_dir.name, writer.attempt)
            for warning in self._sender.warnings:
                self.warn(warning)
        if not writer.flush():
            self.warn(f"{writer.path} cannot be written: {writer.error}")
        writer.close()
        if left := writer.next_seq - sent:
            self.warn(
                f"{left} records were not sent to {without_credentials(self.uri)} ({reason}); "
                f"send them with: dpiframe track {self.folder.parent}"
            )

    def warn(self, text: str) -> None:
        """Log a warning once."""
        text = redacted(text)
        if text not in self._warned:
            self._warned.add(text)
            log.warning("tracking: %s", text)

    def _put(self, writer: SpoolWriter, kind: str, **fields: Any) -> None:
        event = redacted_data({"kind": kind, "time": int(self._now() * 1000), **fields})
        numbered = writer.append(event)
        if writer.error:
            self.warn(f"the disk does not take tracking records: {writer.error}")
        if self._sender is None and (kind != "start" or not self.settings.late):
            try:
                self._sender = SenderProcess(self.folder, self.uri, writer.run_dir)
            except OSError as error:
                self.warn(f"no process for sending: {error}")
                return
        if self._sender is not None:
            self._sender.send(numbered)

    def _write_units(self, writer: SpoolWriter, records: Sequence[UnitRecord]) -> str | None:
        from pipeline.tracking.artifacts import unit_table, write_unit_table

        assert self._attempt is not None
        path = writer.path.with_name(f"{writer.path.stem}-units.parquet")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # `done` counts from `start`, which planning comes before.
            late = self._epoch + self._progress.begin - self._attempt.started_epoch
            done = {unit: late + seconds for unit, seconds in self._attempt.done.items()}
            write_unit_table(unit_table(records, done, self._attempt.started_epoch), path)
        except OSError as error:
            self.warn(f"{path} cannot be written: {error}")
            return None
        return path.name


def _parameter(value: object) -> str:
    if isinstance(value, str | int | float | bool | None):
        return param_text(value)
    return json.dumps(value, default=str)


def _absolute_baseline(name: str | None) -> str | None:
    return str(Path(name).absolute()) if name and Path(name).exists() else name


def _unknown_end(bundle_digest: str) -> dict[str, Any]:
    return {
        "status": "KILLED",
        "metrics": {},
        "histogram": None,
        "bundle_digest": bundle_digest,
        "baseline_run": None,
        "tags": {"problems": "the job ended before it could say how"},
        "units_file": None,
    }
