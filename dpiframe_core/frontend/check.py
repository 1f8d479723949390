"""Whether a converted model computes what the PyTorch module does: both score the same samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dpiframe_core import _core
from dpiframe_core.bundle.reading import Bundle
from dpiframe_core.engine.loading import DEVICES, load_engine
from dpiframe_core.engine.precision import Precision
from dpiframe_core.errors import BadIdError, ModelImportError
from dpiframe_core.evaluation import auc, logloss
from dpiframe_core.frontend.columns import Chosen, Feed
from dpiframe_core.frontend.periods import Repeats
from dpiframe_core.frontend.tracing.source import Source
from dpiframe_core.frontend.values import Column
from dpiframe_core.frontend.whole_sums import MOST_WHOLE
from dpiframe_core.lowering import lower
from dpiframe_core.model.spec import ModelSpec
from dpiframe_core.model.torch_module import in_tables
from dpiframe_core.program.interpreter import run_program

SAMPLES = 512
TOGETHER = 8  # times as many of numbers that float32 rounds
LATER_BITS = 20  # twelve days in seconds
TOLERANCE = 1e-5
OWN_TIMES, OWN_MOST = 4, 1e-3
FIRST_DIGITS = 1e-2
MOST_LOGIT = 1e4  # of a probability of 1
EXACT, CPU = "interpreter, float64", "CPU, fp32"
_NOWHERE = Path()


@dataclass(frozen=True)
class SampleKind:
    """What random samples may have."""

    empty_lists: bool = True
    negatives: bool = True
    beyond_examples: bool = True  # ids below, whole numbers outside: a length of 0
    drawn: Literal["all", "ids", "nothing"] = "all"  # the others are those of an example


BESIDE_AN_EXAMPLE = SampleKind(False, False, False, "ids")
LAST = SampleKind(False, False, False, "nothing")
SAMPLE_KINDS = {
    "random": SampleKind(),
    "random, no list empty": SampleKind(empty_lists=False),
    "random, no list empty and no number negative": SampleKind(False, False),
    "random, no list empty, no number negative, whole ones as of the examples": SampleKind(
        False, False, False
    ),
    "random ids beside the numbers of an example": BESIDE_AN_EXAMPLE,
    "the examples": LAST,
}


@dataclass(frozen=True)
class Unsaved(Bundle):
    """A bundle whose weights are in memory, not yet in a file."""

    held: Mapping[str, np.ndarray] | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        return dict(self.held or {})


@dataclass(frozen=True)
class Expected:
    """Logits [B] in float64; `noise` [B] is what rounding of the probabilities that they were
    taken of may hide, inf where these are 0 or 1. `is_rounded`: the model makes no logit but a
    probability, so in float32 its logits have the noise of float32 probabilities.
    """

    logits: np.ndarray
    noise: np.ndarray
    is_rounded: bool = False

    @classmethod
    def of_logits(cls, logits: np.ndarray) -> Expected:
        """Logits as they are."""
        return cls(logits.astype(np.float64), np.zeros(len(logits)))

    @classmethod
    def of_probabilities(cls, probabilities: np.ndarray) -> Expected:
        """The logits of probabilities, which were rounded to their type."""
        p = probabilities.astype(np.float64)
        with np.errstate(divide="ignore"):
            logits = np.log(p) - np.log1p(-p)
        kind = getattr(torch, probabilities.dtype.name)
        return cls(np.clip(logits, -MOST_LOGIT, MOST_LOGIT), rounding_noise(p, kind))

    def differences(self, logits: np.ndarray, in_float32: bool = True) -> np.ndarray:
        """|difference| / max(1, |logit|) of each sample, beyond what rounding may hide.

        Where a probability is 0 or 1 the logit is unknown: there the probabilities are compared.
        """
        away = np.abs(logits - self.logits)
        noise = self.noise
        if in_float32 and self.is_rounded:
            noise = np.maximum(noise, rounding_noise(sigmoid(self.logits), torch.float32))
        known = np.isfinite(noise)
        scaled = np.maximum(away - np.where(known, noise, 0), 0)
        scaled /= np.maximum(1, np.abs(self.logits))
        ends = np.abs(sigmoid(logits) - (self.logits > 0))
        found: np.ndarray = np.where(known, scaled, ends)
        return found


def rounding_noise(probabilities: np.ndarray, kind: torch.dtype, times: float = 4.0) -> np.ndarray:
    """How far logits may be from the true ones where probabilities are `times` the type's eps off:
    near 1 only their distance to it counts, near 0 they are precise down to the smallest number of
    the type. Infinite where they are 0 or 1.
    """
    unit, smallest = times * torch.finfo(kind).eps, torch.finfo(kind).smallest_normal
    with np.errstate(divide="ignore"):
        noise = unit * (np.maximum(1, smallest / probabilities) / (1 - probabilities) + 1)
    return np.where((probabilities <= 0) | (probabilities >= 1), np.inf, noise)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """In float64."""
    return 1 / (1 + np.exp(-np.clip(x.astype(np.float64), -700, 700)))


def summary(differences: np.ndarray) -> dict[str, float]:
    """Of differences [B]: the largest, the mean, and what 99.9% of them are within."""
    return {
        "largest": float(differences.max()),
        "mean": float(differences.mean()),
        "within_99_9_percent": float(np.quantile(differences, 0.999)),
    }


def allowed(tolerance: float, own: float) -> float:
    """The difference that is allowed of a module that is `own` away from itself in float32: nobody
    can ask another order of its operations to be much nearer.
    """
    return max(tolerance, min(OWN_TIMES * own, OWN_MOST))


def refuse_beyond(
    differences: np.ndarray, tolerance: float, what: str, logits: np.ndarray, expected: Expected
) -> None:
    """ModelImportError where a difference is beyond the tolerance, or is no number."""
    unknown = np.flatnonzero(np.isnan(expected.logits))
    if len(unknown):
        raise ModelImportError(
            f"the model itself says NaN of {len(unknown)} of {len(differences)} samples (the first "
            f"is sample {unknown[0]}): give samples like those that it will see"
        )
    worst = int(np.argmax(np.where(np.isnan(differences), np.inf, differences)))
    if not differences[worst] <= tolerance:
        raise ModelImportError(
            f"{what} differs from the model by {differences[worst]:.2g} x max(1, |logit|), at most "
            f"{tolerance:.2g} is allowed: sample {worst} has logit {logits[worst]:.9g}, the model "
            f"says {expected.logits[worst]:.9g}. Give samples like those that the model will see, "
            "or a larger tolerance if this is what its arithmetic allows"
        )


def draw_samples(
    source: Source, feeds: list[Feed], chosen: Chosen, kind: SampleKind = SAMPLE_KINDS["random"],
    seed: int = 0,
) -> dict[str, Tensor]:  # fmt: skip
    """Random inputs by name: ids over all rows of their tables, the first and the last in the
    first samples, lists of random lengths, other numbers from a normal distribution, without a sign
    where an input's examples have none, whole ones up to the examples' largest. What is not drawn,
    or the model does not use, is that of one example for each sample.
    """
    least, most = source.batches
    count = min(max(SAMPLES, least), most)
    random = np.random.default_rng(seed)
    rows = {column: n for column, (_, n) in chosen.features.fields.items()}
    found = {}
    for name, shape in source.inputs.items():
        example = source.example(name)
        repeated = example[torch.arange(count) % example.shape[0]]
        matrix = repeated.reshape(count, -1).to(torch.float64).numpy().copy()
        for i in range(matrix.shape[1]):
            column = Column(name, i)
            if column in rows and kind.drawn != "nothing":
                if (repeats := chosen.periods.get(column)) is not None:
                    end = source.most(column) if repeats.last is None else repeats.last
                    ids = source.ids(column)
                    matrix[:, i] = _drawn_endless(ids, repeats, end or 0, count, random)
                    continue
                # No id is negative, as the padding of a module's own examples may be.
                own = max(0, min(int(matrix[:, i].min()), rows[column] - 1))
                least = 0 if kind.beyond_examples else own
                matrix[:, i] = _drawn_ids(least, rows[column], count, random)
            elif column in chosen.dense_columns and kind.drawn == "all":
                matrix[:, i] = _drawn_numbers(example, count, kind, random)
        for feed in feeds:
            is_drawn = kind.drawn == "all" or (kind.drawn == "ids" and feed.places[0] in rows)
            if feed.input == name and feed.elements is not None and is_drawn:
                lists = matrix[:, feed.start : feed.start + feed.count]
                if not kind.empty_lists:
                    _fill(lists, feed, rows.get(feed.places[0]))
                _shorten(lists, feed, kind.empty_lists, random)
        found[name] = torch.from_numpy(matrix).to(example.dtype).reshape(count, *shape)
    return found


def draw_together(
    source: Source, feeds: list[Feed], chosen: Chosen, rounded: Sequence[str], seed: int
) -> dict[str, Tensor]:
    """Random ids beside the numbers of an example. Those of the inputs that float32 rounds are
    later, each by up to one time for all of a sample: some lie as near as an example's do.
    """
    found = draw_samples(source, feeds, chosen, BESIDE_AN_EXAMPLE, seed)
    random = np.random.default_rng(seed)
    count = len(next(iter(found.values())))
    for at in range(count):
        most = int(2 ** random.uniform(0, LATER_BITS))
        for name in rounded:
            row = found[name][at : at + 1]
            later = torch.from_numpy(random.integers(0, most, tuple(row.shape))).to(row.dtype)
            row += torch.where(row > MOST_WHOLE, later, 0)
    return found


def _drawn_ids(least: int, rows: int, count: int, random: np.random.Generator) -> np.ndarray:
    ids = random.integers(least, rows, count)
    ids[:2] = (least, rows - 1)[: len(ids[:2])]
    return ids


def _drawn_endless(
    examples: np.ndarray, repeats: Repeats, most: int, count: int, random: np.random.Generator
) -> np.ndarray:
    """Ids up to `most`, a third of them in the table and a third up to the examples' largest."""
    sizes = random.choice([repeats.rows, max(1, int(examples.max())), min(most, 2**62)], count)
    signs = random.choice([-1, 1], count) if repeats.start == 0 else np.ones(count, np.int64)
    found: np.ndarray = signs * (random.random(count) * sizes).astype(np.int64)
    return found


