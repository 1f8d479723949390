"""Raw columns of lists, and vocabularies that number their rows freely, against plain Python."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dpiframe_core import save_bundle
from dpiframe_core.errors import BundleError
from dpiframe_core.features import (
    CategoricalFeature,
    DenseFeature,
    Encoder,
    FeatureSchema,
    SchemaError,
    fit_schema,
    vocabulary_from_tensors,
    vocabulary_to_tensors,
)
from dpiframe_core.features.schema import (
    Elements,
    HashEncoding,
    ModuloEncoding,
    Numbering,
    VocabularyEncoding,
)
from dpiframe_core.features.vocabulary import numbered_vocabulary
from dpiframe_core.model.builtin import Deep, Features, wdl
from dpiframe_core.model.torch_module import CTRModel

NAMES = ("h0", "h1", "h2")
WORDS = [["a", "b"], None, [], ["c", None, "a", "b"], ["", "x"], ["b"]] * 7


def _schema(encoding, values="string", **elements):
    feature = CategoricalFeature(
        name="h",
        column="c",
        values=values,
        encoding=encoding,
        elements=Elements(features=NAMES, **elements),
    )
    return FeatureSchema(dataset="d", fields=(feature,))


def _rows(schema, column, vocabularies=None):
    """Ids a row."""
    ids = Encoder(schema, vocabularies).encode(pa.table({"c": column})).ids
    assert all(row.dtype == np.int32 for row in ids)
    return np.array(ids).T.tolist()


def _expected(lists, row_of, pad, before):
    rows = []
    for values in lists:
        ids = [row_of(value) for value in values or []]
        ids = ids[-3:] if before else ids[:3]
        pads = [pad] * (3 - len(ids))
        rows.append(pads + ids if before else ids + pads)
    return rows


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    "form", ["list", "large_list", "views", "dictionary", "sliced", "chunks", "null_values"]
)
def test_elements_of_lists_are_encoded_and_padded(form, before):
    words = [None] * len(WORDS) if form == "null_values" else WORDS
    array = pa.array(words, pa.list_(pa.string()))
    column = {
        "list": array,
        "large_list": array.cast(pa.large_list(pa.large_string())),
        "views": pa.array([["a"], *words], pa.list_view(pa.string_view())).slice(1),
        "dictionary": pa.ListArray.from_arrays(array.offsets, array.values.dictionary_encode()),
        "sliced": pa.concat_arrays([array[:2], array, array[:1]]).slice(2, len(array)),
        "chunks": pa.chunked_array([array[:3], array[3:3], array[3:]]),
        "null_values": pa.nulls(len(array)),
    }[form]
    numbering = Numbering(rows=9, missing_row=6, unseen_row=8)
    side = {"side": "before", "keep": "last"} if before else {}
    schema = _schema(VocabularyEncoding(size=3, numbering=numbering), pad=5, **side)
    rows = {"a": 1, "b": 0, "c": 4}
    vocabulary = numbered_vocabulary(pa.array(list(rows)), np.array(list(rows.values())))

    def row_of(word):
        return rows.get(word, 8) if word else 6

    found = _rows(schema, column, {"h": vocabulary})
    if form == "dictionary":  # from_arrays knows no null lists; they are empty
        words = [values or [] for values in words]
    assert found == _expected(words, row_of, 5, before)


def test_texts_are_split():
    texts = pa.array(["a^b^zz^a", "", None, "b"])
    numbering = Numbering(rows=4, missing_row=0, unseen_row=3)
    schema = _schema(VocabularyEncoding(size=2, numbering=numbering), split_at="^")
    words = {"h": numbered_vocabulary(pa.array(["a", "b"]), np.array([1, 2]))}
    expected = [[1, 2, 3], [0, 0, 0], [0, 0, 0], [2, 0, 0]]
    assert _rows(schema, texts, words) == expected
    assert _rows(schema, texts.dictionary_encode(), words) == expected
    assert _rows(schema, pa.array([["a", "b", "zz"], [], None, ["b"]]), words) == expected


def test_lists_of_integers_and_of_numbers():
    fields = _schema(ModuloEncoding(modulus=10), "integer").fields
    vector = Elements(features=("x", "y"), pad=-1)
    dense = DenseFeature(name="v", column="v", transform="none", mean=1, std=2, elements=vector)
    schema = FeatureSchema(dataset="d", fields=fields, dense=(dense,))
    lists = pa.array([[11, 12, 13], [25]], pa.list_(pa.int16()))
    vectors = pa.array([[3.0, 5.0], [None]], pa.list_(pa.float64()))

    found = Encoder(schema).encode(pa.table({"c": lists, "v": vectors}))

    assert np.array(found.ids).T.tolist() == [[3, 4, 5], [7, 0, 0]]
    assert np.array(found.dense).T.tolist() == [[1, 2], [0, -1]]
    assert [name for name, _ in schema.field_features] == ["h0", "h1", "h2"]
    assert schema.dense_names == ("x", "y")


def test_fitting_counts_the_elements():
    lists = pa.array([["b", "a"], ["b"], None, ["c", ""]])
    schema, words = fit_schema(_schema(VocabularyEncoding()), [pa.table({"c": lists})])
    assert words["h"].to_pylist() == ["b", "a", "c"]
    assert _rows(schema, lists, words)[:2] == [[2, 3, 0], [2, 0, 0]]
    assert FeatureSchema.model_validate_json(schema.model_dump_json()) == schema


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (
            pa.string(),
            "type is string, expected a list of string or binary, or a dictionary of these",
        ),
        (pa.list_(pa.int64()), "type is list<item: int64>, expected a list of string"),
    ],
)
def test_columns_of_other_types(kind, told):
    schema = _schema(HashEncoding(modulus=5))
    assert told in schema.check(pa.schema([("c", kind)]))[0]
    scalar = CategoricalFeature(name="f", column="c", encoding=HashEncoding(modulus=5))
    found = FeatureSchema(dataset="d", fields=(scalar,)).check(pa.schema([("c", pa.list_(kind))]))
    assert "expected string" in found[0]


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="split_at needs values: string"):
        _schema(HashEncoding(modulus=5), "integer", split_at="^")
    with pytest.raises(ValueError, match=r"missing_row must be in 0\.\.3, got 4"):
        Numbering(rows=4, missing_row=4, unseen_row=0)
    with pytest.raises(ValueError, match="is given, not fitted"):
        VocabularyEncoding(numbering=Numbering(rows=4, missing_row=0, unseen_row=0))
    numbering = Numbering(rows=4, missing_row=0, unseen_row=3)
    schema = _schema(VocabularyEncoding(size=1, numbering=numbering))
    with pytest.raises(SchemaError, match="has rows where its encoding has a numbering"):
        Encoder(schema, {"h": pa.array(["a"])})
    with pytest.raises(SchemaError, match=r"rows of values must be in 0\.\.3, got 4 to 4"):
        Encoder(schema, {"h": numbered_vocabulary(pa.array(["a"]), np.array([4]))})
    with pytest.raises(SchemaError, match="a vocabulary with a numbering cannot be fitted"):
        fit_schema(schema, [])


@pytest.mark.parametrize("values", [["a", "", "ü"], [3, -1]])
def test_rows_survive_safetensors(values):
    vocabulary = numbered_vocabulary(pa.array(values), np.arange(len(values))[::-1])
    tensors = vocabulary_to_tensors({"f": vocabulary})
    assert vocabulary_from_tensors(tensors)["f"].equals(vocabulary)


def test_a_bundle_holds_the_lists_of_its_spec(tmp_path):
    schema = _schema(HashEncoding(modulus=17), side="before")
    spec = wdl(Features.of_schema(schema, dim=4), Deep(hidden=(3,)))
    weights = CTRModel(spec).state_dict()
    assert {field.table for field in spec.fields} == {"h"}

    assert save_bundle(tmp_path / "b", spec, weights, schema).schema == schema
    other = spec.model_copy(update={"lists": ()})
    with pytest.raises(BundleError, match="list h is None in the spec"):
        save_bundle(tmp_path / "c", other, weights, schema)
