"""The engine of a scorer, in a thread of its own: it loads while the first units are read.

Units whose pages the GPU decodes are scored in the threads that read them, several at a time.
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

from dpiframe_core.errors import BadIdError, BundleError, DeviceLostError
from pipeline.errors import UnitFailedError
from pipeline.planning.job_plan import WorkerPlan
from pipeline.reading.bad_rows import Finding, as_signed, id_findings, zeroed
from pipeline.reading.unit_data import UnitColumns, UnitPages, as_matrix
from pipeline.scoring.resizing_engine import ResizingEngine
from pipeline.sizing.sizes import Sizes
from pipeline.storage.bundle_cache import bundle_fault, open_bundle_at

if TYPE_CHECKING:
    from dpiframe_core import Engine

# After so many units in a row whose pages the GPU could not score, no more are tried, because each
# has to be read a second time.
MOST_REFUSED = 8


class Scored(NamedTuple):
    """Scores [B], findings about the rows whose scores mean nothing, and fields of the record."""

    scores: np.ndarray
    findings: list[Finding]
    record_fields: dict[str, Any]


class PagesRefusedError(Exception):
    """The unit must be read decoded; the text says what failed on the GPU, if the GPU did."""


class EngineThread:
    """One engine for all threads of a scorer."""

    def __init__(self, plan: WorkerPlan, sizes: Sizes) -> None:
        """Begin to load; what goes wrong is raised by every `score`."""
        self._plan, self._sizes = plan, sizes
        self._refused = 0  # units in a row
        self._thread = ThreadPoolExecutor(1, "engine")
        self._engine = self._thread.submit(self._load)

    def close(self) -> None:
        """Give the engine's memory back. No call may be in hand."""
        self._thread.shutdown()
        if self._is_loaded():
            self._engine.result().close()

    @property
    def on_gpu(self) -> bool:
        """Whether the engine is loaded, and runs on a GPU."""
        return self._is_loaded() and self._sizes.device == "cuda"

    @property
    def takes_pages(self) -> bool:
        """Whether units may come as pages, for the GPU to decode."""
        if self._refused >= MOST_REFUSED:
            return False
        if not self._engine.done():
            return self._sizes.device == "cuda"
        return self._is_loaded() and self._engine.result().page_scorer is not None

    @property
    def why_no_pages(self) -> str:
        """Why a GPU does not take pages; empty where it does, and where there is no GPU."""
        if self._refused >= MOST_REFUSED:
            return f"{MOST_REFUSED} units in a row could not be scored that way"
        return self._engine.result().no_page_scorer if self._is_loaded() else ""

    def _is_loaded(self) -> bool:
        return self._engine.done() and self._engine.exception() is None

    def score(self, unit: UnitColumns | UnitPages) -> Scored:
        """Score a unit: UnitFailedError, or any error of the engine.

        Pages are scored in the caller's thread. PagesRefusedError: the GPU has no memory for them
        or fails, a page is corrupt, or an id is outside its table.
        """
        if isinstance(unit, UnitPages):
            return self._score_pages(unit)
        return self._thread.submit(self._score_columns, self._engine.result(), unit).result()

    def _score_pages(self, unit: UnitPages) -> Scored:
        engine = self._engine.result()
        device, reduced_batch, scorer = engine.device, engine.reduced_batch, engine.page_scorer
        try:
            found = None if scorer is None else scorer.score(unit.ids, unit.memory, unit.dense)
        except DeviceLostError:
            raise
        except RuntimeError as error:
            self._refused += 1
            raise PagesRefusedError(str(error)) from error
        if found is None or (found.bad_ids.any() and self._plan.config.on_bad_id != "oov"):
            self._refused += 1
            raise PagesRefusedError
        self._refused = 0
        fields = {
            "bad_ids": self._bad_ids(found.bad_ids),
            "score_s": found.compute,
            "copy_in_s": found.copy_in,
            "unpack_s": found.unpack,
            "copy_out_s": found.copy_out,
            "batch_s": found.batch_seconds,
            "device": device,
            "reduced_batch": reduced_batch,
        }
        return Scored(found.scores, [], fields)

    def _score_columns(self, resizing: ResizingEngine, unit: UnitColumns) -> Scored:
        started = time.perf_counter()
        ids = [as_signed(column) for column in unit.ids]
        dense = as_matrix(unit.dense) if unit.dense else None
        findings = unit.findings
        try:
            scores = resizing.score(as_matrix(ids), dense)
        except BadIdError:  # only now are the rows of bad ids looked for, as they are rare
            bad = list(id_findings(unit.id_names, unit.ids, self._table_rows))
            scores = resizing.score(zeroed(ids, unit.id_names, bad), dense)
            findings = [*bad, *findings]
        engine = resizing.engine
        fields = {
            "bad_ids": self._bad_ids(engine.bad_ids),
            "score_s": time.perf_counter() - started,
            "copy_in_s": engine.device_seconds.copy_in,
            "copy_out_s": engine.device_seconds.copy_out,
            "batch_s": [float(seconds) for seconds in engine.batch_seconds],
            "device": resizing.device,
            "reduced_batch": resizing.reduced_batch,
        }
        return Scored(scores, findings, fields)

    def _bad_ids(self, counts: np.ndarray) -> dict[str, int]:
        """Field -> ids outside its table, from counts [F]."""
        named = zip(self._fields, counts, strict=True)
        return {name: int(count) for name, count in named if count}

    def _load(self) -> ResizingEngine:
        try:
            return self._load_engine()
        except (UnitFailedError, DeviceLostError):
            raise
        except Exception as error:
            raise UnitFailedError("internal", f"the engine did not start: {error!r}") from error

    def _load_engine(self) -> ResizingEngine:
        config, sizes, digest = self._plan.config, self._sizes, self._plan.bundle_digest
        with ThreadPoolExecutor(1, "import-engine") as importing:
            imported = importing.submit(_import_load_engine, sizes)
            try:
                bundle = open_bundle_at(self._plan.bundle, digest)
            except (BundleError, OSError) as error:
                kind = bundle_fault(self._plan.bundle, error)
                raise UnitFailedError(kind, str(error)) from error
            load_engine = imported.result()
        if bundle.digest != digest:
            raise UnitFailedError(
                "bundle",
                f"bundle {self._plan.bundle} has digest {bundle.digest} on {socket.gethostname()}, "
                f"{digest} was planned: it must not change while a job runs",
            )
        self._fields = [field.name for field in bundle.spec.fields]
        self._table_rows = [field.rows for field in bundle.spec.fields]
        load = partial(
            load_engine,
            bundle,
            device=sizes.device,
            precision=config.precision,
            streams=config.streams,
            graphs=config.graphs,
            on_bad_id="oov" if config.on_bad_id == "oov" else "fail",
            threads=sizes.threads,
            light=sizes.light,
        )
        return ResizingEngine(lambda rows: load(max_batch=rows), sizes.max_batch)


def _import_load_engine(sizes: Sizes) -> Callable[..., Engine]:
    """`load_engine`, with all that it imports: for the CPU also torch, which takes seconds."""
    if sizes.device == "cpu" and not sizes.light:
        import_module("dpiframe_core.engine.cpu")
    from dpiframe_core.engine.loading import load_engine

    return load_engine
