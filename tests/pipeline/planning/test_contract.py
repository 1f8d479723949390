from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from plan_jobs import ROWS, encoded_spec, encoded_table, job, raw_schema, raw_spec, raw_table, write

from dpiframe_core.features.schema import (
    CategoricalFeature,
    DenseFeature,
    FeatureSchema,
    HashEncoding,
)
from pipeline.errors import ConfigError, ContractError
from pipeline.planning.columns import Columns
from pipeline.planning.contract import check_contract, column_limits
from pipeline.planning.inputs import scan_inputs

IDS = ("C1", "C2")


def check_encoded(
    folder: Path, *tables: pa.Table, oov_row: int | None = None, **keys: Any
) -> Columns:
    for i, table in enumerate(tables):
        write(folder / f"input/{i}.parquet", table)
    config, spec = job(folder, **keys), encoded_spec(oov_row)
    scan = scan_inputs(config, column_limits(spec, None, config))
    return check_contract(scan.files, spec, None, config)


def check_raw(folder: Path, *tables: pa.Table, **keys: Any) -> Columns:
    for i, table in enumerate(tables):
        write(folder / f"input/{i}.parquet", table)
    config, spec, schema = job(folder, **keys), raw_spec(), raw_schema()
    scan = scan_inputs(config, column_limits(spec, schema, config))
    return check_contract(scan.files, spec, schema, config)


def broken(folder: Path, *tables: pa.Table, **keys: Any) -> str:
    with pytest.raises(ContractError) as caught:
        check_encoded(folder, *tables, **keys)
    return str(caught.value)


def test_encoded_columns_come_in_the_order_of_the_model(tmp_path: Path) -> None:
    columns = check_encoded(tmp_path, encoded_table(), carry_columns=["label"])
    assert columns == Columns(
        form="encoded",
        key_columns=("row_id",),
        carry_columns=("label",),
        id_columns=IDS,
        dense_columns=("I1",),
    )
    assert columns.read_columns == ["row_id", "label", "C1", "C2", "I1"]


def test_fields_can_have_columns_of_other_names_and_share_one(tmp_path: Path) -> None:
    table = encoded_table(19, C1=None, I1=None, c=pa.array([0, 10] * 9 + [1]), d=[0.5] * 19)
    mapping = {"C1": "c", "C2": "c", "I1": "d"}
    columns = check_encoded(tmp_path, table, field_columns=mapping)
    assert (columns.id_columns, columns.dense_columns) == (("c", "c"), ("d",))
    assert columns.read_columns == ["row_id", "c", "d"]


def test_a_shared_column_must_fit_the_smaller_table(tmp_path: Path) -> None:
    table = encoded_table(19, c=pa.array([11] * 19, pa.int32()))
    assert "holds id 11, outside its table of 11 rows" in broken(
        tmp_path, table, field_columns={"C1": "c", "C2": "c"}
    )


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint32", "int64", "uint64"])
def test_any_integer_type_holds_ids(tmp_path: Path, kind: str) -> None:
    table = encoded_table(19, C1=pa.array([0] * 19, kind))
    assert check_encoded(tmp_path, encoded_table(), table).form == "encoded"


def test_raw_columns_are_those_of_the_schema(tmp_path: Path) -> None:
    columns = check_raw(tmp_path, raw_table(), key_columns=[])
    assert (columns.form, columns.key_columns) == ("raw", ("row_id",))
    assert set(columns.source_columns) == {c for c in raw_table().column_names if c[0] in "CI"}
    assert columns.id_columns == ()


def test_auto_takes_ids_for_encoded_even_with_a_schema(tmp_path: Path) -> None:
    ids = {field.name: pa.array([0], pa.int32()) for field in raw_spec().fields}
    table = pa.table({"row_id": [1], **ids})
    assert check_raw(tmp_path, table).form == "encoded"
    with pytest.raises(ContractError, match=r"encoded form(.|\n)*column C26: missing"):
        check_raw(tmp_path, table.drop_columns(["C26"]))


