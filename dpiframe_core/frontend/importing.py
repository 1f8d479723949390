"""`from_torch`: any PyTorch CTR model as a bundle, and the proof that both score alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dpiframe_core.bundle.reading import Bundle
from dpiframe_core.bundle.writing import save_bundle
from dpiframe_core.engine.precision import Precision
from dpiframe_core.errors import ModelImportError, SpecError
from dpiframe_core.frontend import check
from dpiframe_core.frontend.assemble import assembled
from dpiframe_core.frontend.check import Expected, engine_inputs
from dpiframe_core.frontend.columns import (
    Chosen,
    Feed,
    choose_features,
    columns_of_inputs,
    feeds_of,
)
from dpiframe_core.frontend.convert import first_narrow
from dpiframe_core.frontend.draft import Compute, Draft
from dpiframe_core.frontend.drafting import (
    Output,
    choose_output,
    drafted,
    keep_output,
    used_columns,
)
from dpiframe_core.frontend.fuxictr import FuxiSchema
from dpiframe_core.frontend.schemas import Encoding, by_schema, columns_of_schema
from dpiframe_core.frontend.tasks import Converted, joined
from dpiframe_core.frontend.tracing.source import Source, of_archive, of_module
from dpiframe_core.frontend.values import Column
from dpiframe_core.frontend.weights import check_weights, weights_report
from dpiframe_core.frontend.whole_sums import MOST_WHOLE
from dpiframe_core.model.modules import Tensor as TensorModule
from dpiframe_core.model.spec import ModelSpec

if TYPE_CHECKING:
    from dpiframe_core.frontend.pt2.archive import ArchivedModule


@dataclass(frozen=True)
class Imported:
    """A converted model: spec, weights by name, and `report`, plain data: how it was converted and
    how far its logits are from the module's on samples, whose dense features are `dense` [N, S].
    """

    spec: ModelSpec
    weights: Mapping[str, Tensor]
    report: Mapping[str, Any]
    dense: np.ndarray
    _source: Source
    _output: Output
    _chosen: Chosen
    _is_probability: bool

    def arguments(
        self, ids: np.ndarray, dense: np.ndarray
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """args and kwargs that the module is called with for what the engine is given: ids [F, B]
        and dense [N, B]. What the model does not use is as in its examples.
        """
        return self._source.arguments(check.module_inputs(self._source, self._chosen, ids, dense))

    @property
    def with_ids(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """args and kwargs as `arguments`, in the place of each tensor whether ids are in it."""
        names = {column.input for column in self._chosen.id_columns}
        told: Any = {name: name in names for name in self._source.tensors}
        return self._source.arguments(told)

    @property
    def is_probability(self) -> bool:
        """Whether the module returns probabilities: its logits are known as far as these are."""
        return self._is_probability

    @property
    def num_outputs(self) -> int:
        """How many tensors the module returns."""
        return self._output.count

    def output(self, outputs: Any) -> Tensor:
        """Of what the module returned the tensor that the score is taken from."""
        leaves = [x for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor)]
        return leaves[self._output.index]

    def logits(self, outputs: Any) -> np.ndarray:
        """The logits [B] of what the module returned, or of `output` of it, in float64."""
        chosen = outputs if isinstance(outputs, Tensor) else self.output(outputs)
        found = chosen.detach().float().cpu()
        numbers = found.reshape(found.shape[0], -1)[:, self._output.column].numpy()
        return _expected(numbers, self._is_probability).logits


@overload
def from_torch(
    module: Any, example_inputs: Any = ..., columns: Any = ..., *, path: None = ..., **options: Any
) -> Imported: ...
@overload
def from_torch(
    module: Any, example_inputs: Any = ..., columns: Any = ..., *, path: str | Path, **options: Any
) -> Bundle: ...
def from_torch(  # type: ignore[misc]  # noqa: PLR0913 - the one call that users make
    module: nn.Module | ArchivedModule,
    example_inputs: Any = None,
    columns: Any = None,
    *,
    path: str | Path | None = None,
    name: str = "",
    output: str | int = "auto",
    tasks: Mapping[str, str | int] | None = None,
    encoding: Encoding | FuxiSchema | None = None,
    samples: Mapping[str, Tensor] | None = None,
    recorded: Expected | None = None,
    labels: Any = None,
    tolerance: float = check.TOLERANCE,
    precisions: Sequence[Precision] = get_args(Precision),
    _is_task: bool = False,
) -> Bundle | Imported:
    """Convert a PyTorch model; with `path` write it there as a bundle, which is returned opened.

    `module`: any module that torch.export can trace, or what `read_archive` read of a .pt2 file.
    `example_inputs`: what it is called with, at least 2 samples: a tensor, a tuple of arguments, or
    a dictionary of keyword arguments or for the one dictionary that it takes. `columns` says which
    column feeds which input (`columns.feeds_of`); default: what the module tells
    (`feature_index`), else columns named like the inputs (`columns.columns_of_inputs`).

    `output`: auto takes a final sigmoid off, and takes what lies in 0..1 for a probability;
    probability or logit says which it is; a name or number chooses one of several.

    `tasks`: more outputs by the names that they get, such as {"cvr": "conversion"}: each is a
    module of the bundle, which a job scores beside the first one (its key `outputs`), compared like
    it. They must read the same features.

    `encoding`: a fitted schema of the same columns, by which a job gets ids and dense features of
    raw rows (FuxiCTR's: `fuxictr.schema_of_feature_map`); the features have its names and order.

    Module and converted model then score the same samples: `samples`, tensors by input, or random
    ones. Their logits must agree within `tolerance` x max(1, |logit|), or a few times as far as the
    module is from itself in float32 (`check.allowed`); `recorded` are logits of the samples that
    were computed elsewhere, `labels` (0 or 1) add AUC and logloss to the report. On a GPU each of
    `precisions` is reported, too.

    ModelImportError names the operation, weight, input or column that stands in the way, and what
    to do.
    """
    whole = encoding
    if isinstance(module, nn.Module):
        source = of_module(module, example_inputs)
        if columns is None:
            columns = getattr(module, "feature_index", None)
    else:
        source = of_archive(module, name or "model")
    wanted = choose_output(source.traced, source.outputs, output)
    keep_output(source.traced, wanted)
    check_weights(source)
    if columns is None and encoding is not None:
        columns = columns_of_schema(source.inputs, encoding.schema)
    used = used_columns(source.traced, wanted, source, is_task=_is_task or bool(tasks))
    own_names = columns_of_inputs(source.inputs, used.rows, used.dense)
    feeds = feeds_of(source.inputs, own_names if columns is None else columns)
    chosen = choose_features(source.inputs, feeds, used.rows, used.dense)
    chosen = replace(chosen, periods=used.periods)
    if encoding is not None:
        chosen, encoding = by_schema(chosen, feeds, encoding)

    _refuse_negative_ids(source, wanted, feeds, chosen)
    if samples:
        inputs, what = _given(source, samples), "given"
        reference = _Reference.of(source, wanted, inputs)
    else:
        inputs, reference, what = _drawn(source, wanted, feeds, chosen)
    laid_out = used.shapes | chosen.rows
    draft, is_sigmoid = drafted(source.traced, wanted, laid_out, chosen.dense_columns)
    # What the engine's own modules make (linear layers, their sums) is bounded by nothing.
    is_open = wanted.kind == "auto" and isinstance(draft.module(draft.output), Compute)
    if is_open and not is_sigmoid and reference.are_probabilities:
        wanted = replace(wanted, kind="probability")
        draft, _ = drafted(source.traced, wanted, laid_out, chosen.dense_columns)
    spec, weights = _spec(draft, chosen, name or source.name)

    ids, numbers = engine_inputs(inputs, chosen)
    found = check.engine_logits(spec, weights, ids, numbers, precisions)
    is_probability = is_sigmoid or wanted.kind == "probability"
    expected = reference.expected(is_probability)
    if wanted.kind == "probability" and not is_sigmoid:
        expected = replace(expected, is_rounded=True)
    own = reference.own_difference(is_probability)
    allowed = check.allowed(tolerance, own)
    try:
        differences = _compared(found, expected, allowed, inputs, chosen, source)
    except ModelImportError:
        if not chosen.periods or _is_task or tasks:
            raise
        # Numbers of other types on the way may repeat otherwise, or not at all: a row for each id.
        return from_torch(
            module, example_inputs, columns, path=path, name=name, output=output, encoding=whole,
            samples=samples, recorded=recorded, labels=labels, tolerance=tolerance,
            precisions=precisions, _is_task=True,
        )  # fmt: skip
    for seed in range(check.TOGETHER if not samples and _rounded(inputs, chosen) else 0):
        near = check.draw_together(source, feeds, chosen, _rounded(inputs, chosen), seed)
        wanted_near = _Reference.of(source, wanted, near).expected(is_probability)
        wanted_near = replace(wanted_near, is_rounded=expected.is_rounded)
        logits = check.engine_logits(spec, weights, *engine_inputs(near, chosen), ())
        _compared(logits, wanted_near, allowed, near, chosen, source)
    report: dict[str, Any] = {
        "model": source.name,
        "torch": torch.__version__,
        "output": _output_in_words(source, wanted, is_sigmoid),
        "samples": {"count": ids.shape[1], "are": what},
        "tolerance": allowed,
        "reference": f"the module in {reference.kind}"
        + (f", {own:.2g} from itself in float32" if allowed > tolerance else ""),
        "differences": differences,
        "modules": _modules(spec),
        "unused_inputs": list(chosen.unused_inputs),
        "rounded_inputs": _rounded(inputs, chosen),
        "bounded_numbers": _bounded(used.bounded, chosen),
        "raw_columns": list(encoding.notes) if encoding else [],
        **weights_report(source, weights),
    }
    if recorded is not None:
        report["recorded"] = check.compare(found, recorded, allowed)
    if labels is not None:
        report["quality"] = check.quality(labels, found[check.CPU], expected)
    if tasks:
        others = {
            task: from_torch(
                module, example_inputs, columns, name=name, output=wanted_too, encoding=whole,
                samples=samples, tolerance=tolerance, precisions=precisions, _is_task=True,
            )
            for task, wanted_too in tasks.items()
        }  # fmt: skip
        made = {task: Converted(one.spec, one.weights) for task, one in others.items()}
        whole_model = joined(Converted(spec, weights), made)
        spec, weights = whole_model.spec, dict(whole_model.weights)
        said = ("output", "differences")
        report["tasks"] = {t: {key: one.report[key] for key in said} for t, one in others.items()}
        report["modules"] = _modules(spec)
        unused = [one.report["unused_weights"] for one in others.values()]
        report["unused_weights"] = [
            name for name in report["unused_weights"] if all(name in names for names in unused)
        ]
    if path is None:
        return Imported(spec, weights, report, numbers, source, wanted, chosen, is_probability)
    schema, words = (encoding.schema, encoding.vocabularies) if encoding else (None, None)
    return save_bundle(path, spec, weights, schema, words, report)


@dataclass(frozen=True)
class _Reference:
    """What the module says of the samples: numbers [B], in float64 or float32 (`kind`), and in
    float32 (`single`).
    """

    numbers: np.ndarray
    kind: str
    single: np.ndarray

    @classmethod
    def of(cls, source: Source, output: Output, inputs: Mapping[str, Tensor]) -> _Reference:
        """Let the module score the samples."""

        def run(kind: torch.dtype) -> np.ndarray:
            found = source.run(inputs, kind)[output.index].to(kind)
            return found.reshape(found.shape[0], -1)[:, output.column].numpy()

        try:
            single = run(torch.float32)
        except ModelImportError:
            raise
        except Exception as error:  # a module raises what it likes
            raise ModelImportError(
                f"the model cannot score the samples: {type(error).__name__}: {error!s:.300}"
            ) from error
        try:
            return cls(run(torch.float64), "float64", single)
        except Exception:  # it may name float32 somewhere
            return cls(single, "float32", single)

    @property
    def are_probabilities(self) -> bool:
        """Whether all lie in 0..1 and are not all the same."""
        low, high = float(self.numbers.min()), float(self.numbers.max())
        return 0 <= low < high <= 1

    @property
    def distance(self) -> float:
        """How far the module is from itself in float32; infinite where it has no numbers."""
        if not np.isfinite(self.numbers).all():
            return math.inf
        found = self.own_difference(self.are_probabilities)
        return math.inf if math.isnan(found) else found

    def expected(self, is_probability: bool) -> Expected:
        """The logits."""
        return _expected(self.numbers, is_probability)

    def own_difference(self, is_probability: bool) -> float:
        """How far the module's logits in float32 are from those expected."""
        expected = replace(self.expected(is_probability), is_rounded=is_probability)
        return float(expected.differences(_expected(self.single, is_probability).logits).max())


def _expected(numbers: np.ndarray, is_probability: bool) -> Expected:
    return (Expected.of_probabilities if is_probability else Expected.of_logits)(numbers)


def _compared(
    found: Mapping[str, np.ndarray],
    expected: Expected,
    tolerance: float,
    inputs: Mapping[str, Tensor],
    chosen: Chosen,
    source: Source,
) -> dict[str, Any]:
    try:
        return check.compare(found, expected, tolerance)
    except ModelImportError as error:
        if not (rounded := _rounded(inputs, chosen)):
            if (narrow := first_narrow(source.traced)) is None:
                raise
            raise ModelImportError(
                f"{error}. The model also rounds to {narrow}, and the engine does not: if that is "
                "why, leave such casts out, and choose the precision at scoring"
            ) from None
        raise ModelImportError(
            f"{error}. Scores are computed in float32, which rounds whole numbers above "
            f"{MOST_WHOLE:,} such as input {rounded[0]} has: make what the model computes of them "
            "(hours, differences) features"
        ) from None


def _bounded(columns: Sequence[Column], chosen: Chosen) -> dict[str, int]:
    """The largest ids of these columns, by their fields' names."""
    named = (chosen.features.fields[column] for column in columns)
    return {name: rows - 1 for name, rows in named}


def _refuse_negative_ids(source: Source, wanted: Output, feeds: list[Feed], chosen: Chosen) -> None:
    """ModelImportError where the examples have negative ids, as pads are, that the scores depend
    on: a row has the number of its id, and none is negative.
    """
    pads = {c: feed.elements.pad for feed in feeds if feed.elements for c in feed.places}
    examples = {name: source.example(name).contiguous().clone() for name in source.inputs}
    negative = None
    for column in chosen.id_columns:
        if column in chosen.periods or int(source.ids(column).min()) >= 0:
            continue
        example = examples[column.input]
        numbers = example.view(len(example), -1)[:, column.position]
        negative = column.input, int(numbers.min())
        numbers[numbers < 0] = pads.get(column, 0)
    if negative is None:
        return
    given = {name: source.example(name) for name in source.inputs}
    own, padded = (_Reference.of(source, wanted, x).numbers for x in (given, examples))
    if not np.allclose(own, padded, equal_nan=True):
        raise ModelImportError(
            f"input {negative[0]}: its examples have {negative[1]}, which is the id of no row, and "
            "score otherwise with what pads a list here; let the ids begin at 0 (x + 1, and "
            "padding_idx=0)"
        )


def _rounded(inputs: Mapping[str, Tensor], chosen: Chosen) -> list[str]:
    """The inputs that are whole numbers of which float32 rounds some."""
    names = dict.fromkeys(column.input for column in chosen.dense_columns)
    return [name for name in names if _is_rounded(inputs[name])]


def _is_rounded(numbers: Tensor) -> bool:
    return not numbers.is_floating_point() and float(numbers.double().abs().max()) > MOST_WHOLE


def _drawn(
    source: Source, wanted: Output, feeds: list[Feed], chosen: Chosen
) -> tuple[dict[str, Tensor], _Reference, str]:
    """Random samples, what the module says of them, and what they are in words. A module may have
    no number for an empty list (attention over nothing, a maximum of nothing that is -1e9), a
    negative number (its logarithm) or numbers that do not go together (more clicks than views):
    then samples are drawn without these. Lists are not empty, too, where float32 has then the
    digits that are compared.
    """
    finite, near, last = None, None, ModelImportError("no samples")
    for what, kind in check.SAMPLE_KINDS.items():
        if near is not None and not kind.negatives:
            return near
        if finite is not None and kind.drawn != "all":
            break  # the examples' own numbers would hide what random ones show
        inputs = check.draw_samples(source, feeds, chosen, kind)
        try:
            reference = _Reference.of(source, wanted, inputs)
        except ModelImportError as error:
            last = error
            continue
        found = inputs, reference, what
        if reference.distance <= (check.OWN_MOST if kind.negatives else check.FIRST_DIGITS):
            return found
        if near is None and reference.distance <= check.FIRST_DIGITS:
            near = found
        if finite is None and (kind is check.LAST or np.isfinite(reference.numbers).all()):
            finite = found
    if finite is None:
        raise last
    return finite


def _given(source: Source, samples: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The samples that are given, checked: a tensor for each input."""
    counts = {tensor.shape[0] if tensor.dim() else 0 for tensor in samples.values()}
    if set(samples) != set(source.inputs) or len(counts) != 1 or 0 in counts:
        raise ModelImportError(
            f"samples must be tensors of one batch for the inputs {', '.join(source.inputs)}, got "
            + ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in samples.items())
        )
    for name, shape in source.inputs.items():
        if tuple(samples[name].shape[1:]) != shape:
            raise ModelImportError(
                f"samples: input {name} must have sizes {['B', *shape]}, got "
                f"{list(samples[name].shape)}"
            )
    return {name: samples[name].to(source.example(name).dtype) for name in source.inputs}


def _spec(draft: Draft, chosen: Chosen, name: str) -> tuple[ModelSpec, dict[str, Tensor]]:
    try:
        spec, weights = assembled(draft, chosen.features, name)
        periods = zip(chosen.id_columns, chosen.features.fields.values(), strict=True)
        repeated = {name: chosen.periods.get(column) for column, (name, _) in periods}
        fields = []
        for f in spec.fields:
            found = repeated.get(f.name)
            said = {"period": found.period, "last": found.last} if found else {}
            oov = chosen.oov_rows.get(f.name)
            fields.append(f.model_copy(update={"oov_row": oov, **said}))
        spec = ModelSpec(
            name=spec.name, fields=tuple(fields), dense=spec.dense, lists=chosen.lists,
            columns=dict(chosen.columns), modules=spec.modules, output=spec.output,
        )  # fmt: skip
    except SpecError as error:
        raise ModelImportError(f"the model makes no spec: {error}") from None
    return spec, weights


def _output_in_words(source: Source, output: Output, is_sigmoid: bool) -> str:
    name = source.outputs[output.index]
    if is_sigmoid:
        return f"{name}: a probability, whose final sigmoid was taken off"
    if output.kind == "probability":
        return f"{name}: a probability without a final sigmoid, its logit was added"
    return f"{name}: a logit"


def _modules(spec: ModelSpec) -> dict[str, Any]:
    """How many modules of each kind: the engine's own, and generic ones by what they compute."""
    generic = Counter(m.compute.kind for m in spec.modules if isinstance(m, TensorModule))
    known = Counter(m.op for m in spec.modules if not isinstance(m, TensorModule))
    return {"known": dict(known), "generic": dict(generic)}
