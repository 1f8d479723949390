"""FuxiCTR's preprocessing as a feature schema, from the JSON files that it writes beside its data.

`feature_map.json` names the features, `feature_vocab.json` numbers their values; FuxiCTR's own
encoding of a value is `vocab.get(value, vocab["__OOV__"])`, and 0 pads sequences. What neither file
says (types, padding, fills, splitters) is in the `dataset_config.yaml` that the data set was built
by; without it FuxiCTR's defaults hold. Normalisers and preprocessing functions exist in a pickle
only, which is never read: their columns must come normalised and preprocessed, as `notes` say.

Files as FuxiCTR 2.3 writes them: https://github.com/reczoo/FuxiCTR, `fuxictr/preprocess`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import yaml
from pydantic import ValidationError

from dpiframe_core.errors import ModelImportError
from dpiframe_core.features.schema import (
    CategoricalFeature,
    DenseFeature,
    Elements,
    FeatureSchema,
    Numbering,
    VocabularyEncoding,
)
from dpiframe_core.features.vocabulary import numbered_vocabulary
from dpiframe_core.frontend.assemble import legal_name
from dpiframe_core.model.fields import ListSpec, problems

PAD, OOV = "__PAD__", "__OOV__"
MOST_ELEMENTS, MOST_ROWS = 65536, 2**31 - 1
_DTYPES = {"str": "string", "int": "integer"}
_FILLS: dict[str, Any] = {"str": "", "int": 0}


@dataclass(frozen=True)
class FuxiSchema:
    """What turns raw columns into a FuxiCTR model's inputs.

    `inputs`: each input of the model (a feature of FuxiCTR, which is also the column's name) ->
    the fields or dense features of the spec that it becomes, in order. `notes`: what the columns
    must have gone through before, in sentences.
    """

    schema: FeatureSchema
    vocabularies: Mapping[str, pa.Array]
    lists: tuple[ListSpec, ...]
    inputs: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]


def schema_of_feature_map(
    feature_map: str | Path,
    feature_vocab: str | Path,
    dataset_config: str | Path | None = None,
    integers: Collection[str] = (),
) -> FuxiSchema:
    """The schema of a FuxiCTR data set, by which raw rows get the ids that FuxiCTR gives them.

    `integers`: the categorical and sequence features whose raw columns hold integers, beside those
    of dtype int in `dataset_config`; all others hold strings. ModelImportError names file and key.
    """
    config = None if dataset_config is None else Path(dataset_config)
    return _Reader(Path(feature_map), Path(feature_vocab), config, integers).schema()


class _Reader:
    """The files, and the features made of them so far."""

    def __init__(
        self, feature_map: Path, feature_vocab: Path, config: Path | None, integers: Collection[str]
    ) -> None:
        self.map_file, self.vocab_file, self.config_file = feature_map, feature_vocab, config
        self.map, self.vocab = _json_object(feature_map), _json_object(feature_vocab)
        self.dataset = _text(self.map.get("dataset_id"), feature_map, "dataset_id")
        self.specs = self._feature_specs()
        self.config = {} if config is None else _column_config(config, self.dataset)
        self.integers = set(integers)
        if unknown := sorted(self.integers - self.specs.keys()):
            raise ModelImportError(f"integers: {feature_map} has no feature {unknown[0]!r}")
        self.vocabularies: dict[str, pa.Array] = {}
        self.notes: list[str] = []

    def _feature_specs(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        listed = self.map.get("features")
        if not isinstance(listed, list):
            _fail(self.map_file, "features", "must be a list of {name: feature}")
        for i, each in enumerate(listed):
            if not isinstance(each, dict) or not all(isinstance(v, dict) for v in each.values()):
                _fail(self.map_file, f"features[{i}]", "must be {name: feature}")
            if repeated := found.keys() & each.keys():
                _fail(self.map_file, f"features[{i}]", f"repeats {min(repeated)!r}")
            found |= each
        return found

    def schema(self) -> FuxiSchema:
        """The features in the order of the feature map."""
        fields: list[CategoricalFeature] = []
        dense: list[DenseFeature] = []
        for name, spec in self.specs.items():
            try:
                match spec.get("type"):
                    case "numeric" | "embedding":
                        dense.append(self._dense(name, spec))
                    case "categorical" | "sequence":
                        fields.append(self._categorical(name, spec))
                    case "meta":  # an input of no model
                        pass
                    case other:
                        _fail(self.map_file, f"{name}.type", f"{other!r} is not known")
            except ValidationError as error:
                _fail(self.map_file, name, problems(error))
        labels = self.map.get("labels") or [None]
        try:
            schema = FeatureSchema(
                dataset=self.dataset,
                label_column=labels[0] if isinstance(labels, list) else None,
                fields=tuple(fields),
                dense=tuple(dense),
            )
        except ValidationError as error:
            _fail(self.map_file, "features", problems(error))
        return FuxiSchema(
            schema,
            self.vocabularies,
            ListSpec.of_schema(schema),
            {feature.column: feature.names for feature in schema.features},
            tuple(self.notes),
        )

    def _dense(self, name: str, spec: dict[str, Any]) -> DenseFeature:
        config = self._config(name)
        if normalizer := config.get("normalizer"):
            self.notes.append(
                f"column {name}: FuxiCTR keeps its {normalizer} in a pickle; give it normalised"
            )
        elements = None
        if spec["type"] == "embedding":
            size = self._count(name, "pretrain_dim", MOST_ELEMENTS)
            elements = Elements(features=_element_names(name, size))
        fill = config.get("fill_na", config.get("na_value", 0.0))
        return DenseFeature(
            name=legal_name(name), column=name, transform="none", fill=fill, elements=elements
        )

    def _categorical(self, name: str, spec: dict[str, Any]) -> CategoricalFeature:
        if processor := spec.get("category_processor"):
            _fail(
                self.map_file,
                f"{name}.category_processor",
                f"{processor!r} is not supported; give the column as ids, in encoded form",
            )
        config = self._config(name)
        dtype = config.get("dtype", "str")
        if dtype not in _DTYPES:
            _fail(self.config_file, f"{name}.dtype", f"must be str or int, got {dtype!r}")
        rows = self._count(name, "vocab_size", MOST_ROWS)
        vocab, pad = self._numbered_values(name, rows)
        oov = vocab.pop(OOV)
        integer = dtype == "int" or name in self.integers
        fill = str(config.get("fill_na", config.get("na_value", _FILLS[dtype])))
        elements = None
        if spec["type"] == "sequence":
            # FuxiCTR takes an element that equals the fill for a pad; "" is missing to our encoder.
            missing = pad if fill == "" else vocab.get("", oov)
            vocab |= {fill: pad} if fill else {}
            elements = self._elements(name, spec, config, pad, integer)
        else:
            missing = vocab.get(fill, oov)
        self.vocabularies[legal_name(name)] = self._vocabulary(name, vocab, integer)
        return CategoricalFeature(
            name=legal_name(name),
            column=name,
            values="integer" if integer else "string",
            encoding=VocabularyEncoding(
                size=len(self.vocabularies[legal_name(name)]),
                numbering=Numbering(rows=rows, missing_row=missing, unseen_row=oov),
            ),
            elements=elements,
        )

    def _elements(
        self, name: str, spec: dict[str, Any], config: dict[str, Any], pad: int, integer: bool
    ) -> Elements:
        length = self._count(name, "max_len", MOST_ELEMENTS)
        padding = config.get("padding", "post")
        if padding not in ("pre", "post"):
            _fail(self.config_file, f"{name}.padding", f"must be pre or post, got {padding!r}")
        return Elements(
            features=_element_names(name, length),
            pad=pad,
            side="before" if padding == "pre" else "behind",
            keep="last" if padding == "pre" else "first",  # FuxiCTR cuts where it pads
            split_at=None if integer else config.get("splitter", "^"),
        )

    def _numbered_values(self, name: str, rows: int) -> tuple[dict[str, int], int]:
        """Value -> row, that of unseen ones under OOV, and the row of pads."""
        found = self.vocab.get(name)
        if not isinstance(found, dict):
            _fail(self.vocab_file, name, "is missing" if found is None else "must be an object")
        for value, row in found.items():
            if type(row) is not int or not 0 <= row < rows:
                where = f"{name}[{value!r}]"
                _fail(self.vocab_file, where, f"must be in 0..{rows - 1} (vocab_size), got {row!r}")
        if OOV not in found:
            _fail(self.vocab_file, f"{name}[{OOV!r}]", "is missing")
        return dict(found), found.get(PAD, 0)

    def _vocabulary(self, name: str, vocab: dict[str, int], integer: bool) -> pa.Array:
        """The values with their rows; of integers, those that are none stand for no value."""
        if not integer:
            return numbered_vocabulary(_strings(self.vocab_file, name, vocab), _rows(vocab))
        numbers = {value: row for value, row in vocab.items() if value not in (PAD, "")}
        for value in numbers:
            if not _is_int64(value):
                _fail(self.vocab_file, f"{name}[{value!r}]", "is no integer of 64 bits")
        values = pa.array([int(value) for value in numbers], pa.int64())
        return numbered_vocabulary(values, _rows(numbers))

    def _count(self, name: str, key: str, most: int) -> int:
        found = self.specs[name].get(key)
        if type(found) is not int or not 1 <= found <= most:
            _fail(self.map_file, f"{name}.{key}", f"must be an integer in 1..{most}, got {found!r}")
        return found

    def _config(self, name: str) -> dict[str, Any]:
        config = self.config.get(name, {})
        if preprocess := config.get("preprocess"):
            self.notes.append(
                f"column {name}: give it as FuxiCTR's preprocess {preprocess} makes it"
            )
        return config


def _rows(vocab: Mapping[str, int]) -> np.ndarray:
    return np.fromiter(vocab.values(), np.int32, len(vocab))


def _strings(file: Path, name: str, vocab: Mapping[str, int]) -> pa.Array:
    try:
        return pa.array(list(vocab), pa.string())
    except (ValueError, pa.ArrowException) as error:
        _fail(file, name, f"a value is not UTF-8: {error}")


def _is_int64(text: str) -> bool:
    digits = text.removeprefix("-")
    canonical = digits.isascii() and digits.isdigit() and len(digits) < 20
    return canonical and str(int(text)) == text and -(2**63) <= int(text) < 2**63


def _element_names(name: str, length: int) -> tuple[str, ...]:
    return tuple(f"{legal_name(name)}_{i}" for i in range(length))


def _column_config(file: Path, dataset: str) -> dict[str, dict[str, Any]]:
    """Column -> its part of `feature_cols`."""
    try:
        found = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ModelImportError(f"{file}: cannot be read: {_first_line(error)}") from None
    config = found.get(dataset) if isinstance(found, dict) else None
    if not isinstance(config, dict) or not isinstance(config.get("feature_cols"), list):
        _fail(file, f"{dataset}.feature_cols", "is missing, or no list")
    columns: dict[str, dict[str, Any]] = {}
    for i, each in enumerate(config["feature_cols"]):
        names = each.get("name") if isinstance(each, dict) else None
        for name in names if isinstance(names, list) else [names]:
            columns[_text(name, file, f"{dataset}.feature_cols[{i}].name")] = each
    return columns


def _json_object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelImportError(f"{file}: cannot be read: {_first_line(error)}") from None
    if not isinstance(found, dict):
        raise ModelImportError(f"{file}: must hold a JSON object, got {type(found).__name__}")
    return found


def _text(found: Any, file: Path, key: str) -> str:
    if not isinstance(found, str) or not found:
        _fail(file, key, f"must be a text, got {found!r}")
    return found


def _fail(file: Path | None, key: str, what: str) -> NoReturn:
    raise ModelImportError(f"{file}, {key}: {what}")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
