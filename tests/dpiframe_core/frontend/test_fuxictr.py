"""FuxiCTR's vocabularies: raw rows get the ids that its own preprocessing, written out here, gives.

The reference follows `fuxictr/preprocess` (feature_processor.py, tokenizer.py) value by value.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from dpiframe_core.errors import ModelImportError
from dpiframe_core.features import Encoder
from dpiframe_core.frontend.fuxictr import FuxiSchema, schema_of_feature_map

ITEMS = ["i1", "i2", None, "i1", "", "i3", "ünï", "i2", "i1"]
AGES = [3, None, -7, 3, 3, 0, 2**40, 9, 9]
CLICKS = ["i1^i9", None, "", "i2^^i1^i3^i9", "zz", "i1", "i3^i3", "i1^i2^i3", "never"]
PRICES = [1.5, None, 2.0, 0.0, -1.0, 9.0, 1.0, 1.0, 1.0]


def vocabulary(counts: Counter[Any], fill: Any = "") -> dict[Any, int]:
    """As Tokenizer.build_vocab numbers values: from 1 by falling count, the fill left out."""
    words = [word for word, _ in counts.most_common() if word != fill]
    vocab = {word: row for row, word in enumerate(words, 1)} | {"__PAD__": 0}
    return vocab | {"__OOV__": max(vocab.values()) + 1}


def of_category(vocab: dict[Any, int], values: list[Any], fill: Any) -> list[int]:
    """As Tokenizer.encode_category."""
    filled = [fill if value is None else value for value in values]
    return [vocab.get(value, vocab["__OOV__"]) for value in filled]


def of_sequence(
    vocab: dict[Any, int], texts: list[str | None], fill: str, length: int, padding: str
) -> list[list[int]]:
    """As Tokenizer.encode_sequence, with Keras's pad_sequences."""
    rows = []
    for text in texts:
        words = (fill if text is None else text).split("^")
        ids = [0 if word == fill else vocab.get(word, vocab["__OOV__"]) for word in words]
        ids = ids[:length] if padding == "post" else ids[-length:]
        pads = [0] * (length - len(ids))
        rows.append(ids + pads if padding == "post" else pads + ids)
    return rows


class Case:
    """The files of a data set of an item, an age, clicked items (which share a table), a price."""

    def __init__(self, folder: Path, fill: str = "", padding: str = "post", **config: Any) -> None:
        self.fill, self.padding = fill, padding
        items = Counter("" if item is None else item for item in [*ITEMS[:6], "i9", "i7"])
        self.items = vocabulary(items, fill)
        self.ages = vocabulary(Counter(age or 0 for age in AGES[:6]), None)
        self.map, self.vocab = folder / "feature_map.json", folder / "feature_vocab.json"
        self.config = folder / "dataset_config.yaml"
        self.features: list[dict[str, Any]] = [
            {"user": {"type": "meta"}},
            {"price": {"source": "", "type": "numeric"}},
            {"item": self._rows("categorical", self.items)},
            {"age": self._rows("categorical", self.ages)},
            {"clicks.3": self._rows("sequence", self.items, share_embedding="item", max_len=3)},
        ]
        self.vocabs: dict[str, Any] = {
            "item": self.items,
            "age": self.ages,
            "clicks.3": self.items,
        }
        columns = [
            {"name": ["price"], "dtype": "float", "type": "numeric"},
            {"name": "item", "dtype": "str", "type": "categorical"},
            {"name": "age", "dtype": "int", "type": "categorical"},
            {"name": "clicks.3", "dtype": "str", "type": "sequence", "padding": padding},
        ]
        if fill:
            columns[1]["fill_na"] = columns[3]["fill_na"] = fill
        for column in columns:
            column |= config.get(str(column["name"]), {})
        self.columns = columns

    def _rows(self, kind: str, vocab: dict[Any, int], **more: Any) -> dict[str, Any]:
        size = max(vocab.values()) + 1
        return {"source": "", "type": kind, "padding_idx": 0, "vocab_size": size, **more}

    def write(self) -> None:
        listed = {"dataset_id": "tiny", "labels": ["clk"], "features": self.features}
        self.map.write_text(json.dumps(listed))
        self.vocab.write_text(json.dumps(self.vocabs))
        self.config.write_text(yaml.safe_dump({"tiny": {"feature_cols": self.columns}}))

    def read(self, **options: Any) -> FuxiSchema:
        self.write()
        return schema_of_feature_map(self.map, self.vocab, self.config, **options)

    def refused(self, **options: Any) -> str:
        with pytest.raises(ModelImportError) as error:
            self.read(**options)
        return str(error.value)


TABLE = pa.table({"price": PRICES, "item": ITEMS, "age": AGES, "clicks.3": CLICKS})


@pytest.mark.parametrize("padding", ["post", "pre"])
@pytest.mark.parametrize("fill", ["", "-1"])
def test_raw_rows_get_the_ids_that_fuxictr_gives(tmp_path: Path, fill: str, padding: str) -> None:
    case = Case(tmp_path, fill, padding)
    found = case.read()

    encoded = Encoder(found.schema, found.vocabularies).encode(TABLE)

    ids = np.array(encoded.ids).T.tolist()
    assert [row[0] for row in ids] == of_category(case.items, ITEMS, fill)
    assert [row[1] for row in ids] == of_category(case.ages, AGES, 0)
    assert [row[2:] for row in ids] == of_sequence(case.items, CLICKS, fill, 3, padding)
    assert encoded.dense[0].tolist() == [price or 0.0 for price in PRICES]