def _drawn_numbers(
    example: Tensor, count: int, kind: SampleKind, random: np.random.Generator
) -> np.ndarray:
    most = float(example.max())
    if example.dtype.is_floating_point:
        found = random.standard_normal(count, np.float32)
        has_sign = kind.negatives and not (most > 0 and bool((example >= 0).all()))
        return found if has_sign else abs(found)
    if not kind.beyond_examples:
        return random.integers(int(example.min()), int(most) + 1, count)
    least = min(0, int(example.min())) if kind.negatives else 0
    end = 2 if example.dtype == torch.bool else max(8, int(most) + 1)
    return random.integers(least, end, count)


def _fill(lists: np.ndarray, feed: Feed, rows: int | None) -> None:
    """Let another id stand where one of lists [B, L] is the pad."""
    assert feed.elements is not None
    if rows:
        lists[lists == feed.elements.pad] = (feed.elements.pad + 1) % rows


def _shorten(lists: np.ndarray, feed: Feed, empty_lists: bool, random: np.random.Generator) -> None:
    """Give lists [B, L] random lengths, the first two full and, if they may be, empty."""
    assert feed.elements is not None
    least = 0 if empty_lists else 1
    lengths = random.integers(least, feed.count + 1, len(lists))
    lengths[:2] = (feed.count, least)[: len(lengths[:2])]
    places = np.arange(feed.count)
    if feed.elements.side == "before":
        places = places[::-1]
    lists[places >= lengths[:, None]] = feed.elements.pad


