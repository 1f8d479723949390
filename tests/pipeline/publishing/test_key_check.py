from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from job_cases import encoded_table, job_keys, tiny_bundle, write_shards

import pipeline.publishing.key_check as key_check
from pipeline.config.job import JobConfig
from pipeline.errors import ContractError
from pipeline.planning.plan import make_plan
from pipeline.publishing.key_check import Duplicates, count_duplicates
from pipeline.publishing.output import open_output
from pipeline.publishing.records import UnitRecord


def count(tables: Sequence[pa.Table], columns: Sequence[str], memory: int = 1 << 20) -> Duplicates:
    """Duplicates among tables, each of which is a part."""
    records = [
        UnitRecord.model_construct(index=i, path=f"file{i}", rows=table.num_rows)
        for i, table in enumerate(tables)
    ]
    return count_duplicates(
        records, columns, lambda record: pads.dataset(tables[record.index]), memory
    )


@pytest.mark.parametrize("memory", [1 << 20, 1000])
@pytest.mark.parametrize("kind", ["int64", "int32", "uint64", "string", "large_string", "pair"])
def test_rows_beyond_the_first_are_counted(kind: str, memory: int) -> None:
    rng = np.random.default_rng(19)
    values = rng.integers(0, 3000, 1900)
    expected = len(values) - len(set(values.tolist()))
    columns = {"k": pa.array(values)}
    if "string" in kind:
        columns["k"] = pa.array([f"key {v}" for v in values], pa.type_for_alias(kind))
    elif kind == "pair":
        columns = {"a": pa.array(values // 50), "b": pa.array([str(v % 50) for v in values])}
    else:
        columns["k"] = columns["k"].cast(kind)
    table = pa.table(columns)
    parts = [table.slice(0, 700), table.slice(700, 0), table.slice(700)]
    assert count(parts, list(columns), memory).rows == expected


def test_nulls_equal_nothing() -> None:
    table = pa.table({"a": [1, None, None, 1, 1], "b": ["x", "y", "y", None, "x"]})
    assert count([table], ["a", "b"]).rows == 1
    assert count([table.drop_columns(["b"])], ["a"]).rows == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [(["ab", "c"], ["a", "bc"]), (["", "a"], ["a", ""]), (["1", "2"], ["2", "1"])],
)
def test_the_columns_of_a_key_are_not_joined(first: list[str], second: list[str]) -> None:
    table = pa.table({"a": [first[0], second[0]], "b": [first[1], second[1]]})
    assert count([table], ["a", "b"]).rows == 0


def test_other_types_are_keys_too() -> None:
    values = [0, 86400, 86400, 3]
    for kind in (pa.timestamp("s"), pa.duration("s"), pa.float64(), pa.decimal128(30, 2)):
        assert count([pa.table({"k": pa.array(values, pa.int64()).cast(kind)})], ["k"]).rows == 1
    text = pa.array(["a", "b", "a"]).dictionary_encode()
    assert count([pa.table({"k": text})], ["k"]).rows == 1


def test_bytes_are_keys_whether_they_are_text_or_not() -> None:
    values = [b"\xff" * 16, bytes(16), b"\xfe" + b"\xff" * 15, bytes(16)]
    kinds = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(16), pa.uuid()]
    for kind in kinds:
        assert count([pa.table({"k": pa.array(values, kind)})], ["k"]).rows == 1, kind
        assert count([pa.table({"k": pa.array(values[:3], kind)})], ["k"]).rows == 0, kind


def test_extremes_are_told_apart() -> None:
    ends = [2**63 - 1, -(2**63), 0, -1, 2**63 - 1]
    assert count([pa.table({"k": ends})], ["k"]).rows == 1
    wide = pa.array([2**64 - 1, 2**63, 0, 2**64 - 1], pa.uint64())
    assert count([pa.table({"k": wide})], ["k"]).rows == 1


@pytest.mark.parametrize("value", [7, "seven"])
def test_examples_name_keys_and_files(value: object) -> None:
    other = 1 if value == 7 else "one"
    tables = [pa.table({"k": [value, other]}), pa.table({"k": [value]})]
    assert count(tables, ["k"]).examples == [f"k {value} in file0 and k {value} in file1"]


def finish(folder: Path, check: str, keys: list[str]) -> int | None:
    """Finish an output whose parts were published before by hand."""
    config = JobConfig.model_validate(job_keys(folder, check_keys=check, key_columns=keys))
    plan, output = make_plan(config), open_output(config.output)
    attempt, _ = output.claim(plan)
    publisher = output.publisher(attempt)
    for unit in plan.units:
        if publisher.already(unit.name) is None:
            table = encoded_table(unit.rows).select([*keys, "label"])
            table = table.append_column("score", pa.array([0.5] * unit.rows, pa.float32()))
            rejected = pa.table({"unit": pa.array([], pa.string())})
            parts = publisher.write_parts(unit.name, table, rejected)
            fields = {"unit": unit.name, "index": unit.index, "path": unit.path, "rejected": 0}
            fields |= {"rows": unit.rows, "scored": unit.rows, **parts._asdict()}
            groups = {"first_row_group": 0, "stop_row_group": unit.stop_row_group}
            publisher.write_record(UnitRecord.model_validate(fields | groups))
    return output.finish(plan, attempt, []).duplicate_keys


def test_a_job_counts_or_fails(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 2, 19, 19)
    assert finish(tmp_path, "off", ["row_id"]) is None
    assert finish(tmp_path, "count", ["row_id"]) == 19
    with pytest.raises(ContractError, match=r"19 of 38 rows have a key \(row_id\) .*row_id 0 in "):
        finish(tmp_path, "fail", ["row_id"])
    assert open_output(tmp_path / "output").success() is None


def test_what_a_finished_output_must_tell() -> None:
    def enough(found: int | None, check: str) -> bool:
        manifest = key_check.Manifest.model_construct(duplicate_keys=found)
        config = JobConfig(bundle="b", input="i", output="o", check_keys=check)  # type: ignore
        return key_check.keys_are_checked(manifest, config)

    assert [enough(found, "off") for found in (None, 0, 3)] == [True, True, True]
    assert [enough(found, "count") for found in (None, 0, 3)] == [False, True, True]
    assert [enough(found, "fail") for found in (None, 0, 3)] == [False, True, False]
