"""Engine: scores batches with a bundle on one device; the only face of the engine to its users."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dpiframe_core import _core
from dpiframe_core.bundle import Bundle, open_bundle
from dpiframe_core.cpu_engine import CpuEngine
from dpiframe_core.errors import BadIdError
from dpiframe_core.lowering import lower

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
DEVICES = ("cpu",)  # that this version has an engine for
Ids = Any  # [F, B] array of int32/int64 (numpy, torch, DLPack), or F columns [B]


class Engine:
    """A model ready to score. Use it from one thread at a time; several engines may coexist.

    Attributes: `device`, `precision` (what was asked for; the CPU always computes in float32),
    `bad_ids` [F] (ids outside their tables in the last call), `batch_seconds` (of the last call's
    batches).
    """

    def __init__(
        self, bundle: Bundle, runner: CpuEngine, precision: str, max_batch: int, on_bad_id: str
    ) -> None:
        self.bundle, self.spec, self.precision = bundle, bundle.spec, precision
        self.device, self.max_batch = runner.device, max_batch
        self._runner: CpuEngine | None = runner
        self._use_oov = on_bad_id == "oov"
        self.bad_ids = np.zeros(len(self.spec.fields), np.int64)
        self.batch_seconds: list[float] = []

    def score(self, ids: Ids, dense: Any = None) -> np.ndarray:
        """Click probabilities [B] float32.

        `ids`: [F, B] int32 or int64, field-major, or F columns [B] (no copy is made of either);
        `dense`: [N, B] float32 or N columns, None where the model has none. Any B >= 0. Dense
        values must be finite, which is not checked: the score of such a row means nothing.
        ValueError for wrong shapes or types, BadIdError for an id outside its table with the
        policy `fail`; with `oov` such an id scores as its field's `oov_row`.
        """
        logits = self.logits(ids, dense)
        with np.errstate(over="ignore"):
            scores: np.ndarray = np.float32(1) / (np.float32(1) + np.exp(-logits))
        return scores

    def logits(self, ids: Ids, dense: Any = None) -> np.ndarray:
        """Logits [B] float32: `score` before the sigmoid."""
        if self._runner is None:
            raise RuntimeError("the engine is closed")
        columns, batch = self._id_columns(ids)
        values = self._dense(dense, batch if columns else None)
        batch = values.shape[1]
        logits = np.empty(batch, np.float32)
        self.bad_ids = np.zeros(len(self.spec.fields), np.int64)
        self.batch_seconds = []
        for start in range(0, batch, self.max_batch):
            began = time.perf_counter()
            rows = slice(start, min(start + self.max_batch, batch))
            part = [column[rows] for column in columns]
            counts = self._runner.run(part, values[:, rows], self._use_oov, logits[rows])
            if counts.any() and not self._use_oov:
                self._fail(columns)
            self.bad_ids += counts
            self.batch_seconds.append(time.perf_counter() - began)
        return logits

    def stream(self, batches: Iterable[tuple[Ids, Any]]) -> Iterator[np.ndarray]:
        """Scores of each (ids, dense) in turn."""
        for ids, dense in batches:
            yield self.score(ids, dense)

    def describe(self) -> str:
        """The model and the plan that runs it, in words."""
        if self._runner is None:
            return "closed"
        return f"{self.spec.name}, precision {self.precision}, {self._runner.describe()}"

    def close(self) -> None:
        """Free the engine's memory; it cannot score any more."""
        self._runner = None

    def _id_columns(self, ids: Ids) -> tuple[list[np.ndarray], int]:
        names = [field.name for field in self.spec.fields]
        columns = [_column(c) for c in ids] if isinstance(ids, (list, tuple)) else list(_array(ids))
        if len(columns) != len(names):
            raise ValueError(f"ids must have {len(names)} rows, one a field, got {len(columns)}")
        for name, column in zip(names, columns, strict=True):
            if column.ndim != 1 or len(column) != len(columns[0]):
                raise ValueError(
                    f"ids of field {name} must have shape [{len(columns[0])}], "
                    f"got {list(column.shape)}"
                )
            if column.dtype not in (np.int32, np.int64):
                raise ValueError(f"ids of field {name} must be int32 or int64, got {column.dtype}")
        return columns, len(columns[0]) if columns else 0

    def _dense(self, dense: Any, batch: int | None) -> np.ndarray:
        wanted = len(self.spec.dense)
        if dense is None:
            if wanted:
                raise ValueError(f"the model has {wanted} dense features, got none")
            return np.empty((0, batch or 0), np.float32)
        rows = [_column(c) for c in dense] if isinstance(dense, (list, tuple)) else _array(dense)
        values = np.stack(rows) if isinstance(rows, list) and rows else np.asarray(rows)
        if values.size == 0 and wanted == 0:
            return np.empty((0, batch or 0), np.float32)
        if values.ndim != 2 or len(values) != wanted or batch not in (None, values.shape[1]):
            expected = f"[{wanted}, {'B' if batch is None else batch}]"
            raise ValueError(f"dense must have shape {expected}, got {list(values.shape)}")
        if values.dtype != np.float32:
            raise ValueError(f"dense must be float32, got {values.dtype}")
        return values

    def _fail(self, columns: Sequence[np.ndarray]) -> None:
        """Raise for the first bad id, with the counts of the whole call."""
        rows = [field.rows for field in self.spec.fields]
        mask, self.bad_ids = _core.find_bad_ids(list(columns), rows)
        row = int(np.argmax(mask))
        for field, column in zip(self.spec.fields, columns, strict=True):
            value = int(column[row])
            if not 0 <= value < field.rows:
                raise BadIdError(field.name, row, value, field.rows)
        raise AssertionError("a bad id was counted but not found")


def load_engine(
    bundle: str | Path | Bundle,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    precision: Precision = "fp32",
    max_batch: int = 65536,
    streams: int = 4,
    graphs: bool = True,
    on_bad_id: Literal["fail", "oov"] = "fail",
    threads: int | None = None,
) -> Engine:
    """Open a bundle and make it ready to score.

    `max_batch`: rows a device batch (larger inputs are cut); `streams` and `graphs`: how a GPU
    runs the plan, without effect on the CPU; `threads`: CPU threads, set for the whole process
    (default: torch's setting).
    With `on_bad_id="oov"` every field needs an `oov_row`. The CPU computes in float32 whatever
    the precision, which is within the bound of each.
    """
    _check_choice("device", device, ("auto", *DEVICES))
    _check_choice("precision", precision, PRECISIONS)
    _check_choice("on_bad_id", on_bad_id, ("fail", "oov"))
    for name, value in (("max_batch", max_batch), ("streams", streams), ("threads", threads)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    if on_bad_id == "oov":
        without = [field.name for field in opened.spec.fields if field.oov_row is None]
        if without:
            raise ValueError(f"on_bad_id='oov' needs an oov_row in every field; none in {without}")
    program = lower(opened.spec, opened.weights())
    return Engine(opened, CpuEngine(program, max_batch, threads), precision, max_batch, on_bad_id)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _array(value: Any) -> np.ndarray:
    array = _column(value)
    if array.ndim != 2:
        raise ValueError(f"expected 2 dimensions, one row a feature, got shape {array.shape}")
    return array


def _column(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.from_dlpack(value)
    except (AttributeError, BufferError, RuntimeError, TypeError) as error:
        kind = type(value).__name__
        raise ValueError(f"expected arrays in CPU memory, got {kind}: {error}") from None