@pytest.mark.parametrize("kind", ["int32", "float64"])
def test_auto_refuses_numbers_that_could_be_either(tmp_path: Path, kind: str) -> None:
    fields = [
        CategoricalFeature(
            name=name, column=name, values="integer", encoding=HashEncoding(modulus=rows - 2)
        )
        for name, rows in ROWS.items()
    ]
    schema = FeatureSchema(
        dataset="d", fields=tuple(fields), dense=(DenseFeature(name="I1", column="I1"),)
    )
    write(tmp_path / "input/a.parquet", encoded_table(C1=pa.array([1] * 111, kind)))
    files = scan_inputs(job(tmp_path)).files
    with pytest.raises(ConfigError, match="both forms use column 'C1'; set form to raw or enc"):
        check_contract(files, encoded_spec(), schema, job(tmp_path))
    for form in ("raw", "encoded"):
        assert check_contract(files, encoded_spec(), schema, job(tmp_path, form=form)).form == form


def test_auto_takes_floats_for_ids_only_without_a_schema(tmp_path: Path) -> None:
    """Texts that pandas took for numbers look like ids."""
    ids = {field.name: pa.array([1.0]) for field in raw_spec().fields}
    table = raw_table(1, **{name: ids[name] for name in ids if name in raw_table().column_names})
    with pytest.raises(ContractError, match=r"raw form(.|\n)*column C1: type is double"):
        check_raw(tmp_path, table)
    assert check_raw(tmp_path, table, form="encoded").form == "encoded"


def test_auto_on_files_of_neither_form_tells_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"raw form(.|\n)*column C26: missing"):
        check_raw(tmp_path, raw_table(C26=None))


def test_missing_columns_are_told_with_the_nearest_name(tmp_path: Path) -> None:
    table = encoded_table(C2=None, c2=[0] * 111, I1=None)
    text = broken(tmp_path, table, carry_columns=["labl"])
    assert "3 problem(s)" in text
    assert "0.parquet: column C2: missing" in text
    assert "column I1: missing" in text
    assert "column labl: missing (nearest is label)" in text


@pytest.mark.parametrize("values", [["a"] * 19, [b"1"] * 19, [date(1970, 1, 2)] * 19, [None] * 19])
def test_an_id_column_of_another_type(tmp_path: Path, values: list[object]) -> None:
    text = broken(tmp_path, encoded_table(19, C1=values))
    assert "column C1: type is" in text
    assert "expected integer ids" in text


def test_a_dense_column_must_be_a_number(tmp_path: Path) -> None:
    assert "column I1: type is string" in broken(tmp_path, encoded_table(1, I1=["1"]))


def test_a_raw_column_of_another_type(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="column C1: type is double"):
        check_raw(tmp_path, raw_table(C1=[0.5] * 111), form="raw")


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    table = encoded_table(19).append_column("C1", pa.array([0] * 19))
    assert "column C1: there are 2 of this name" in broken(tmp_path, table)


def test_copied_columns_need_one_type_in_all_files(tmp_path: Path) -> None:
    other = encoded_table(19, label=pa.array(["0"] * 19))
    text = broken(tmp_path, encoded_table(), other, other, carry_columns=["label"])
    assert "1.parquet (and 1 more like it): column label is string, but int8 in" in text
    assert "0.parquet" in text


def test_texts_in_a_dictionary_are_texts(tmp_path: Path) -> None:
    keys = pa.array(["a"] * 19)
    tables = [encoded_table(19, row_id=k) for k in (keys, keys.dictionary_encode())]
    assert check_encoded(tmp_path, *tables).key_columns == ("row_id",)


@pytest.mark.parametrize("column", ["row_id", "C1", "I1"])
def test_nulls_that_statistics_show(tmp_path: Path, column: str) -> None:
    values = [1] * 30 + [None] * 2 + [1] * 9
    kind = pa.float32() if column == "I1" else pa.int64()
    table = encoded_table(41, **{column: pa.array(values, kind)})
    text = broken(tmp_path, table)
    assert f"0.parquet, row group 1: column {column}" in text
    assert "holds 2 null(s)" in text
    assert check_encoded(tmp_path, table, on_bad_row="reject").form == "encoded"


def test_nulls_in_a_carried_or_raw_column_are_fine(tmp_path: Path) -> None:
    table = encoded_table(3, label=pa.array([None, 0, 1], pa.int8()))
    assert check_encoded(tmp_path, table, carry_columns=["label"]).carry_columns == ("label",)


def test_a_null_key_in_raw_rows(tmp_path: Path) -> None:
    keys = pa.array([None, *range(110)], pa.int64())
    with pytest.raises(ContractError, match="column row_id is a key and holds 1 null"):
        check_raw(tmp_path, raw_table(row_id=keys))


