"""Units as Arrow tables: what goes in comes out, laid out as the engine needs it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dpiframe_core import FieldSpec
from pipeline.errors import UnitFailedError
from pipeline.planning.units import Unit
from pipeline.reading.bad_rows import Finding, as_signed, id_findings, zeroed
from pipeline.reading.unit_data import ReadFacts, UnitColumns, as_matrix
from pipeline.scoring.transport import (
    columns_from_table,
    columns_to_table,
    failure_to_table,
    unit_of_table,
    units_from_table,
    units_to_table,
)

UNIT = Unit(
    index=3,
    name="u000003-0123abcd",
    path="/somewhere/s.parquet",
    size=1,
    mtime_ns=2,
    first_row_group=4,
    stop_row_group=6,
    first_row=400,
    rows=111,
)
FACTS = ReadFacts([100, 11], 0.5, 0.25, "cpu")


def table_of(rows: int, fields: int = 3, findings: list[Finding] | None = None) -> pa.Table:
    ids = [np.arange(rows, dtype=np.int32) + f for f in range(fields)]
    columns = UnitColumns(
        facts=FACTS,
        id_names=[*(f"C{f}" for f in range(fields)), "C1"],
        ids=[*ids, np.arange(rows, dtype=np.uint64) + 2**63],
        dense=[np.linspace(0, 1, rows, dtype=np.float32)],
        published=pa.table({"C1": [str(i) for i in range(rows)], "key": range(rows)}),
        findings=findings or [],
    )
    return columns_to_table(UNIT, columns)


@pytest.mark.parametrize("rows", [1, 19, 111])
def test_a_unit_is_what_went_in(rows: int) -> None:
    table = table_of(rows)
    unit = columns_from_table(table)

    assert (unit_of_table(table), unit.facts, unit.findings) == (UNIT, FACTS, [])
    assert unit.id_names == ["C0", "C1", "C2", "C1"]
    np.testing.assert_array_equal(unit.ids[2], np.arange(rows) + 2)
    signed = [as_signed(column) for column in unit.ids]
    assert [column.dtype.name for column in signed] == ["int32"] * 3 + ["int64"]
    assert (signed[3] < 0).all()
    np.testing.assert_array_equal(unit.dense, [np.linspace(0, 1, rows, dtype=np.float32)])
    assert unit.published.column_names == ["C1", "key"]
    assert unit.published.column("C1").to_pylist() == [str(i) for i in range(rows)]


def test_findings_travel_with_their_unit() -> None:
    one = Finding("C1", np.array([5, 7]), "because", pa.array(["x", None]))
    two = Finding("key", np.array([0]), "null key", pa.nulls(1, pa.string()))

    first, second = columns_from_table(table_of(19, findings=[one, two])).findings

    assert (first.column, first.reason, first.rows.tolist()) == ("C1", "because", [5, 7])
    assert first.values.to_pylist() == ["x", None]
    assert (second.column, second.rows.tolist(), second.values.to_pylist()) == ("key", [0], [None])


def test_a_failure_travels() -> None:
    table = failure_to_table(UNIT, UnitFailedError("io", "gone"))
    assert unit_of_table(table) == UNIT
    with pytest.raises(UnitFailedError, match="gone") as error:
        columns_from_table(table)
    assert error.value.kind == "io"


def test_a_group_of_units_travels() -> None:
    given = [UNIT, UNIT.model_copy(update={"index": 4})]
    table = units_to_table(given)
    assert units_from_table(table) == given
    assert units_from_table(table.rename_columns(["other"])) is None


def test_bad_ids_are_found_in_a_unit_and_made_harmless() -> None:
    unit = columns_from_table(table_of(19))

    fields = [FieldSpec(name=f"C{i}", rows=rows, dim=1) for i, rows in enumerate([100, 18, 19, 5])]
    found = list(id_findings(unit.id_names, unit.ids, fields))
    clean = zeroed(unit.ids, unit.id_names, found)

    assert [(f.column, len(f.rows)) for f in found] == [("C1", 2), ("C2", 2), ("C1", 19)]
    assert found[1].values.to_pylist() == ["19", "20"]
    assert found[2].values.to_pylist()[0] == str(2**63)
    assert clean[0] is unit.ids[0]
    assert not np.any(clean[1]) and not np.any(clean[3]) and clean[2].tolist()[-2:] == [0, 0]
    assert unit.ids[1].tolist() == list(range(1, 20))


@pytest.mark.parametrize("rows", [1, 111, 4096])
def test_id_columns_lie_at_one_stride_in_the_object_store(ray_session: str, rows: int) -> None:
    import ray

    unit = columns_from_table(ray.get(ray.put(table_of(rows, fields=39))))

    matrix = as_matrix(unit.ids[:39])
    assert isinstance(matrix, np.ndarray)
    assert matrix.strides[0] - 4 * rows < 64
    assert matrix.ctypes.data % 64 == 0 and not unit.ids[0].flags.writeable


def test_a_unit_keeps_the_memory_of_columns_that_lie_side_by_side() -> None:
    """Small arrays allocated one after another often lie at one stride, which makes a matrix."""
    units, expected = [], []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        values = [rng.random(500, np.float32) for _ in range(13)]
        dense = [column.copy() for column in values]
        published = pa.table({"key": range(500)})
        table = columns_to_table(UNIT, UnitColumns(FACTS, [], [], dense, published, []))
        units.append(columns_from_table(table))
        expected.append(values)
        del dense, table
    for unit, values in zip(units, expected, strict=True):
        np.testing.assert_array_equal(as_matrix(unit.dense), values)
