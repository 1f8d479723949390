"""The engines of a scorer, in a thread of their own: they load while the first units are read.

There is one for each bundle of the job. A row that is bad for one of them is bad for all; with
segments only the bundle of its segment sees it, beside those that score all rows.

Units whose pages the GPU decodes are scored in the threads that read them, several at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from dpiframe_core import _core
from dpiframe_core.errors import BadIdError, BundleError, DeviceLostError
from pipeline.config.job import SCORE_COLUMN
from pipeline.errors import UnitFailedError
from pipeline.planning.job_plan import PlannedModel, WorkerPlan
from pipeline.planning.segments import Rows, SegmentRows, segment_rows
from pipeline.reading.bad_rows import Column, Finding, as_signed, id_findings, zeroed
from pipeline.reading.unit_data import UnitColumns, UnitPages, as_matrix
from pipeline.scoring.resizing_engine import ResizingEngine
from pipeline.sizing.sizes import Sizes
from pipeline.storage.bundle_cache import bundle_fault, open_bundle_at

if TYPE_CHECKING:
    from dpiframe_core import Engine, FieldSpec
    from dpiframe_core.bundle.reading import Bundle

# After so many units in a row whose pages the GPU could not score, no more are tried, because each
# has to be read a second time.
MOST_REFUSED = 8
# Units of pages that a GPU has enough of: one is scored, three are copied, unpacked or ready for
# their turn, and two wait, so that it has work while a reader takes longer than usual.
ENOUGH_UNITS = 6
T = TypeVar("T")


class Scored(NamedTuple):
    """Scores [B] by column, findings about the rows whose scores mean nothing, and fields of the
    record.
    """

    scores: dict[str, np.ndarray]
    findings: list[Finding]
    record_fields: dict[str, Any]


class PagesRefusedError(Exception):
    """The unit must be read decoded; the text says what failed on the GPU, if the GPU did."""


class Model(NamedTuple):
    """A loaded model: its column, and what it takes of a unit's ids and dense features (None: all).

    The job's own has no name.
    """

    name: str
    column: str
    engine: ResizingEngine
    fields: list[str]
    specs: Sequence[FieldSpec]
    ids: Sequence[int] | None = None
    dense: Sequence[int] | None = None


class Inputs(NamedTuple):
    """What a model scores of a unit: ids [F, R] and dense features [N, R], of all its rows or of
    these [R].
    """

    model: Model
    ids: list[np.ndarray]
    dense: list[np.ndarray]
    rows: Rows | None = None

    @classmethod
    def of(cls, model: Model, unit: UnitColumns, rows: Rows | None = None) -> Inputs:
        """Those of a unit; of some rows, they are copied."""
        ids, dense = chosen(unit.ids, model.ids), chosen(unit.dense, model.dense)
        if rows is not None:
            ids, dense = in_rows(ids, rows), in_rows(dense, rows)
        return cls(model, ids, dense, rows)

    def score(self, unit: UnitColumns) -> tuple[np.ndarray, list[Finding]]:
        """Scores [R], and findings about the unit's rows."""
        engine = self.model.engine
        ids = [as_signed(column) for column in self.ids]
        dense = as_matrix(self.dense) if self.dense else None
        try:
            return engine.score(as_matrix(ids), dense), []
        except BadIdError:  # only now are the rows of bad ids looked for, as they are rare
            names = chosen(unit.id_names, self.model.ids)
            bad = list(id_findings(names, self.ids, self.model.specs))
            scores = engine.score(zeroed(ids, names, bad), dense)
            if self.rows is None:
                return scores, bad
            return scores, [replace(found, rows=self.rows[found.rows]) for found in bad]