@pytest.mark.parametrize("value", [-1, 11, 2**31 - 1])
def test_ids_outside_their_table_that_statistics_show(tmp_path: Path, value: int) -> None:
    table = encoded_table(20, C1=pa.array([0] * 19 + [value], pa.int32()))
    text = broken(tmp_path, table)
    assert "0.parquet, row group 1: column C1 holds id" in text
    assert f"id {value}, outside its table of 11 rows (valid: 0 to 10)" in text
    assert text.endswith("fix the encoding, or set on_bad_row to reject")
    assert broken(tmp_path, table, oov_row=1).endswith("or set on_bad_id to oov")
    assert check_encoded(tmp_path, table, on_bad_row="reject").form == "encoded"
    assert check_encoded(tmp_path, table, on_bad_id="oov", oov_row=1).form == "encoded"


@pytest.mark.parametrize("value", [float("inf"), 1e39])
def test_dense_values_that_float32_cannot_hold(tmp_path: Path, value: float) -> None:
    table = encoded_table(2, I1=pa.array([0.5, value], pa.float64()))
    assert "which float32 cannot hold" in broken(tmp_path, table)


def test_many_problems_give_a_bounded_list(tmp_path: Path) -> None:
    bad = encoded_table(1, C1=pa.array([99], pa.int32()))
    text = broken(tmp_path, *[bad] * 23)
    assert "23 problem(s)" in text
    assert text.splitlines()[-1] == "  and 3 more"


def test_files_without_rows_are_not_checked(tmp_path: Path) -> None:
    empty = pa.table({"row_id": pa.array([], pa.null())})
    assert check_encoded(tmp_path, empty, encoded_table()).form == "encoded"
    with pytest.raises(ContractError, match="column C1: missing"):  # unless all are
        check_encoded(tmp_path / "alone", empty)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"form": "raw"}, "needs a bundle with a feature schema"),
        ({"field_columns": {"C12": "c"}}, "names 'C12', which the model has not; did you mean 'C"),
        ({"key_columns": []}, "key_columns is empty"),
        ({"on_bad_id": "oov"}, "needs a declared oov_row in every field"),
    ],
)
def test_a_configuration_that_does_not_fit_the_bundle(
    tmp_path: Path, keys: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        check_encoded(tmp_path, encoded_table(), **keys)


def test_the_raw_form_has_no_field_columns(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="field_columns is for encoded input"):
        check_raw(tmp_path, raw_table(), form="raw", field_columns={"C1": "x"})


def test_a_carried_column_must_not_be_the_key_of_the_schema(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'row_id' .* is also a carry column"):
        check_raw(tmp_path, raw_table(), key_columns=[], carry_columns=["row_id"])


@pytest.mark.parametrize(
    "keys",
    [
        {"key_columns": ["k"], "check_keys": "count"},
        {"label_column": "label", "slice_columns": ["k"]},
        {"label_column": "label", "group_column": "k"},
    ],
)
@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct({"a": pa.int64()})], ids=str)
def test_what_is_compared_is_one_value_a_row(
    tmp_path: Path, keys: dict[str, Any], kind: pa.DataType
) -> None:
    table = encoded_table()
    nested = table.append_column("k", pa.array([None] * len(table), kind))
    assert "column k: type is " in (text := broken(tmp_path, nested, **keys)), text
    assert "one value a row" in text


def test_a_key_of_several_values_is_copied(tmp_path: Path) -> None:
    table = encoded_table()
    nested = table.append_column("k", pa.array([[1, 2]] * len(table)))
    assert check_encoded(tmp_path, nested, key_columns=["k"]).key_columns == ("k",)


@pytest.mark.parametrize("kind", [pa.string(), pa.date32(), pa.list_(pa.int8())], ids=str)
def test_labels_are_numbers_or_booleans(tmp_path: Path, kind: pa.DataType) -> None:
    table = encoded_table()
    table = table.append_column("k", pa.array([None] * len(table), kind))
    found = broken(tmp_path, table, label_column="k")
    assert "column k: type is " in found and "expected labels 0 and 1" in found


@pytest.mark.parametrize(("raw", "column"), [(False, "C1"), (True, "I1")])
def test_a_column_in_other_cases_is_named(tmp_path: Path, raw: bool, column: str) -> None:
    table = raw_table() if raw else encoded_table()
    table = table.rename_columns([name.lower() for name in table.column_names])
    with pytest.raises(ContractError, match=rf"{column}: missing \(nearest is {column.lower()}"):
        (check_raw if raw else check_encoded)(tmp_path, table, form="raw" if raw else "encoded")