def engine_inputs(inputs: Mapping[str, Tensor], chosen: Chosen) -> tuple[np.ndarray, np.ndarray]:
    """ids [F, B] int64 and dense [N, B] float64 of input tensors by name."""
    flat = {name: tensor.reshape(tensor.shape[0], -1) for name, tensor in inputs.items()}
    count = len(next(iter(flat.values())))

    def rows_of(columns: tuple[Column, ...], kind: torch.dtype) -> np.ndarray:
        found = [flat[c.input][:, c.position].to(kind) for c in columns]
        return torch.stack(found).numpy() if found else np.zeros((0, count), np.float64)

    ids = rows_of(chosen.id_columns, torch.int64).astype(np.int64)
    return ids, rows_of(chosen.dense_columns, torch.float64)


def module_inputs(
    source: Source, chosen: Chosen, ids: np.ndarray, dense: np.ndarray
) -> dict[str, Tensor]:
    """The inputs by name of which `engine_inputs` makes ids [F, B] and dense [N, B]."""
    count = ids.shape[1] if len(chosen.id_columns) else dense.shape[1]
    rows = dict(zip(chosen.id_columns, ids, strict=True))
    rows |= zip(chosen.dense_columns, dense, strict=True)
    found = {}
    for name, shape in source.inputs.items():
        example = source.example(name)
        # By columns, which lie as they are given: a sample's numbers are far from each other there.
        columns = example.reshape(len(example), -1).T[:, torch.arange(count) % len(example)]
        for i, column in enumerate(columns):
            if (row := rows.get(Column(name, i))) is not None:
                column.copy_(torch.from_numpy(np.array(row)))
        found[name] = columns.T.contiguous().reshape(count, *shape)
    return found


