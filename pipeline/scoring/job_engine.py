"""The engine of a scorer: loaded while the first units are read, then one unit at a time.

Units that a GPU unpacks itself come from the threads that read them, several at a time.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpiframe_core import open_bundle
from dpiframe_core.errors import BadIdError, BundleError
from pipeline.publishing.records import ErrorKind
from pipeline.reading.bad_rows import Finding, harmless, id_findings
from pipeline.reading.read_stored import StoredUnit
from pipeline.reading.unit_block import UnitBlock
from pipeline.scoring.engine_loading import LoadedEngine, MemoryShortError
from pipeline.scoring.scorer_settings import ScorerSettings

if TYPE_CHECKING:
    from dpiframe_core import Engine

# Units in a row that the GPU may fail to unpack before it is left alone: each was read in vain.
MOST_REFUSED = 8


class UnitFailedError(Exception):
    """A unit that cannot be published; `kind` says in which way."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind


class Scored(NamedTuple):
    """Scores [B], findings about the rows whose score means nothing, and how it went."""

    scores: np.ndarray
    findings: list[Finding]
    bad_ids: dict[str, int]  # field -> ids outside its table
    score_s: float
    copy_in_s: float
    unpack_s: float
    copy_out_s: float
    batch_s: list[float]
    device: str
    reduced_batch: int | None

    def record_fields(self) -> dict[str, Any]:
        """What the record of a unit takes over as it is."""
        fields = self._asdict()
        del fields["scores"], fields["findings"]
        return fields


class Refused(NamedTuple):
    """A unit that the GPU did not unpack; `why`: what failed there, if not the unit is to blame."""

    why: str = ""


class JobEngine:
    """One engine for the threads of a scorer, in a thread of its own."""

    def __init__(self, settings: ScorerSettings) -> None:
        """Begin to load; what goes wrong is raised by every `score`."""
        self._settings = settings
        self._refused = 0  # units in a row that the GPU could not unpack
        self._thread = ThreadPoolExecutor(1, "engine")
        self._engine = self._thread.submit(self._load)

    @property
    def on_gpu(self) -> bool:
        """Whether the engine is loaded, and runs on a GPU."""
        loaded = self._engine.done() and self._engine.exception() is None
        return loaded and self._settings.device == "cuda"

    @property
    def unpacks(self) -> bool:
        """Whether units may come as their files store them, to be unpacked by a GPU."""
        if self._refused >= MOST_REFUSED:
            return False
        if not self._engine.done():
            return self._settings.device == "cuda"
        return self._engine.exception() is None and self._engine.result().stored is not None

    def why_not_unpacked(self) -> str:
        """Why units must be unpacked by the CPU although there is a GPU; empty where there is no
        such reason.
        """
        if self._refused >= MOST_REFUSED:
            return f"{MOST_REFUSED} units in a row could not be scored that way"
        loaded = self._engine.done() and self._engine.exception() is None
        return self._engine.result().not_stored if loaded else ""

    def score(self, block: UnitBlock) -> Scored:
        """Score a unit. UnitFailedError, or any error of the engine."""
        return self._thread.submit(self._score, self._engine.result(), block).result()

    def score_stored(self, unit: StoredUnit) -> Scored | Refused:
        """Score a unit whose ids the GPU unpacks, in the caller's thread; UnitFailedError.

        Refused where that is not possible, and the unit must be read another way: the GPU has no
        room for it or fails, a page is corrupt, an id is outside its table. Where it is so for unit
        after unit, no more are tried.
        """
        engine = self._engine.result()
        device, reduced_batch, scorer = engine.device, engine.reduced_batch, engine.stored
        try:
            found = None if scorer is None else scorer.score(unit.ids, unit.memory, unit.dense)
        except RuntimeError as error:  # the ordinary way may do, or fail in the same way
            self._refused += 1
            return Refused(str(error))
        if found is None or (found.bad_ids.any() and self._settings.config.on_bad_id != "oov"):
            self._refused += 1
            return Refused()
        self._refused = 0
        bad_ids = zip(self._fields, found.bad_ids, strict=True)
        return Scored(
            scores=found.scores,
            findings=[],
            bad_ids={name: int(count) for name, count in bad_ids if count},
            score_s=found.compute,
            copy_in_s=found.copy_in,
            unpack_s=found.unpack,
            copy_out_s=found.copy_out,
            batch_s=found.batch_seconds,
            device=device,
            reduced_batch=reduced_batch,
        )

    def _score(self, engine: LoadedEngine, block: UnitBlock) -> Scored:
        started = time.perf_counter()
        scores, findings = self._scores(engine, block)
        bad_ids = zip(self._fields, engine.bad_ids, strict=True)
        return Scored(
            scores=scores,
            findings=findings,
            bad_ids={name: int(count) for name, count in bad_ids if count},
            score_s=time.perf_counter() - started,
            copy_in_s=engine.device_seconds.copy_in,
            unpack_s=0.0,
            copy_out_s=engine.device_seconds.copy_out,
            batch_s=[float(seconds) for seconds in engine.batch_seconds],
            device=engine.device,
            reduced_batch=engine.reduced_batch,
        )

    def _scores(self, engine: LoadedEngine, block: UnitBlock) -> tuple[np.ndarray, list[Finding]]:
        """Scores [B] and all findings.

        That ids are within their tables is left to the engine; only where it finds one that is not
        are the rows looked for, and scored again without such ids.
        """
        dense = block.dense if len(block.dense) else None
        try:
            return engine.score(block.ids, dense), block.findings
        except BadIdError:
            ids = list(block.ids)
            bad = list(id_findings(block.id_columns, ids, self._table_rows))
            names = [name for name, _ in block.id_columns]
            return engine.score(harmless(ids, names, bad), dense), [*bad, *block.findings]

    def _load(self) -> LoadedEngine:
        try:
            return self._loaded()
        except UnitFailedError:
            raise
        except MemoryShortError as error:
            raise UnitFailedError("memory", str(error)) from error
        except Exception as error:
            raise UnitFailedError("internal", f"the engine did not start: {error!r}") from error

    def _loaded(self) -> LoadedEngine:
        settings, config = self._settings, self._settings.config
        with ThreadPoolExecutor(1, "import-engine") as importing:
            imported = importing.submit(_load_engine_for, settings.device)
            try:
                bundle = open_bundle(config.bundle)
            except (BundleError, OSError) as error:
                raise UnitFailedError("bundle", str(error)) from error
            load_engine = imported.result()
        if bundle.digest != settings.bundle_digest:
            raise UnitFailedError(
                "bundle",
                f"bundle {config.bundle} has digest {bundle.digest} on {socket.gethostname()}, "
                f"{settings.bundle_digest} was planned: it must not change while a job runs",
            )
        self._fields = [field.name for field in bundle.spec.fields]
        self._table_rows = [field.rows for field in bundle.spec.fields]
        load = partial(
            load_engine,
            bundle,
            device=settings.device,
            precision=config.precision,
            streams=config.streams,
            graphs=config.graphs,
            on_bad_id="oov" if config.on_bad_id == "oov" else "fail",
            threads=settings.threads,
        )
        return LoadedEngine(lambda rows: load(max_batch=rows), settings.max_batch)


def _load_engine_for(device: str) -> Callable[..., Engine]:
    """`load_engine`, with all that it imports: for the CPU also torch, which takes seconds."""
    if device == "cpu":
        import_module("dpiframe_core.engine.cpu")
    from dpiframe_core.engine.loading import load_engine

    return load_engine