class EngineThread:
    """The same engines for all threads of a scorer."""

    def __init__(self, plan: WorkerPlan, sizes: Sizes) -> None:
        """Begin to load; what goes wrong is raised by every `score`."""
        self._plan, self._sizes = plan, sizes
        self._refused = 0  # units in a row
        self._in_hand = 0  # units of pages
        self._guard = threading.Lock()  # of _in_hand
        self._thread = ThreadPoolExecutor(1, "engine")
        self._models = self._thread.submit(self._load)

    def close(self) -> None:
        """Give the engine's memory back. No call may be in hand."""
        self._thread.shutdown()
        if self._is_loaded():
            for model in self._models.result():
                model.engine.close()

    @property
    def on_gpu(self) -> bool:
        """Whether the engine is loaded, and runs on a GPU."""
        return self._is_loaded() and self._sizes.device == "cuda"

    @property
    def is_behind(self) -> bool:
        """Whether units of pages wait for the GPU while cores are idle."""
        return self._in_hand >= units_behind(self._sizes)

    @property
    def takes_pages(self) -> bool:
        """Whether units may come as pages, for the GPU to decode."""
        if self._refused >= MOST_REFUSED or self._plan.others:
            return False
        if not self._models.done():
            return self._sizes.device == "cuda"
        return self._is_loaded() and self._only.engine.page_scorer is not None

    @property
    def why_no_pages(self) -> str:
        """Why a GPU does not take pages; empty where it does, and where there is no GPU."""
        if self._refused >= MOST_REFUSED:
            return f"{MOST_REFUSED} units in a row could not be scored that way"
        return self._only.engine.no_page_scorer if self._is_loaded() else ""

    @property
    def _only(self) -> Model:
        """The model of `bundle`, once it is loaded."""
        return self._models.result()[0]

    def _is_loaded(self) -> bool:
        return self._models.done() and self._models.exception() is None

    def score(self, unit: UnitColumns | UnitPages) -> Scored:
        """Score a unit: UnitFailedError, or any error of the engine.

        Pages are scored in the caller's thread. PagesRefusedError: the GPU has no memory for them
        or fails, a page is corrupt, or an id is outside its table.
        """
        if isinstance(unit, UnitPages):
            with self._in_hand_too():
                return self._score_pages(unit)
        models, segments = self._models.result(), None
        by_bundle: dict[str, Rows] = {}
        if self._plan.config.segments is not None:
            column = unit.published.column(self._plan.config.segments.column)
            segments = segment_rows(column, self._plan.config.segments)
            by_bundle = segments.by_bundle
        # Rows are copied in the caller's thread: that takes longer than a GPU takes to score them.
        inputs = [
            Inputs.of(model, unit, rows)
            for model in models
            if (rows := by_bundle.get(model.name)) is None or len(rows)
        ]
        return self._thread.submit(self._score_inputs, inputs, unit, segments).result()

    @contextlib.contextmanager
    def _in_hand_too(self) -> Iterator[None]:
        with self._guard:
            self._in_hand += 1
        try:
            yield
        finally:
            with self._guard:
                self._in_hand -= 1

    def _score_pages(self, unit: UnitPages) -> Scored:
        engine = self._only.engine
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
            "bad_ids": bad_ids(self._only, found.bad_ids),
            "score_s": found.compute,
            "copy_in_s": found.copy_in,
            "unpack_s": found.unpack,
            "copy_out_s": found.copy_out,
            "batch_s": found.batch_seconds,
            "device": device,
            "reduced_batch": reduced_batch,
        }
        return Scored({SCORE_COLUMN: found.scores}, [], fields)

    def _score_inputs(
        self, inputs: Sequence[Inputs], unit: UnitColumns, segments: SegmentRows | None
    ) -> Scored:
        started = time.perf_counter()
        findings = list(unit.findings)
        scores: dict[str, np.ndarray] = {}
        outside: dict[str, int] = {}
        if segments is not None:
            scores[SCORE_COLUMN] = np.empty(len(unit.published), np.float32)
        for given in inputs:
            model = given.model
            found, bad = given.score(unit)
            if given.rows is None:
                scores[model.column] = found
            else:
                scores[SCORE_COLUMN][given.rows] = found
            findings = [*bad, *findings]
            outside |= bad_ids(model, model.engine.engine.bad_ids)
        engines = [given.model.engine.engine for given in inputs]
        models = self._models.result()
        reduced = [model.engine.reduced_batch for model in models]
        fields = {
            "bad_ids": outside,
            "score_s": time.perf_counter() - started,
            "copy_in_s": sum(engine.device_seconds.copy_in for engine in engines),
            "copy_out_s": sum(engine.device_seconds.copy_out for engine in engines),
            "batch_s": [float(seconds) for engine in engines for seconds in engine.batch_seconds],
            "device": models[0].engine.device,
            "reduced_batch": min((rows for rows in reduced if rows is not None), default=None),
            "segments": {} if segments is None else segments.by_value,
        }
        return Scored(scores, findings, fields)

    def _load(self) -> list[Model]:
        plan = self._plan
        try:
            with ThreadPoolExecutor(2, "import-engine") as importing:
                if self._sizes.device == "cuda":
                    importing.submit(_core.begin_cuda, 0)
                imported = importing.submit(_import_load_engine, self._sizes)
                bundle = opened_bundle(plan.bundle, plan.bundle_digest)
                load_engine = imported.result()
            first = self._loaded(load_engine, bundle)
            if plan.others:  # the columns of the first bundle come first
                ids, dense = range(len(bundle.spec.fields)), range(len(bundle.spec.dense))
                first = first._replace(ids=ids, dense=dense)
            models = [first]
            for other in plan.others:
                bundle = opened_bundle(other.location, other.digest)
                models.append(self._loaded(load_engine, bundle, other))
            return models
        except (UnitFailedError, DeviceLostError):
            raise
        except Exception as error:
            raise UnitFailedError("internal", f"the engine did not start: {error!r}") from error

    def _loaded(
        self, load_engine: Callable[..., Engine], bundle: Bundle, other: PlannedModel | None = None
    ) -> Model:
        config, sizes = self._plan.config, self._sizes
        load = partial(
            load_engine,
            bundle,
            device=sizes.device if other is None or other.width == 1 else "cpu",
            precision=config.precision,
            streams=config.streams,
            graphs=config.graphs,
            on_bad_id="oov" if config.on_bad_id == "oov" else "fail",
            threads=sizes.threads,
            light=sizes.light,
            output=other.output if other else None,
        )
        engine = ResizingEngine(lambda rows: load(max_batch=rows), sizes.max_batch)
        names = [field.name for field in bundle.spec.fields]
        specs = bundle.spec.fields
        if other is None:
            return Model("", SCORE_COLUMN, engine, names, specs)
        return Model(other.name, other.column, engine, names, specs, other.ids, other.dense)


