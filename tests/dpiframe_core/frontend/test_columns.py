"""Which column feeds which input: what is meant, and what is wrong, in words."""

from __future__ import annotations

import pytest

from dpiframe_core import ModelImportError
from dpiframe_core.frontend.columns import choose_features, columns_of_inputs, feeds_of
from dpiframe_core.frontend.values import Column

SCALARS = {"C1": (), "I1": (1,)}
LISTS = {"item": (), "hist": (3,)}
MATRIX = {"X": (4,)}


def shapes(feeds):
    return [(f.column, f.input, f.start, f.count, f.elements is not None) for f in feeds]


@pytest.mark.parametrize(
    ("inputs", "columns", "expected"),
    [
        (SCALARS, {"C1": "site id"}, [("site id", "C1", 0, 1, False)]),
        (
            LISTS,
            columns_of_inputs(LISTS, [], []),
            [("item", "item", 0, 1, False), ("hist", "hist", 0, 3, True)],
        ),
        (LISTS, {"hist": {"column": "h", "pad": 2}}, [("h", "hist", 0, 3, True)]),
        (LISTS, {"hist": ["a", "b", "c"]}, [(x, "hist", i, 1, False) for i, x in enumerate("abc")]),
        (MATRIX, list("abcd"), [(x, "X", i, 1, False) for i, x in enumerate("abcd")]),
        (
            MATRIX,
            {"b": (3, 4), "h": [0, 3]},
            [("h", "X", 0, 3, True), ("b", "X", 3, 1, False)],
        ),
    ],
)
def test_columns_feed_places_of_inputs(inputs, columns, expected):
    assert shapes(feeds_of(inputs, columns)) == expected


@pytest.mark.parametrize(
    ("inputs", "columns", "told"),
    [
        (SCALARS, {"X2": "x"}, "names input 'X2', which the model has not; it has C1, I1"),
        (LISTS, {"histt": "x"}, "names input 'histt', .* did you mean 'hist'"),
        (SCALARS, {"C1": "x", "I1": "x"}, "column 'x' feeds input C1 .* and input I1"),
        (SCALARS, {"C1": ["a", "b"]}, "input C1 takes 1 numbers a sample, columns give 2"),
        (SCALARS, {"C1": {"column": "a"}}, "input C1 takes one number a sample"),
        (SCALARS, ["a", "b"], "needs a model with one matrix"),
        (SCALARS, "C1", "columns must be a mapping"),
        (LISTS, {"hist": {"column": "h", "sides": 1}}, "input hist: columns: sides"),
        (LISTS, {"hist": {"column": "h", "side": "left"}}, "input hist: columns: side"),
        (LISTS, {"hist": []}, "input hist: columns must give"),
        (LISTS, {"hist": ["a", {"column": "h"}]}, "say how many places it feeds"),
        (MATRIX, ["a", "b", "c"], "input X takes 4 numbers a sample, columns give 3"),
        (MATRIX, {"a": (0, 2), "b": (3, 4)}, "column 'b' has the places 3 to 4"),
        (MATRIX, {"a": (0, 2), "b": (2, 3)}, "input X has 4 places, columns give 3"),
    ],
)
def test_wrong_columns_are_named(inputs, columns, told):
    with pytest.raises(ModelImportError, match=told):
        feeds_of(inputs, columns)


OWN = {"item": "item", "hist": "hist"}


def chosen(inputs, columns, rows, dense=()):
    ids = {Column(name, i): n for (name, i), n in rows.items()}
    numbers = [Column(*d) for d in dense]
    return choose_features(inputs, feeds_of(inputs, columns), ids, numbers)


def test_each_place_of_a_matrix_of_ids_and_numbers_is_a_column():
    found = columns_of_inputs({"X": (3,), "n": (2,), "i": (2,)}, [Column("X", 1), Column("i", 0)],
                              [Column("X", 0), Column("n", 0)])  # fmt: skip
    assert found == {"X": ["X_0", "X_1", "X_2"], "n": "n", "i": "i"}


def test_names_that_a_spec_refuses_keep_their_columns():
    columns = {"C1": "site id", "I1": "site_id"}
    found = chosen(SCALARS, columns, {("C1", 0): 5}, [("I1", 0)])
    assert [name for name, _ in found.features.fields.values()] == ["site_id"]
    assert found.features.dense == ("site_id_2",)
    assert found.columns == {"site_id": "site id", "site_id_2": "site_id"}


def test_a_list_becomes_a_list_of_the_spec():
    columns = {"item": "item", "hist": {"column": "h", "side": "before", "keep": "last"}}
    rows = {("item", 0): 7, **{("hist", i): 7 for i in range(3)}}
    found = chosen(LISTS, columns, rows)
    (each,) = found.lists
    assert (each.name, each.features) == ("h", ("h_0", "h_1", "h_2"))
    assert (each.side, each.keep, found.unused_inputs) == ("before", "last", ())


def test_the_end_of_a_list_that_is_not_used_is_left_out():
    found = chosen(LISTS, OWN, {("item", 0): 7, ("hist", 0): 7, ("hist", 1): 7})
    assert found.lists[0].features == ("hist_0", "hist_1")


def test_a_place_of_a_list_that_is_not_used_before_others_is_a_feature():
    found = chosen(LISTS, OWN, {("item", 0): 7, ("hist", 1): 5, ("hist", 2): 9})
    assert found.lists[0].features == ("hist_0", "hist_1", "hist_2")
    assert [rows for _, rows in found.features.fields.values()] == [7, 9, 5, 9]


@pytest.mark.parametrize(
    ("columns", "rows", "dense", "told"),
    [
        ({"item": "item"}, {("hist", 0): 7}, [], "input hist is not in columns"),
        (OWN, {("hist", 0): 7, ("hist", 1): 7}, [("hist", 2)], "feeds ids .* and numbers"),
    ],
)
def test_lists_and_inputs_that_make_no_features_are_named(columns, rows, dense, told):
    with pytest.raises(ModelImportError, match=told):
        chosen(LISTS, columns, rows, dense)


def test_inputs_that_the_model_does_not_use_are_listed():
    assert chosen(SCALARS, {"C1": "C1", "I1": "I1"}, {("C1", 0): 5}).unused_inputs == ("I1",)