def test_the_schema_names_the_inputs_of_the_model(tmp_path: Path) -> None:
    found = Case(tmp_path).read()
    clicks = ("clicks_3_0", "clicks_3_1", "clicks_3_2")
    assert found.inputs == {
        "price": ("price",),
        "item": ("item",),
        "age": ("age",),
        "clicks.3": clicks,
    }
    rows = [(name, feature.rows) for name, feature in found.schema.field_features]
    assert rows == [("item", 7), ("age", 5), *((name, 7) for name in clicks)]
    assert [(each.name, each.features, each.pad) for each in found.lists] == [
        ("clicks_3", clicks, 0)
    ]
    assert (found.schema.dataset, found.schema.label_column) == ("tiny", "clk")
    assert found.notes == ()


def test_lists_give_the_same_as_texts(tmp_path: Path) -> None:
    found = Case(tmp_path).read()
    encoder = Encoder(found.schema, found.vocabularies)
    lists = pa.array([None if text is None else text.split("^") for text in CLICKS])
    table = TABLE.set_column(3, "clicks.3", lists)
    np.testing.assert_array_equal(encoder.encode(table).ids, encoder.encode(TABLE).ids)


def test_lists_of_integers(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.vocabs["clicks.3"] = {"__PAD__": 0, "11": 1, "-5": 2, "__OOV__": 3}
    found = case.read(integers=["clicks.3"])
    lists = pa.array([[11, 4], [-5], None] * 3)
    table = TABLE.set_column(3, "clicks.3", lists)

    ids = np.array(Encoder(found.schema, found.vocabularies).encode(table).ids[2:]).T.tolist()

    assert ids[:3] == [[1, 3, 0], [2, 0, 0], [0, 0, 0]]


def test_vocabularies_with_other_numbers(tmp_path: Path) -> None:
    case = Case(tmp_path)  # a value behind OOV, as a pretrained table adds; unused rows
    case.vocabs["item"] = {"__PAD__": 0, "i1": 4, "__OOV__": 2, "i2": 6}
    found = case.read()
    ids = Encoder(found.schema, found.vocabularies).encode(TABLE).ids[0].tolist()
    assert ids == [4, 6, 2, 4, 2, 2, 2, 6, 4]


def test_embeddings_given_as_vectors_and_notes(tmp_path: Path) -> None:
    case = Case(tmp_path, **{"item": {"preprocess": "convert(item)"}})
    case.features.append({"vector": {"source": "", "type": "embedding", "pretrain_dim": 2}})
    case.columns[0]["normalizer"] = "StandardScaler"
    found = case.read()
    vectors = pa.array([[0.5, 2.0], [1.0, None], [3.0, 4.0]] * 3)

    dense = Encoder(found.schema, found.vocabularies).encode(TABLE.append_column("vector", vectors))

    assert [values.tolist()[:3] for values in dense.dense[1:]] == [[0.5, 1, 3], [2, 0, 4]]
    assert found.notes == (
        "column price: FuxiCTR keeps its StandardScaler in a pickle; give it normalised",
        "column item: give it as FuxiCTR's preprocess convert(item) makes it",
    )


def test_defaults_hold_without_the_configuration(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.write()
    found = schema_of_feature_map(case.map, case.vocab)
    assert [feature.values for feature in found.schema.fields] == ["string"] * 3
    assert found.lists[0].side == "behind"


@pytest.mark.parametrize(
    ("feature", "key", "value", "told"),
    [
        (2, "vocab_size", "7", "feature_map.json, item.vocab_size: must be an integer in 1.."),
        (2, "vocab_size", 3, "feature_vocab.json, item['i3']: must be in 0..2 (vocab_size), got"),
        (2, "type", "text", "feature_map.json, item.type: 'text' is not known"),
        (2, "category_processor", "hash_bucket", "item.category_processor: 'hash_bucket' is not"),
        (4, "max_len", 0, "clicks.3.max_len: must be an integer in 1..65536, got 0"),
        (4, "max_len", 10**9, "clicks.3.max_len: must be an integer in 1..65536, got 1000000000"),
    ],
)
def test_a_feature_that_cannot_be_read(
    tmp_path: Path, feature: int, key: str, value: Any, told: str
) -> None:
    case = Case(tmp_path)
    (spec,) = case.features[feature].values()
    spec[key] = value
    assert told in case.refused()


@pytest.mark.parametrize(
    ("vocab", "told"),
    [
        (None, "feature_vocab.json, item: must be an object"),
        ({"i1": 1}, "feature_vocab.json, item['__OOV__']: is missing"),
        ({"i1": "1", "__OOV__": 2}, "item['i1']: must be in 0..6 (vocab_size), got '1'"),
        ({"\ud800": 1, "__OOV__": 2}, "item: a value is not UTF-8"),
    ],
)
def test_a_vocabulary_that_cannot_be_read(tmp_path: Path, vocab: Any, told: str) -> None:
    case = Case(tmp_path)
    case.vocabs["item"] = vocab if vocab is not None else []
    assert told in case.refused()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    case = Case(tmp_path)
    assert "item['i1']: is no integer of 64 bits" in case.refused(integers=["item"])
    assert "has no feature 'itm'" in case.refused(integers=["itm"])
    case.columns[3]["padding"] = "both"
    assert "clicks.3.padding: must be pre or post, got 'both'" in case.refused()
    del case.vocabs["age"]
    case.columns[3]["padding"] = "pre"
    assert "feature_vocab.json, age: is missing" in case.refused()
    for text in ("", "[1]", "{" * 10**5, '{"dataset_id": "tiny", "features": {}}'):
        case.write()
        case.map.write_text(text)
        with pytest.raises(ModelImportError, match=r"feature_map\.json"):
            schema_of_feature_map(case.map, case.vocab)
    with pytest.raises(ModelImportError, match=r"absent\.json: cannot be read"):
        schema_of_feature_map(tmp_path / "absent.json", case.vocab)