def units_behind(sizes: Sizes) -> int:
    """From how many units of pages in hand on a GPU is behind: more than enough, and so many that
    those which are read or written take no more cores than Ray is asked for, a part of all.
    """
    return max(ENOUGH_UNITS, sizes.calls - int(sizes.scorer_cpus))


def in_rows(columns: Sequence[Column], rows: Rows) -> list[Column]:
    """The values of columns [B] in some rows [R], as the rows of one matrix for each type."""
    taken: list[Column] = []
    for _, run in itertools.groupby(columns, lambda column: column.dtype):
        alike = list(run)
        matrix = np.empty((len(alike), len(rows)), alike[0].dtype)
        for column, row in zip(alike, matrix, strict=True):
            np.take(column, rows, out=row, mode="clip")  # any other mode copies once more
        taken.extend(matrix)
    return taken


def chosen(columns: Sequence[T], places: Sequence[int] | None) -> list[T]:
    """The columns at some places; all without places."""
    return list(columns) if places is None else [columns[place] for place in places]


def bad_ids(model: Model, counts: np.ndarray) -> dict[str, int]:
    """Field -> ids outside its table, from counts [F]; of a further bundle `NAME.field`."""
    prefix = f"{model.name}." if model.name else ""
    named = zip(model.fields, counts, strict=True)
    return {f"{prefix}{name}": int(count) for name, count in named if count}


def opened_bundle(location: str, digest: str) -> Bundle:
    """The bundle that was planned; UnitFailedError: it is not there, or another one is."""
    try:
        bundle = open_bundle_at(location, digest)
    except (BundleError, OSError) as error:
        raise UnitFailedError(bundle_fault(location, error), str(error)) from error
    if bundle.digest != digest:
        raise UnitFailedError(
            "bundle",
            f"bundle {location} has digest {bundle.digest} on {socket.gethostname()}, "
            f"{digest} was planned: it must not change while a job runs",
        )
    return bundle


def _import_load_engine(sizes: Sizes) -> Callable[..., Engine]:
    """`load_engine`, with all that it imports: for the CPU also torch, which takes seconds."""
    if sizes.device == "cpu" and not sizes.light:
        import_module("dpiframe_core.engine.cpu")
    from dpiframe_core.engine.loading import load_engine

    return load_engine