def engine_logits(
    spec: ModelSpec, weights: Mapping[str, Tensor], ids: np.ndarray, dense: np.ndarray,
    precisions: Sequence[Precision] = ("fp32",),
) -> dict[str, np.ndarray]:  # fmt: skip
    """Logits [B] of the interpreter in float64, of the engine on the CPU, and on a GPU in each of
    the precisions where there is one, by what computed them. ModelImportError for a bad id.
    """
    arrays = {name: weight.detach().numpy() for name, weight in weights.items()}
    bundle = Unsaved(path=_NOWHERE, spec=spec, digest="", held=arrays)
    given = dense.astype(np.float32) if len(spec.dense) else None
    runs: list[tuple[str, str, Precision]] = [(CPU, "cpu", "fp32")]
    if "cuda" in DEVICES and _core.cuda_device_count():
        runs += [(f"GPU, {precision}", "cuda", precision) for precision in precisions]
    found = {}
    for name, device, precision in runs:
        engine = load_engine(bundle, device=device, precision=precision, max_batch=1024)
        try:
            found[name] = engine.logits(ids, given)
        except BadIdError as error:
            raise ModelImportError(f"the samples: {error}") from None
        finally:
            engine.close()
    doubled = lower(spec, {name: array.astype(np.float64) for name, array in arrays.items()})
    with torch.no_grad():
        inside = in_tables(spec, torch.from_numpy(ids))
        exact = run_program(doubled, inside, torch.from_numpy(dense))
    return {EXACT: exact.numpy(), **found}


def compare(
    found: Mapping[str, np.ndarray], expected: Expected, tolerance: float
) -> dict[str, dict[str, float]]:
    """How far logits are from those expected, by what computed them.

    ModelImportError where the interpreter's or the CPU's are beyond the tolerance.
    """
    differences = {
        name: expected.differences(logits, in_float32=name != EXACT)
        for name, logits in found.items()
    }
    for name in (EXACT, CPU):
        refuse_beyond(differences[name], tolerance, name, found[name], expected)
    return {name: summary(each) for name, each in differences.items()}


def quality(labels: Any, logits: np.ndarray, expected: Expected) -> dict[str, dict[str, float]]:
    """AUC and logloss of the engine's scores and of the module's."""
    found = np.asarray(labels, np.float64).reshape(-1)
    if len(found) != len(logits) or not np.isin(found, (0, 1)).all():
        raise ModelImportError(
            f"labels must be 0 or 1 for each of {len(logits)} samples, got {len(found)} from "
            f"{found.min():g} to {found.max():g}"
        )
    scores = {"the engine": sigmoid(logits), "the module": sigmoid(expected.logits)}
    try:
        return {
            name: {"auc": auc(found, p), "logloss": logloss(found, p)} for name, p in scores.items()
        }
    except ValueError as error:
        raise ModelImportError(f"labels: {error}") from None
